"""The Keras layers."""
