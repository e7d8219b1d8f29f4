"""Moments that several processes gather from shards are those of one process."""

import pickle

import keras
import numpy as np
import pytest
from compressing import compress

from keras_small import Data, gather_moments
from keras_small.survey import calibration
from keras_small.survey.inventory import Inventory
from keras_small.survey.survey import layer_statistics, survey_of
from keras_tnattn.layers import TokenEmbedding

RNG = np.random.default_rng(0)
SHARDS = 3
IDS = RNG.integers(0, 90, (384, 16)) * RNG.integers(0, 2, (384, 16))


def language_model():
    keras.utils.set_random_seed(0)
    ids = keras.Input((16,), dtype="int32")
    table = TokenEmbedding(90, 12, name="table")
    x = table(ids)
    x = keras.layers.Add()([keras.layers.Dense(12, "tanh", name=name)(x) for name in ("a", "b")])
    x = keras.layers.Conv1D(12, 3, padding="same", activation="tanh", name="convolution")(x)
    return keras.Model(ids, table(x, reverse=True))


def gathered(model, rows, **options):
    parts = [
        gather_moments(model, Data(part, **options), SHARDS)
        for part in np.array_split(rows, SHARDS)
    ]
    first, *others = pickle.loads(pickle.dumps(parts))
    return sum(others, first)


def assert_close(moment, expected):
    assert moment.rows == expected.rows
    assert moment._distinct == expected._distinct
    for matrix, wanted in [
        (moment.matrix(), expected.matrix()),
        (moment.shrunk(), expected.shrunk()),
    ]:
        assert np.linalg.norm(matrix - wanted) <= 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("products", [2**31, 2**19])  # the second: few positions are drawn
def test_moments_of_shards_are_those_of_one_process(products, monkeypatch):
    monkeypatch.setattr(calibration, "_MOMENT_PRODUCTS", products)
    monkeypatch.setattr(calibration, "_MOMENT_ROWS", 1024)
    model = language_model()
    total = gathered(model, IDS, batch_size=32)
    alone = gather_moments(model, Data(IDS, batch_size=32))
    data = Data(IDS, batch_size=32)
    observed = layer_statistics(survey_of(Inventory.of(model), data, None, lambda layer: True))
    assert set(total.second_moments) == {("a", "b"), ("convolution",), ("table",)}
    for paths, moment in total.second_moments.items():
        assert_close(moment, alone.second_moments[paths])
        for path in paths:
            assert_close(moment, observed[path].second_moment)
    drawn = {moment.rows for moment in total.second_moments.values()}
    assert (drawn == {IDS.size}) == (products == 2**31)
    np.testing.assert_array_equal(total.counts["table"], np.bincount(IDS.ravel(), minlength=90))


def test_a_small_model_is_that_of_the_moments():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(8)])
    # The rows of the shards lie in a few directions, those of the driver in all.
    rows = RNG.normal(size=(2048, 4)) @ RNG.normal(size=(4, 32))
    rows = rows.astype("float32")
    sample = RNG.normal(size=(256, 32)).astype("float32")
    options = {"bits": 32, "formats": "low_rank", "verbose": 0}

    def error(data):
        small = compress(model, 3, data=data, **options).model
        expected = model.predict(rows, verbose=0)
        return np.linalg.norm(small.predict(rows, verbose=0) - expected) / np.linalg.norm(expected)

    assert error(Data(sample, moments=gathered(model, rows))) < 0.1 * error(sample)


def test_moments_of_other_models_are_refused():
    wide, narrow = (
        keras.Sequential([keras.Input((size,)), keras.layers.Dense(64, name="dense")])
        for size in (32, 16)
    )
    other = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, name="other")])
    rows = RNG.normal(size=(64, 32)).astype("float32")
    moments = gather_moments(narrow, rows[:, :16])
    with pytest.raises(ValueError, match=r"of 32 numbers for the layer dense\. Received: 16"):
        compress(wide, 2, data=Data(rows, moments=moments))
    with pytest.raises(ValueError, match="only in one of both: dense, other"):
        moments + gather_moments(other, rows)
    with pytest.raises(ValueError, match=r"layer other\. Received: none"):
        compress(other, 2, data=Data(rows, moments=moments))
    with pytest.raises(ValueError, match=r"other sizes.*: dense"):
        moments + gather_moments(wide, rows)
    with pytest.raises(ValueError, match="data=None"):
        gather_moments(wide, None)
    with pytest.raises(ValueError, match="Data that has moments"):
        gather_moments(narrow, Data(rows[:, :16], moments=moments))
    with pytest.raises(TypeError, match="type list"):
        compress(narrow, 2, data=Data(rows[:, :16], moments=[moments]))
