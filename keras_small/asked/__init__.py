"""What is asked of a compression: goals, promises and data."""
