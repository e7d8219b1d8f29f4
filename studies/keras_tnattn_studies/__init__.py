"""Studies: many runs whose tables and pictures answer one question."""
