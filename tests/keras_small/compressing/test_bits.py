"""Without `bits`, integers are the default, and as good as the best number of bits."""

import keras
import numpy as np
import pytest
from compressing import error_of
from conformance import to_numpy
from keras import layers
from slow_cases import slow_but

from keras_small import Keeping, Within, compress

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(128, 32)).astype("float32")


@pytest.fixture(scope="module")
def model():
    """Two layers of full rank, and two of nearly low rank that integers alone store badly."""
    keras.utils.set_random_seed(0)
    parts = (layers.Dense(96, "relu") for _ in range(3))
    model = keras.Sequential([keras.Input((32,)), *parts, layers.Dense(8)])
    for layer in model.layers[1:3]:
        near = RNG.normal(size=(96, 6)) @ RNG.normal(size=(6, 96)) / 24
        noise = 0.01 * RNG.normal(size=near.shape)
        layer.set_weights([(near + noise).astype("float32"), np.zeros(96, "float32")])
    return model


def error(model, goal=None, **options):
    result = compress(model, goal, data=ROWS, verbose=0, **options)
    return error_of(model, result.model, ROWS), result.report


@pytest.mark.parametrize(("target", "bits"), slow_but([(9.0, 4)], [(4.0, 8), (9.0, 4)]))
def test_the_default_keeps_more_than_floats_and_as_much_as_other_bits(model, target, bits, caplog):
    caplog.set_level("INFO", "keras_small")
    chosen, report = error(model, target)
    assert "first each layer as integers" in caplog.messages
    assert any("miss the target: now other" in line for line in caplog.messages) == (target > 8)
    assert report.ratio >= target
    assert chosen < 0.5 * error(model, target, bits=32)[0]
    assert chosen < 1.3 * error(model, target, bits=bits)[0]
    assert "Integers of 2 bits and more have a scale for each group" in str(report)
    assert "Floats alone: bits=32." in str(report)


def test_floats_stay_one_argument_away(model):
    _, report = error(model, 2.0, bits=32)
    assert {row.bits for row in report.layers} == {32}
    assert "Integers of" not in str(report)


def test_other_goals_have_integers_too(model):
    assert min(row.bits for row in error(model, Within(0.05))[1].layers) < 32

    def metric(small):
        return -np.linalg.norm(to_numpy(small(ROWS)) - to_numpy(model(ROWS)))

    _, report = error(model, Keeping(metric, 5.0, 4.0))
    assert min(row.bits for row in report.layers) < 32


def test_without_a_goal_nothing_is_replaced(model):
    reports = [error(model, bits=bits)[1] for bits in (None, 32)]
    assert {row.format for report in reports for row in report.layers} == {"kept"}
    chosen, floats = (report.layers[0].curve[-1][0] for report in reports)
    assert chosen < floats
