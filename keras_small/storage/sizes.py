"""The bytes that weights take in memory."""

import keras
import numpy as np


def byte_count(layer: keras.layers.Layer) -> int:
    """Returns the bytes of all weights of a layer."""
    return sum(int(np.prod(w.shape)) * item_size(w.dtype) for w in layer.weights)


def item_size(dtype: str) -> int:
    """Returns the bytes of a number, also of the dtypes that NumPy does not have."""
    if dtype.startswith("float8"):
        return 1
    return np.dtype({"bfloat16": "float16", "bool": "int8"}.get(dtype, dtype)).itemsize
