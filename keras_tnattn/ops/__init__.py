"""Pure functions on `keras.ops`: no layers, no weights, no state."""
