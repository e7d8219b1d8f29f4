import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn import GatedSum

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 4, 5)).astype("float32")


def test_starts_as_its_first_input_and_adds_the_second_by_features():
    layer = GatedSum()
    np.testing.assert_array_equal(to_numpy(layer([X, Y])), X)
    layer.gate.assign(np.arange(5))
    np.testing.assert_allclose(to_numpy(layer([X, Y])), X + np.arange(5) * Y, rtol=1e-6)


def test_is_saved_and_keeps_the_mask(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 5, mask_zero=True)(ids)
    layer = GatedSum()
    model = keras.Model(ids, layer([x, keras.layers.Dense(5)(x)]))
    layer.gate.assign(RNG.normal(size=5))
    inputs = np.array([[1, 2, 0]])
    outputs = model(inputs)
    assert to_numpy(outputs._keras_mask).tolist() == [[True, True, False]]
    assert layer.compute_output_shape([(None, 5), (None, 5)]) == (None, 5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(outputs), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4, 1), (3, 5)])
def test_inputs_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="Expected two inputs of the same shape"):
        GatedSum()([X, np.zeros(shape, "float32")])
