"""Tables of what a translator's attentions computed for a sentence: moments, power laws."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.runs.counter import Counter
from keras_tnattn_train.system.files import write_table

LEARNED = ("P", "a", "b_a")  # the same for all sentences
INFERRED = ("A_LM", "G_LM")  # computed for a sentence
DESCRIBED = (*LEARNED, *INFERRED)
FITTED = (*DESCRIBED, "E_LM")
# For each block, an array of each matrix, whose first axis is that of the heads.
Outputs = dict[str, dict[str, np.ndarray]]


def fit_power_laws(
    computed: Outputs, heads: Sequence[int], bootstraps: int, seed: int
) -> dict[str, dict[str, list[Any]]]:
    """Returns by block and matrix the fits of the chosen heads; shows how many are done."""
    from keras_tnattn_train.translate.power_laws import fit_power_law

    counter = Counter("tests of power laws")
    total = sum(name in outputs for outputs in computed.values() for name in FITTED) * len(heads)
    done = 0
    fits: dict[str, dict[str, list[Any]]] = {}
    for block, outputs in computed.items():
        fits[block] = {name: [] for name in FITTED if name in outputs}
        for name, results in fits[block].items():
            for head in heads:
                entries = outputs[name][head - 1]
                results.append(fit_power_law(entries, bootstraps, seed))
                done += 1
                counter.show(done, total)
    counter.close()
    return fits


def write_distributions(computed: Outputs, heads: Sequence[int], path: Path) -> None:
    """Writes a row for each block, head and matrix; no file if there is no such matrix."""
    rows = [
        {"block": block, "head": head, "matrix": name, **_describe(outputs[name][head - 1])}
        for block, outputs in computed.items()
        for name in DESCRIBED
        if name in outputs
        for head in heads
    ]
    if rows:
        write_table(path, rows)


def write_power_laws(
    fits: dict[str, dict[str, list[Any]]], heads: Sequence[int], path: Path
) -> None:
    rows = [
        {"block": block, "head": head, "matrix": name, **fit.results}
        for block, matrices in fits.items()
        for name, results in matrices.items()
        for head, fit in zip(heads, results, strict=True)
    ]
    write_table(path, rows)


def _describe(matrix: np.ndarray) -> dict[str, float]:
    from keras_tnattn_train.translate.distributions import describe, smallest_eigenvalue

    return {**describe(matrix), "smallest_eigenvalue": smallest_eigenvalue(matrix)}
