"""Pure functions on `keras.ops`: no layers, no weights, no state."""

from keras_tnattn.ops import masking, reflections, scan, spectral_filter, tensor_train, time_graph

__all__ = ["masking", "reflections", "scan", "spectral_filter", "tensor_train", "time_graph"]
