"""Measures the sensitivity of a model's outputs to changes of its layers' outputs.

Noise `n` of size `s` on the outputs of a layer changes the model's outputs by `J n`, with the
Jacobian `J`, and so by `s |J|` in the mean. For random signs `v` the mean of the squares of the
gradient `J^T v` of `v^T f` is `|J|^2`, of all layers at once: one run back through the model takes
the place of a run for each layer. Where a model is far from linear gradients mislead: of an output
that is clipped, say, they are 0. So noise is really added, to all layers of about the same
sensitivity at once, and if it changes more than expected, theirs grow.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.asked.data import CalibrationData, number_of_rows, spread_batches
from keras_small.asked.progress import tell, with_bar
from keras_small.survey.calibration import Statistics
from keras_small.survey.changes import ADDED_PROBABILITY, Gradients, Noise, has_response
from keras_small.survey.errors import low_rank_table
from keras_small.survey.running import Runner, are_probabilities

# Minimum rows, and entries of outputs, that measure a sensitivity, if the data have as many.
_MINIMUM_ROWS = 16
_MINIMUM_OUTPUTS = 256
# Minimum rows, each with a direction of its own, that measure a response.
_RESPONSE_ROWS = 1024
# The factor between the sensitivities of two groups, and the smallest share of the largest one.
_GROUP_FACTOR = 4
_SMALLEST_SHARE = 4**-4
# A change that is larger than expected by this factor is none of chance.
_UNEXPECTED_FACTOR = 1.5
# The rank of the tables that are compared, as a share of the number of features.
_RANK_SHARE = 0.375
# The response is used only if it cuts the change of the outputs to this share.
_USEFUL_SHARE = 0.8


def measure_sensitivity(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    data: CalibrationData,
    statistics: Mapping[str, Statistics],
    outputs: Sequence[list[np.ndarray]],
) -> None:
    """Measures for each layer how much noise on its outputs changes the model's outputs.

    The noise is before the activation if the layer has one. Layers whose errors hardly change the
    model's outputs get a smaller share of the budget. For probabilities, changes of their
    logarithms count, because a model that is sure of its training data hardly changes the
    probabilities themselves. Where a model has no gradients, noise is added to one layer after the
    other.

    For embeddings it also measures the response of the model's outputs to directions of the rows.
    The response of a model that is far from linear may mislead, so it is only noted if a table of
    low rank that heeds it changes the outputs clearly less than one that does not.
    """
    batches = data.small_batches
    rows = number_of_rows(batches[0])
    entries = max(1, sum(x.size for x in outputs[0]) // number_of_rows(data.batches[0]))
    count = math.ceil(max(_MINIMUM_ROWS, _MINIMUM_OUTPUTS / entries) / rows)
    count = min(len(batches), count)
    chosen = [batches[n * len(batches) // count] for n in range(count)]
    tables = [x for x in layers.values() if has_response(x)]
    repeats = math.ceil((_RESPONSE_ROWS if tables else _MINIMUM_ROWS) / (rows * count))
    in_logs = [are_probabilities(x) for x in outputs[0]]
    measured = Gradients(model, layers, in_logs, runs=repeats * count)
    noise = Noise(model, layers, in_logs, chosen[0])
    sensitivities = _by_gradients(measured, chosen * repeats)
    if any(sensitivities.values()):
        _raise_where_noise_changes_more(sensitivities, noise)
    else:
        tell("there are no gradients: noise is added to one layer after the other")
        sensitivities = {path: noise.change([path]) for path in layers}
    largest = max(sensitivities.values(), default=0.0)
    for path, sensitivity in sensitivities.items():
        statistics[path].sensitivity = max(sensitivity, 1e-3 * largest) or 1.0
    if measured.responses:
        known = spread_batches(list(zip(data.batches, outputs, strict=False)))
    for path, response in measured.responses.items():
        layer = layers[path]
        # A table with a moment returns logits, of other directions.
        if statistics[path].second_moment is None:
            _note_response(model, layer, known, statistics[path], response)


def _by_gradients(measured: Gradients, batches: Sequence[Any]) -> dict[str, float]:
    """Returns the sensitivities by gradients; none if the model has no gradients."""
    try:
        for batch in with_bar(batches, [1.0] * len(batches)):
            measured.add(batch)
    except MemoryError:
        raise
    except Exception:  # of what has no gradient, or what a layer's own code raises
        measured.responses.clear()
        return {}
    return measured.sensitivities


def _raise_where_noise_changes_more(sensitivities: dict[str, float], noise: Noise) -> None:
    """Raises sensitivities that are too small for the change that noise on the layers causes."""
    smallest = 1e-3 * max(sensitivities.values(), default=0.0)
    for group in _groups(sensitivities):
        expected = math.hypot(*(sensitivities[path] for path in group))
        factor = noise.change(group) / (expected or smallest)
        if factor > _UNEXPECTED_FACTOR:
            for path in group:
                sensitivities[path] = factor * (sensitivities[path] or smallest)


def _groups(sensitivities: Mapping[str, float]) -> list[list[str]]:
    """Returns the layers in groups of about the same sensitivity."""
    largest = max(sensitivities.values(), default=0.0)
    groups: dict[int, list[str]] = {}
    for path, sensitivity in sensitivities.items():
        share = max(sensitivity / (largest or 1.0), _SMALLEST_SHARE)
        groups.setdefault(round(math.log(share, _GROUP_FACTOR)), []).append(path)
    return list(groups.values())


def _note_response(
    model: keras.layers.Layer,
    layer: keras.layers.Embedding,
    known: Sequence[tuple[Any, list[np.ndarray]]],
    note: Statistics,
    response: np.ndarray,
) -> None:
    """Notes a response to directions of an embedding's rows if it helps."""
    response = response.astype("float64")
    if not np.trace(response) > 0:
        return
    response *= len(response) / np.trace(response)
    approximation = [
        low_rank_table(layer, dataclasses.replace(note, response=x), _RANK_SHARE)
        for x in (None, response)
    ]
    without, heeding = _errors(model, known, layer, approximation)
    if heeding <= _USEFUL_SHARE * without:
        note.response = response


