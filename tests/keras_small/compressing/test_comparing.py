"""The error of a small model's outputs, and what entries that are not finite count."""

import keras
import numpy as np
import pytest

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


def test_error_is_the_relative_norm_of_all_rows():
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
