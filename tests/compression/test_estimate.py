"""The cost that is told before a compression starts."""

import time

import keras
import pytest

from keras_tnattn.compression.estimate import expected_seconds, multiplications, readable


def built(layer, shape):
    layer.build(shape)
    return layer


def test_runs_of_the_model_count_by_layers_features_and_batches():
    layers = {
        "dense": built(keras.layers.Dense(4), (None, 4)),
        "table": built(keras.layers.Embedding(9, 6), None),
    }
    calls = []

    def run():
        calls.append(None)
        time.sleep(0.02)

    # Two layers, six features and, for each of three batches, two runs and three of the table.
    runs = 2 + 6 + 3 * (2 + 3)
    assert expected_seconds(layers, False, run, 3) >= runs * 0.02
    assert len(calls) == 2  # one is measured


def test_large_tables_cost_the_square_of_their_rows():
    small, large = (built(keras.layers.Embedding(rows, 4), None) for rows in (400, 40_000))
    assert multiplications({"table": small}, True) == 40 * 400 * 4 * 4
    svd, moves = 40 * 40_000 * 4 * 4, 18 * 40_000**2 * 4
    assert multiplications({"table": large}, True) == svd + moves
    assert multiplications({"table": large}, False) == 8 * 40_000 * 4 * 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 second"), (89, "89 seconds"), (91, "2 minutes"), (5401, "1.5 hours")],
)
def test_durations(seconds, text):
    assert readable(seconds) == text
