"""Text to ids: needs TensorFlow, whatever the backend."""
