"""Image classification."""
