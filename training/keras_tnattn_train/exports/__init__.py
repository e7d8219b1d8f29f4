"""Models of texts in folders and pages that answer texts."""
