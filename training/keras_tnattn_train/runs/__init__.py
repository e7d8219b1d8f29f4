"""The parts that all tasks share: run folders, checkpoints, fitting, finishing, plots, tables."""
