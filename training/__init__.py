"""Training, evaluation and pictures from the command line."""
