"""The moments of the outputs of layers that have a bias, before their activation."""

import keras
import numpy as np
from keras import ops

from keras_tnattn.typing import Tensor

# For each layer, and each of its calls: means of outputs and of their squares, and numbers of rows.
OutputMoments = dict[str, list[tuple[np.ndarray, int]]]


def bias_of(layer: keras.layers.Layer) -> keras.Variable | None:
    """Returns the variable that is added to the outputs of a layer, before its activation."""
    last = getattr(layer, "outer", layer)
    if isinstance(last, keras.layers.BatchNormalization):
        return last.beta if last.axis in (-1, last.input_spec.ndim - 1) else None
    if getattr(last, "data_format", None) == "channels_first":
        return None
    bias = getattr(last, "bias", None)
    return bias if isinstance(bias, keras.Variable) else None


def moments_of_outputs(outputs: Tensor, layer: keras.layers.Layer) -> Tensor:
    """Returns the means of outputs and of their squares, in the shape of their layer's bias."""
    bias = bias_of(layer)
    shape = () if bias is None else tuple(bias.shape)
    ones = tuple(1 + axis for axis, size in enumerate(shape) if size == 1)
    array = ops.cast(outputs, "float32")
    array = ops.reshape(array, (-1, *array.shape[len(array.shape) - len(shape) :]))
    moments = ops.stack([ops.mean(array, axis=0), ops.mean(ops.square(array), axis=0)])
    return ops.mean(moments, axis=ones, keepdims=True) if ones else moments
