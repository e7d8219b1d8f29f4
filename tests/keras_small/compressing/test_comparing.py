"""The error of a small model's outputs, and what entries that are not finite count."""

import keras
import numpy as np
import pytest
from compressing import compress

from keras_small.survey import comparing
from keras_small.survey.comparing import Comparison
from keras_small.survey.inventory import Inventory

ROWS = np.array([[3.0, 4.0], [0.0, 12.0]], "float32")


def model_of(outputs):
    """Returns a model that answers the rows of `outputs`, by number."""
    table = keras.layers.Embedding(*outputs.shape)
    ids = keras.Input((), dtype="int32")
    model = keras.Model(ids, table(ids))
    table.set_weights([outputs])
    return model


def error_of(expected, actual):
    comparison = Comparison(Inventory.of(model_of(expected)), None, None)
    ids = np.arange(len(expected), dtype="int32")
    return comparison.error_of(model_of(actual), [ids[:1], ids[1:]])


@pytest.mark.parametrize("at_once", [1, 3, 2**20])
def test_error_is_the_relative_norm_of_all_rows(at_once, monkeypatch):
    monkeypatch.setattr(comparing, "_ENTRIES_AT_ONCE", at_once)
    actual = ROWS + np.array([[1.0, 0.0], [0.0, 2.0]], "float32")
    error, rows = error_of(ROWS, actual)
    assert error == pytest.approx((5 / 169) ** 0.5)
    assert rows == 2


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_entries_that_are_not_finite_in_both_do_not_count(value):
    expected, actual = ROWS.copy(), ROWS + 1
    expected[0, 0] = actual[0, 0] = value
    assert error_of(expected, actual)[0] == pytest.approx((3 / 160) ** 0.5)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [(-np.inf, 0.0), (0.0, -np.inf), (-np.inf, np.inf), (np.nan, 1.0), (1.0, np.nan)],
)
def test_entries_that_are_not_finite_in_one_are_an_infinite_error(expected, actual):
    original, small = ROWS.copy(), ROWS.copy()
    original[1, 0], small[1, 0] = expected, actual
    assert error_of(original, small) == (float("inf"), 2)


@pytest.mark.parametrize(("kept", "runs"), [(100, 2), (3, 3)])
def test_small_outputs_of_the_original_are_kept(kept, runs, monkeypatch):
    monkeypatch.setattr(comparing, "_KEPT_OUTPUTS", kept)
    comparison = Comparison(Inventory.of(model_of(ROWS)), None, None)
    seen = []
    run = comparison.run_original
    comparison.run_original = lambda batch: seen.append(batch) or run(batch)
    for numbers in ([0], [1], [1]):
        ids = np.array(numbers, "int32")
        assert comparison.error_of(model_of(ROWS), [ids]) == (0.0, 1)
    assert len(seen) == runs


def test_batches_are_told_apart():
    arrays = [np.arange(4, dtype="int32"), np.arange(4), np.zeros(4), np.zeros((2, 2))]
    arrays += [np.array([text], object) for text in ("a", "b")]
    assert len({comparing._digest(array) for array in arrays}) == len(arrays)
    assert comparing._digest(np.zeros((4, 4))[::2]) == comparing._digest(np.zeros((2, 4)))


def test_compress_does_not_run_the_original_again_on_what_it_observed():
    seen = []

    class Counting(keras.layers.Layer):
        def call(self, inputs):
            seen.append(self)
            return inputs

    model = keras.Sequential([keras.Input((32,)), Counting(), keras.layers.Dense(32)])
    seen.clear()
    data = np.random.default_rng(0).normal(size=(64, 32)).astype("float32")
    result = compress(model, bits=4, data=data, verbose=0)
    assert 0 < result.report.error < 0.2
    # When the copy is compared with it.
    assert seen.count(model.layers[0]) == 1