def _errors(
    model: keras.layers.Layer,
    known: Sequence[tuple[Any, list[np.ndarray]]],
    layer: keras.layers.Embedding,
    tables: Sequence[np.ndarray],
) -> np.ndarray:
    """Returns how much known outputs of batches change with each table of an embedding."""
    squares = np.zeros(len(tables))
    table = layer.get_weights()
    run = Runner(model, runs=len(tables) * len(known))
    for batch, outputs in known:
        change, _ = change_of_outputs(functools.partial(run, batch), outputs)
        for i, approximation in enumerate(tables):
            layer.set_weights([approximation, *table[1:]])
            squares[i] += np.square(change()).sum()
            layer.set_weights(table)
    return np.sqrt(squares)


def change_of_outputs(
    run: Callable[..., list[np.ndarray]], outputs: Sequence[np.ndarray]
) -> tuple[Callable[[], np.ndarray], float]:
    """Returns a function that computes how much the outputs have changed, and their size.

    Args:
        run: Function that returns the outputs.
        outputs: The outputs before.
    """
    in_logs = [are_probabilities(x) for x in outputs]
    old = _comparable(outputs, in_logs)
    # Logits of masked classes are not finite.
    finite = [np.isfinite(x) for x in old]

    def change() -> np.ndarray:
        new = _comparable(run(), in_logs)
        differences = [
            np.subtract(a, b, out=np.zeros_like(a), where=where & np.isfinite(a)).ravel()
            for a, b, where in zip(new, old, finite, strict=True)
        ]
        return np.concatenate(differences)

    squares = (np.square(x[where]).sum() for x, where in zip(old, finite, strict=True))
    return change, float(np.sqrt(sum(squares)))


def _comparable(outputs: Sequence[np.ndarray], in_logs: Sequence[bool]) -> list[np.ndarray]:
    """Returns the outputs in float64; where asked for, their logarithms less their mean."""
    return [
        _centered_log(x) if in_log else x.astype("float64")
        for x, in_log in zip(outputs, in_logs, strict=True)
    ]


def _centered_log(probabilities: np.ndarray) -> np.ndarray:
    # With noise they may be negative, if no activation made them probabilities.
    logs = np.log(np.maximum(probabilities.astype("float64"), 0) + ADDED_PROBABILITY)
    return logs - logs.mean(axis=-1, keepdims=True)
