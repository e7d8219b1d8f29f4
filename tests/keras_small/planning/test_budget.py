"""The bytes are shared out to the last one, and to those that need them."""

import dataclasses

import numpy as np
import pytest

from keras_small.formats.candidates import Candidate
from keras_small.planning.budget import share_out, within_tolerance


def candidate(size, error, **options):
    return Candidate("low_rank", (size,), None, size, error, 0, lambda: None, **options)


CHOICES = {name: [candidate(10, 0.5), candidate(30, 0.1)] for name in ("a", "b")}


def sizes(sensitivity, budget, choices=CHOICES):
    choice = share_out(choices, sensitivity, budget)
    return choice and {name: chosen.bytes for name, chosen in choice.items()}


def test_a_budget_is_used_to_its_last_byte():
    alike = {"a": 1.0, "b": 1.0}
    assert sizes(alike, 60) == {"a": 30, "b": 30}
    assert sorted(sizes(alike, 59).values()) == [10, 30]
    assert sizes(alike, 39) == sizes(alike, 20) == {"a": 10, "b": 10}
    assert sizes(alike, 19) is None


def test_the_more_sensitive_layer_gets_the_bytes():
    assert sizes({"a": 1.0, "b": 2.0}, 45) == {"a": 10, "b": 30}
    assert sizes({"a": 2.0, "b": 1.0}, 45) == {"a": 30, "b": 10}


def test_errors_count_by_the_square_of_error_times_sensitivity():
    group = {name: [candidate(10, e), candidate(30, 0.0)] for name, e in (("a", 0.4), ("b", 0.7))}
    assert sizes({"a": 2.0, "b": 1.0}, 45, group) == {"a": 30, "b": 10}  # 0.8 is more than 0.7
    assert sizes({"a": 1.7, "b": 1.0}, 45, group) == {"a": 10, "b": 30}
    group["a"] = [candidate(10, 1.0), candidate(30, 0.7)]  # its square falls by 0.51, not by 0.3
    assert sizes({"a": 1.0, "b": 1.0}, 45, group) == {"a": 30, "b": 10}


def test_each_byte_counts():
    steps = {"a": (40, 0.0), "b": (20, 0.4), "c": (20, 0.4)}  # that of "a" alone reduces most
    group = {name: [candidate(10, 1.0), candidate(*step)] for name, step in steps.items()}
    assert sizes(dict.fromkeys(group, 1.0), 60, group) == {"a": 10, "b": 20, "c": 20}


def test_what_a_smaller_one_beats_is_not_chosen():
    worse = {"a": [*CHOICES["a"], candidate(40, 0.2)]}
    assert sizes({"a": 1.0}, 100, worse) == {"a": 30}


def slowly_shared_out(choices, sensitivity, budget):
    """Looks at all steps of all layers before each, and makes the one that saves most per byte."""

    def cost(path, chosen):
        return (sensitivity[path] * chosen.cost) ** 2

    def steps():
        for path, group in choices.items():
            for new in group:
                added = new.bytes - at[path].bytes
                saved = cost(path, at[path]) - cost(path, new)
                if 0 < added <= left and saved > 0:
                    yield saved / added, path, new

    at = {path: min(group, key=lambda c: (c.bytes, c.cost)) for path, group in choices.items()}
    left = budget - sum(chosen.bytes for chosen in at.values())
    while left >= 0 and (found := max(steps(), key=lambda step: step[0], default=None)):
        left -= found[2].bytes - at[found[1]].bytes
        at[found[1]] = found[2]
    return None if left < 0 else {path: chosen.bytes for path, chosen in at.items()}


@pytest.mark.parametrize("seed", range(20))
def test_each_step_is_the_best_that_fits(seed):
    rng = np.random.default_rng(seed)
    choices = {
        name: [candidate(int(rng.integers(1, 200)), rng.random()) for _ in range(12)]
        for name in "abcdefgh"
    }
    sensitivity = {name: rng.random() for name in choices}
    for budget in (100, 300, 600, 900, 2000):
        assert sizes(sensitivity, budget, choices) == slowly_shared_out(
            choices, sensitivity, budget
        )


def test_the_tolerance_is_one_of_errors_before_they_are_improved():
    group = [candidate(n, e, improved_error=e / 9) for n, e in ((10, 0.5), (20, 0.3), (30, 0.1))]
    assert within_tolerance(group, 0.3).bytes == 20
    assert within_tolerance(group, 0.29).bytes == 30
    shuffled = [dataclasses.replace(c) for c in reversed(group)]
    assert within_tolerance(shuffled, 1.0).bytes == 10
