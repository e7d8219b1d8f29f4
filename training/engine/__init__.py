"""What every task shares: run folders, checkpoints, fitting, finishing, plots and tables."""
