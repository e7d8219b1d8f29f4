"""Traces layer normalizations in the form that runtimes know, and compute as one operation."""

import contextlib
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_small.survey.graph_names import flat_layers
from keras_tnattn.typing import Tensor


@contextlib.contextmanager
def known_normalizations(model: keras.Model) -> Iterator[None]:
    """Lets normalizations of the last axis be traced as one operation each, for a while."""
    layers = [x for x in flat_layers(model) if _is_known(x)]
    try:
        for layer in layers:
            layer.call = _normalize(layer)
        yield
    finally:
        for layer in layers:
            del layer.call


def _is_known(layer: keras.layers.Layer) -> bool:
    is_plain = type(layer) is keras.layers.LayerNormalization and not layer.rms_scaling
    return is_plain and layer.built and layer.compute_dtype == "float32"


def _normalize(layer: keras.layers.LayerNormalization) -> Callable[[Tensor], Tensor]:
    def call(inputs: Tensor) -> Tensor:
        axis = len(inputs.shape) - 1
        if [x % len(inputs.shape) for x in layer.axis] != [axis]:
            return type(layer).call(layer, inputs)
        centered = inputs - ops.mean(inputs, axis, keepdims=True)
        variance = ops.mean(ops.power(centered, 2.0), axis, keepdims=True)
        result = centered / ops.sqrt(variance + layer.epsilon)
        result = result if layer.gamma is None else result * layer.gamma
        return result if layer.beta is None else result + layer.beta

    return call
