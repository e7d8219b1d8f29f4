"""The mathematics as pure functions of `keras.ops`: no layers, no weights, no state."""

from keras_tnattn.ops import (
    blocks,
    convolution_factors,
    graph,
    integer_groups,
    low_rank,
    masking,
    norms,
    power_law,
    precision,
    quantization,
    reflections,
    scan,
    spectral_filter,
    tensor_train,
    time_graph,
    tt_table,
)

__all__ = [
    "blocks",
    "convolution_factors",
    "graph",
    "integer_groups",
    "low_rank",
    "masking",
    "norms",
    "power_law",
    "precision",
    "quantization",
    "reflections",
    "scan",
    "spectral_filter",
    "tensor_train",
    "time_graph",
    "tt_table",
]
