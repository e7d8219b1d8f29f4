"""The time of a compression is estimated before it starts."""

import time

import keras
import pytest

from keras_small.planning import estimate
from keras_small.planning.estimate import expected_seconds, multiplications, readable


def built(layer, shape):
    layer.build(shape)
    return layer


def test_runs_of_the_model_count_by_batches():
    calls = []

    def run():
        calls.append(None)
        time.sleep(0.02)

    layers = {"dense": built(keras.layers.Dense(4), (None, 4))}
    assert expected_seconds(layers, False, run, 3) >= 3 * estimate._PASSES * 0.02
    assert len(calls) == 2  # one is measured


@pytest.mark.parametrize(("backend", "programs"), [("tensorflow", 8), ("jax", 50)])
def test_some_functions_are_compiled(monkeypatch, backend, programs):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    seconds = iter([5.0, 1.0, 0.0])
    monkeypatch.setattr(estimate.timeit, "timeit", lambda call, number: next(seconds))
    of_runs = 2 * estimate._PASSES * 1.0
    assert expected_seconds({}, False, list, 2) == of_runs + 4 * programs


def test_large_tables_cost_their_rows_times_those_of_a_block():
    def products(rows, *arguments):
        return multiplications(built(keras.layers.Embedding(rows, 4), None), *arguments)

    assert products(400, True) == 40 * 400 * 4 * 4  # too few rows for tensor trains
    svd, trains = 40 * 2500 * 4 * 4, 2500 * 4 * (4 * 2500 + 2**14)
    assert products(2500, True) == svd + trains / 2
    assert products(2500, True, 8) == svd + (trains + 2**17 * 10_000) / 2
    assert products(40_000, True) == 40 * 40_000 * 4 * 4 + 40_000 * 4 * (4 * 2**14 + 2**14) / 2
    # Of this size the ranks are bounded: sqrt(4e6) groups by Gram matrices of at most 2^27 numbers.
    cores = 2 * (2**27 * 2000) ** 0.5
    rounded = products(1_000_000, True, 4) - products(1_000_000, True)
    assert rounded == pytest.approx(2**17 * cores / 2)
    assert products(40_000, False) == 0


def test_heads_cost_what_their_matrix_does():
    dense = built(keras.layers.Dense(48), (None, 5, 32))
    heads = built(keras.layers.EinsumDense("abc,cde->abde", (None, 6, 8)), (None, 5, 32))
    for factored in (False, True):
        assert multiplications(heads, factored) == multiplications(dense, factored)


def test_kernels_cost_the_cube_of_their_inputs():
    layer = built(keras.layers.Conv2D(5, 3), (None, 8, 8, 2))
    integers = 4 * 18**3 + 2 * 18 * 18 * 5
    assert multiplications(layer, False) == integers
    assert multiplications(layer, True) == integers + 40 * 18 * 5 * 5 + 3 * 18**3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 second"), (89, "89 seconds"), (91, "2 minutes"), (5401, "1.5 hours")],
)
def test_durations(seconds, text):
    assert readable(seconds) == text
