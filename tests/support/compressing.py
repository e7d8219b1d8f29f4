"""What tests of compression share."""

import functools

import keras
import numpy as np
from conformance import relative_error, to_numpy

import keras_small

# Floats, where a test says nothing else.
compress = functools.partial(keras_small.compress, bits=32)


def outputs_of(model, inputs):
    """Returns all numbers of all outputs."""
    return np.concatenate([to_numpy(x).ravel() for x in keras.tree.flatten(model(inputs))])


def error_of(model, small, inputs):
    """Returns the relative error of what a small model computes."""
    return relative_error(*(outputs_of(m, inputs) for m in (small, model)))


@keras.saving.register_keras_serializable(package="tests")
class Holder(keras.layers.Layer):
    """Saves the layer that it holds, which is loaded again for each holder."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def build(self, input_shape):
        if not self.layer.built:
            self.layer.build(input_shape)
        self.built = True

    def call(self, inputs):
        return self.layer(inputs)

    def get_config(self):
        return {**super().get_config(), "layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("layer")), **config)
