"""The mathematics as pure functions of `keras.ops`: no layers, no weights, no state."""

from keras_tnattn.ops import (
    blocks,
    graph,
    low_rank,
    masking,
    norms,
    power_law,
    precision,
    reflections,
    scan,
    spectral_filter,
    tensor_train,
    time_graph,
)

__all__ = [
    "blocks",
    "graph",
    "low_rank",
    "masking",
    "norms",
    "power_law",
    "precision",
    "reflections",
    "scan",
    "spectral_filter",
    "tensor_train",
    "time_graph",
]
