"""Files of version 0.1.0, in `tests/data/saved_by_0.1.0`, still load and compute the same.

Written on TensorFlow with weights of a normal distribution. Its translators are functional models
of layers with fixed names; its attentions hold their residual units as lists of layers.
"""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn.models import Translator

pytestmark = pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
    reason="Keras 3.15 wrote the files, and older versions do not know its options",
)

SAVED = Path(__file__).resolve().parents[1] / "data/saved_by_0.1.0"
IDS = {
    "source": np.array([[2, 5, 3, 0], [2, 7, 8, 3]], "int32"),
    "target": np.array([[2, 4, 6], [2, 3, 0]], "int32"),
}


def texts():
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 20, (3, 6)).astype("int32")
    ids[1, 3:] = 0
    return ids


def tokens(length):
    shape = (2, length, 6)
    return np.random.default_rng({3: 1, 5: 2}[length]).normal(size=shape).astype("float32")


INPUTS = {
    "classifier_tsa": texts(),
    "classifier_plga": texts(),
    "translator_plga": IDS,
    "translator_sdpa": IDS,
    "transformer": [tokens(3), tokens(5)],
}


def load(name):
    return keras.models.load_model(SAVED / f"{name}.keras")


def expected(name):
    with np.load(SAVED / f"{name}.npz") as file:
        return file["outputs"]


@pytest.mark.parametrize("name", INPUTS)
def test_an_older_file_computes_what_it_did(name):
    got = load(name).predict(INPUTS[name], verbose=0)
    np.testing.assert_allclose(got, expected(name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["translator_plga", pytest.param("translator_sdpa", marks=pytest.mark.slow)]
)
def test_an_older_translator_becomes_a_translator(name, tmp_path):
    model = load(name)
    assert not isinstance(model, Translator)
    new = Translator.from_model(model)
    got = new.predict(IDS, verbose=0)
    np.testing.assert_allclose(got, expected(name), rtol=1e-5, atol=1e-5)
    # Checkpoints hold the weights in this order, without their names.
    assert [w.path for w in new.weights] == [w.path for w in model.weights]
    new.save(tmp_path / "new.keras")
    again = keras.models.load_model(tmp_path / "new.keras")
    np.testing.assert_array_equal(again.predict(IDS, verbose=0), got)
