"""Measures the errors of candidates for a table by the outputs of the model that reads it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.formats.candidates import Candidate
from keras_small.survey.running import Runner, outputs_of
from keras_small.survey.sensitivity import change_of_outputs

# Maximum candidates of a format that take the place of the table.
_MEASURED_CANDIDATES = 6


def measure_tables(
    model: keras.layers.Layer,
    layer: keras.layers.Embedding,
    batch: Any,
    sensitivity: float,
    candidates: Sequence[Candidate],
) -> list[Candidate]:
    """Returns the candidates for a table, largest first, with measured costs.

    Noise tells too little of tables: their errors are large, and rounding makes rows shorter. Some
    candidates of each format take the place of the table for a run on the batch; the others lie
    between them.
    """
    known = outputs_of(model, batch)
    run = Runner(model, runs=2 * _MEASURED_CANDIDATES)
    change, size = change_of_outputs(functools.partial(run, batch), known)
    smaller = sorted((c for c in candidates if c.error > 0), key=lambda c: c.error)
    if len(smaller) < 2 or not size > 0:
        return list(candidates)
    ids = np.arange(layer.input_dim)
    weights = layer.get_weights()

    def cost_of(candidate: Candidate) -> float:
        order = candidate.id_order()
        new_ids = ids if order is None else np.argsort(order)
        table = ops.convert_to_numpy(candidate.finish(candidate.make())(new_ids))
        layer.set_weights([table, *weights[1:]])
        try:
            return float(np.linalg.norm(change()) / (size * sensitivity))
        finally:
            layer.set_weights(weights)

    measured = [candidate for candidate in candidates if candidate.error <= 0]
    for name in dict.fromkeys(candidate.format for candidate in smaller):
        group = [candidate for candidate in smaller if candidate.format == name]
        places = np.linspace(0, len(group) - 1, min(_MEASURED_CANDIDATES, len(group))).astype(int)
        chosen = [group[place] for place in places]
        errors = [candidate.error for candidate in chosen]
        costs = [cost_of(candidate) for candidate in chosen]
        for candidate in group:
            cost = float(np.interp(candidate.error, errors, costs))
            measured.append(dataclasses.replace(candidate, weighted_error=cost))
    return sorted(measured, key=lambda c: (-c.bytes, c.error))
