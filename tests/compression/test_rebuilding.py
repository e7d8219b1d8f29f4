"""Copies with replaced layers are freed when nobody uses them."""

import gc

import keras

from keras_tnattn import compress, layers


@keras.saving.register_keras_serializable(package="test_rebuilding")
class Holder(keras.layers.Layer):
    """Makes one layer in its constructor, one in `build`, and one in a list."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Dense(32)

    def build(self, input_shape):
        self.second = keras.layers.Dense(32)
        self.second.build(input_shape)
        self.listed = []
        self.listed.append(keras.layers.Dense(32))
        self.listed[0].build(input_shape)
        self.first.build(input_shape)
        self.built = True

    def call(self, inputs):
        return self.listed[0](self.second(self.first(inputs)))


def living(kind):
    gc.collect()
    gc.collect()  # substitutes are freed after the layers that they replaced
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_substitutes_are_freed_with_the_model():
    model = keras.Sequential([keras.Input((32,)), Holder()])
    counts = []
    for _ in range(3):
        result = compress(model, target=3.0, formats="low_rank")
        counts.append(living(layers.LowRankDense))
    assert counts == [3, 3, 3]
    del result
    assert living(layers.LowRankDense) == 0
