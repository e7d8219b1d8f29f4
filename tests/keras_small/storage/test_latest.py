"""Results are remembered for the time of a compression, and no longer."""

import gc
import weakref

import numpy as np

from keras_small.storage import latest
from keras_small.storage.latest import remember_latest, remembering


class Result:
    pass


def test_the_latest_result_is_remembered_until_the_end():
    calls = []

    @remember_latest
    def compute(array, bits):
        calls.append(bits)
        return Result()

    array = np.ones(3)
    with remembering():
        first = compute(array, 4)
        assert compute(array, 4) is first
        assert compute(array, 8) is not first
        assert compute(array, 4) is not first  # only the latest one is kept
        assert compute(np.ones(3), 4) is not first
    assert calls == [4, 8, 4, 4]
    assert compute(array, 4) is not compute(array, 4)


def test_nothing_is_kept_afterwards():
    @remember_latest
    def compute(array):
        return Result()

    with remembering():
        kept = weakref.ref(compute(np.ones(3)))
        gc.collect()
        assert kept() is not None
    gc.collect()
    assert kept() is None


def test_large_results_are_not_kept(monkeypatch):
    monkeypatch.setattr(latest, "_MAXIMUM_BYTES", 800)

    @latest.remember_latest
    def zeros(size):
        return np.zeros(size), "zeros"

    with remembering():
        assert zeros(100) is zeros(100)
        assert zeros(101) is not zeros(101)
