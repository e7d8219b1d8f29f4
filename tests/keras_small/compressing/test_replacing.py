"""Layers become their replacements in place, in memory and when they are loaded."""

import gc
import weakref

import keras
import numpy as np
import pytest
from compressing import compress
from conformance import saved_and_loaded, to_numpy
from import_path import run_python

from keras_small import storage
from keras_small.survey.inventory import places
from keras_small.survey.replacing import become, replace
from keras_tnattn import layers

RNG = np.random.default_rng(0)


@keras.saving.register_keras_serializable(package="test_replacing")
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


@keras.saving.register_keras_serializable(package="test_replacing")
class Lazy(keras.layers.Layer):
    """Has no `build`: its layers are built when it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(32)
        self.inner = keras.Sequential([keras.layers.Dense(32)])

    def call(self, inputs):
        return self.inner(self.dense(inputs))


def living(kind):
    gc.collect()
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_replacements_are_freed_with_the_model():
    model = keras.Sequential([keras.Input((32,)), Holder()])
    counts = []
    for _ in range(3):
        result = compress(model, 3.0, formats="low_rank", verbose=0)
        counts.append(living(storage.LowRankDense))
    assert len(set(counts)) == 1
    assert counts[0] >= 3
    del result
    assert living(storage.LowRankDense) == 0


def test_the_weights_of_a_replaced_layer_are_freed():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(8)])
    former = [weakref.ref(weight) for weight in model.layers[0].weights]
    new = keras.layers.Dense(8)
    new.build((None, 32))
    (place,) = [place for place in places(model) if place.layer is model.layers[0]]
    replace(place, new)
    assert model(np.ones((2, 32), "float32")).shape == (2, 8)
    gc.collect()
    assert [weight() for weight in former] == [None, None]


@pytest.mark.filterwarnings("ignore:`build")  # by Keras, about `Lazy`
@pytest.mark.parametrize("holder", [Holder, Lazy])
def test_layers_inside_layers_are_replaced_and_loaded(holder, tmp_path):
    model = keras.Sequential([keras.Input((32,)), holder()])
    inputs = RNG.normal(size=(4, 32)).astype("float32")
    small = compress(model, 3.0, formats="low_rank", verbose=0).model
    kinds = [type(place.layer) for place in places(small)]
    assert kinds.count(storage.LowRankDense) == (3 if holder is Holder else 2)
    assert isinstance(small.layers[0], holder)
    loaded = saved_and_loaded(small, inputs, tmp_path)
    # Saved once more, and as a part of another model.
    whole = keras.Sequential([keras.Input((32,)), loaded, keras.layers.Dense(2)])
    whole.save(tmp_path / "whole.keras")
    again = keras.models.load_model(tmp_path / "whole.keras")
    np.testing.assert_array_equal(to_numpy(again(inputs)), to_numpy(whole(inputs)))


def test_a_replaced_layer_stays_the_same_object_in_graphs_wrappers_and_lists():
    inputs = keras.Input((7, 16))
    shared = keras.layers.Dense(16, name="shared")
    each = keras.layers.TimeDistributed(shared)
    model = keras.Model(inputs, shared(each(inputs)))
    (place,) = (place for place in places(model) if place.layer is shared)
    small = storage.LowRankDense.from_dense(shared, rank=2)
    expected = to_numpy(small(small(np.ones((2, 7, 16)))))
    replace(place, small)
    assert isinstance(shared, storage.LowRankDense)
    assert each.layer is shared
    assert model.get_layer("shared") is shared
    np.testing.assert_allclose(to_numpy(model(np.ones((2, 7, 16)))), expected, rtol=1e-5)
    assert len(model.weights) == 3
    assert shared.output.shape == (None, 7, 16)


def test_every_layer_that_keras_knows_is_found():
    # `_flatten_layers` is private: this is the only place that uses it.
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8)(ids)
    x = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))(x)
    x = layers.TransformerEncoder(keras.layers.MultiHeadAttention(2, 4), 16)(x)
    x = keras.layers.RNN(keras.layers.StackedRNNCells([keras.layers.GRUCell(3)] * 2))(x)
    x = Lazy()(keras.layers.Dense(32)(x))
    model = keras.Model(ids, keras.Sequential([Holder(), keras.layers.Dense(2)])(x))
    known = {id(x) for x in model._flatten_layers(include_self=False) if x.weights}
    assert known <= {id(place.layer) for place in places(model)}


@pytest.mark.slow
def test_without_the_package_keras_says_its_name(tmp_path):
    model = keras.Sequential([keras.Input((32,)), Holder()])
    compress(model, 3.0, verbose=0).model.save(tmp_path / "small.keras")
    code = "import sys, keras; keras.models.load_model(sys.argv[1])"
    result = run_python("-c", code, tmp_path / "small.keras", status=1)
    assert "keras_small>Compressed" in result.stderr


def test_recurrent_layers_keep_their_units():
    model = keras.Sequential([keras.Input((3, 16)), keras.layers.GRU(32)])
    (layer,) = compress(model, bits=8, verbose=0).model.layers
    assert type(layer) is keras.layers.RNN
    assert layer.units == 32


def test_a_replacement_keeps_plain_attributes_that_others_may_read():
    layer, new = keras.layers.Dense(3), keras.layers.EinsumDense("ab,bc->ac", 3)
    layer.build((None, 2))
    new.build((None, 2))
    layer.scale_of_others = 2.5
    become(layer, new)
    assert type(layer) is keras.layers.EinsumDense
    assert layer.scale_of_others == 2.5
    assert layer.units == 3  # of the layer before, which the new one does not have
    assert layer.equation == "ab,bc->ac"
