"""A goal of one's own needs one class; the search that goals share."""

import dataclasses
import sys

import keras
import numpy as np
import pytest

from keras_small import Within, compress
from keras_small.goals.goal import Chosen, Goal

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(64, 48)).astype("float32")


def network():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(8)]
    return keras.Sequential([keras.Input((48,)), *layers])


@dataclasses.dataclass(frozen=True)
class OnlyLargest(Goal):
    """Makes the largest layer as small as possible, and keeps the others."""

    metric: None = None

    @property
    def argument(self):
        return "the largest layer"

    def choose(self, search):
        smallest, choice = search.smallest(), search.unchanged()
        largest = max(choice, key=lambda path: choice[path].bytes)
        choice[largest] = smallest[largest]
        return Chosen(choice, self.why_kept(search.plan.options))

    def why_kept(self, options):
        return "it is not the largest layer"


def test_a_goal_of_ones_own():
    model = network()
    result = compress(model, OnlyLargest(), data=ROWS, verbose=0)
    first, second = result.report.layers
    assert first.bytes_after < first.bytes_before / 8
    assert (second.format, second.reason) == ("kept", "it is not the largest layer")
    empty = keras.Sequential([keras.Input((3,)), keras.layers.LayerNormalization()])
    with pytest.raises(ValueError, match=r"replaced\. Received: the largest layer, and"):
        compress(empty, OnlyLargest(), verbose=0)


class Prepared(OnlyLargest):
    """Computes something before the plan."""

    def prepare(self, survey):
        return survey, {"layers": 2}


def test_what_a_goal_prepares_is_no_promise():
    result = compress(network(), Prepared(), data=ROWS, verbose=0)
    with pytest.raises(ValueError, match="Expected a result with a Promise"):
        result.count_again(lambda inputs: inputs)


@dataclasses.dataclass(frozen=True)
class Searching(Goal):
    """Looks at what the search returns."""

    found: dict
    metric: None = None

    @property
    def argument(self):
        return "a look"

    def choose(self, search):
        plan, tried = search.plan, []

        def accepts(choice):
            tried.append(search.factor(choice))
            return tried[-1] <= 3

        bisected = search.smallest_accepted(accepts)
        self.found.update(
            total=plan.total,
            tried=tried,
            bisected=search.factor(bisected),
            limited=search.factor(search.smallest_accepted(lambda *_: True, 2.0)),
            smallest=search.factor(search.smallest()),
            halves=plan.size(search.share_out(2.0)),
            with_more=plan.size(search.share_out(2.0, unforeseen_bytes=1000)),
            impossible=search.share_out(1e6),
        )
        return Chosen(search.unchanged(), "")

    def why_kept(self, options):
        return ""


def test_the_search():
    found = {}
    compress(network(), Searching(found), data=ROWS, bits=32, verbose=0)
    tried = found["tried"]
    assert tried[0] == pytest.approx(found["smallest"], rel=1e-6)
    assert len(tried) == 7
    assert 2.5 < found["bisected"] == max(factor for factor in tried if factor <= 3)
    assert 2 <= found["limited"] < 2.5
    assert 0.4 * found["total"] < found["halves"] <= found["total"] / 2
    assert found["with_more"] <= found["total"] / 2 - 1000
    assert found["impossible"] is None


class Recorded(Within):
    """Within a tolerance, and notes what it chose."""

    def choose(self, search):
        chosen = super().choose(search)
        CHOSEN.append((chosen.choice, search.plan.choices))
        return chosen


CHOSEN = []


def test_within_takes_the_smallest_candidates_of_estimated_errors_up_to_the_tolerance():
    CHOSEN.clear()
    compress(network(), Recorded(0.02), data=ROWS, verbose=0)
    ((choice, candidates),) = CHOSEN
    assert any(not candidate.keeps_layer for candidate in choice.values())
    for path, candidate in choice.items():
        assert candidate.error <= 0.02
        allowed = [c.bytes for c in candidates[path] if c.error <= 0.02]
        assert candidate.bytes == min(allowed)


def test_a_picture_without_matplotlib_names_the_extra(monkeypatch):
    report = compress(network(), bits=4, verbose=0).report
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"Matplotlib.*\[train\]"):
        report.plot("picture.png")
