"""Divides a budget of bytes among the layers of a model so that the errors are small."""

from collections.abc import Callable, Mapping, Sequence

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

    def weighted_cost(path: str, candidate: Candidate) -> float:
        return (sensitivity[path] * candidate.cost) ** 2

    groups = {
        path: _not_dominated(path, candidates, weighted_cost)
        for path, candidates in choices.items()
    }
    at = dict.fromkeys(groups, 0)
    total = sum(group[0].bytes for group in groups.values())
    if total > budget:
        return None
    while True:
        steps = []
        for path, group in groups.items():
            for i in range(at[path] + 1, len(group)):
                added = group[i].bytes - group[at[path]].bytes
                if total + added <= budget:
                    saved = weighted_cost(path, group[at[path]]) - weighted_cost(path, group[i])
                    steps.append((saved / max(added, 1), path, i, added))
        if not steps:
            return {path: group[at[path]] for path, group in groups.items()}
        _, path, i, added = max(steps)
        at[path] = i
        total += added


def _not_dominated(
    path: str, candidates: Sequence[Candidate], weighted_cost: Callable[[str, Candidate], float]
) -> list[Candidate]:
    """Returns the candidates that no smaller one beats, by increasing size and decreasing cost."""
    best: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.bytes, c.cost)):
        if not best or weighted_cost(path, candidate) < weighted_cost(path, best[-1]):
            best.append(candidate)
    return best


def within_tolerance(candidates: Sequence[Candidate], tolerance: float) -> Candidate:
    """Returns the smallest candidate whose error is at most `tolerance`."""
    rising = sorted(candidates, key=lambda c: c.bytes)
    return next(c for c in rising if c.error <= tolerance)
