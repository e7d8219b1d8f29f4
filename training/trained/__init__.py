"""What is done with trained models: predictions, and smaller models."""
