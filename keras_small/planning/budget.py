"""Divides a budget of bytes among the layers of a model so that the errors are small."""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_small.formats.candidates import Candidate


def share_out(
    choices: Mapping[str, Sequence[Candidate]], sensitivity: Mapping[str, float], budget: int
) -> dict[str, Candidate] | None:
    """Chooses a candidate for each layer so that the errors are small and the bytes fit.

    Minimizes `sum_l (g_l e_l)^2` under a budget of bytes, where `e_l` is the candidate's `cost`
    and `g_l` the sensitivity of the model's outputs to errors of the layer: a knapsack problem
    with one choice from each group. Every layer starts at its smallest candidate.
    Then, as long as a larger candidate fits the budget, the change that reduces the sum most per
    byte is made. Returns `None` if the smallest ones do not fit.
    """

    groups = {
        path: _not_dominated(candidates, sensitivity[path]) for path, candidates in choices.items()
    }
    remaining = budget - sum(group[0].candidate.bytes for group in groups.values())
    if remaining < 0:
        return None
    at = dict.fromkeys(groups, 0)
    # The best step of each group is looked for again only once it is made, or no longer fits.
    steps: list[_Step] = []
    for path in groups:
        _push_best(steps, path, groups[path], 0, remaining)
    while steps:
        step = heapq.heappop(steps)
        if step.added <= remaining:
            at[step.path] = step.to
            remaining -= step.added
        _push_best(steps, step.path, groups[step.path], at[step.path], remaining)
    return {path: group[at[path]].candidate for path, group in groups.items()}


class _Weighted(NamedTuple):
    """A candidate and its part of the sum that is minimized."""

    candidate: Candidate
    cost: float


class _Step(NamedTuple):
    """A change of a layer to a larger candidate; the first in order saves most per byte."""

    change_per_byte: float
    path: str
    to: int
    added: int


def _push_best(
    steps: list[_Step], path: str, group: Sequence[_Weighted], at: int, remaining: int
) -> None:
    """Pushes the best step of a group that fits the remaining bytes, if any, onto a heap."""
    now = group[at]
    found = []
    for to, new in enumerate(group[at + 1 :], at + 1):
        added = new.candidate.bytes - now.candidate.bytes
        if added <= remaining:
            found.append(_Step((new.cost - now.cost) / max(added, 1), path, to, added))
    if found:
        heapq.heappush(steps, min(found))


def _not_dominated(candidates: Sequence[Candidate], sensitivity: float) -> list[_Weighted]:
    """Returns the candidates that no smaller one beats, by increasing size and decreasing cost."""
    best: list[_Weighted] = []
    for candidate in sorted(candidates, key=lambda c: (c.bytes, c.cost)):
        cost = (sensitivity * candidate.cost) ** 2
        if not best or cost < best[-1].cost:
            best.append(_Weighted(candidate, cost))
    return best


def within_tolerance(candidates: Sequence[Candidate], tolerance: float) -> Candidate:
    """Returns the smallest candidate whose error is at most `tolerance`."""
    rising = sorted(candidates, key=lambda c: c.bytes)
    return next(c for c in rising if c.error <= tolerance)
