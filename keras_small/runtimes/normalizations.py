"""Traces layer normalizations in the form that runtimes know, and compute as one operation."""

import contextlib
from collections.abc import Callable

import keras
from keras import ops

from keras_small.runtimes.tracing import with_calls
from keras_small.survey.graph_names import flat_layers
from keras_tnattn.typing import Tensor


def known_normalizations(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Lets normalizations of the last axis be traced as one operation each, for a while."""
    return with_calls({x: _normalize(x) for x in flat_layers(model) if _is_known(x)})


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
