"""Converts text to ids; needs TensorFlow, whatever the backend."""
