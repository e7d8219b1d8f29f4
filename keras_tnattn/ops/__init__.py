"""The mathematics as pure functions of `keras.ops`: no layers, no weights, no state."""

from keras_tnattn.ops import graph, power_law, scan, spectral_filter, tensor_train, time_graph

__all__ = ["graph", "power_law", "scan", "spectral_filter", "tensor_train", "time_graph"]
