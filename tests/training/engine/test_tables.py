"""What tables of results are made of."""

import keras
import numpy as np
import pytest
from scipy import stats

from keras_tnattn import MaskedAveragePooling1D, TokenEmbedding
from training.engine.tables import half_width, interval, text_probabilities


def test_predictions_do_not_depend_on_padding_and_order():
    rng = np.random.default_rng(0)
    ids = np.zeros((300, 150), "int32")
    for row in ids:
        row[: rng.integers(0, 150)] = rng.integers(1, 9)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            TokenEmbedding(9, 4, mask_zero=True),
            MaskedAveragePooling1D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    expected = keras.ops.convert_to_numpy(model(ids))
    np.testing.assert_allclose(text_probabilities(model, ids), expected, rtol=1e-5)


def test_the_interval_is_that_of_students_t():
    values = [98.0, 97.5, 99.0, 98.25]
    found = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert half_width(values) == pytest.approx((found.high - found.low) / 2)
    # With a test part of half the training part, 1/4 becomes 1/4 + 1/2.
    assert half_width(values, 0.5) == pytest.approx(half_width(values) * 3**0.5)
    assert interval([1.0, 2.0, 3.0], "+.1f", 2 / 3) == f"+2.0 ± {4.302653:.1f}"
    assert interval([1.0], ".2f") == "1.00"
