"""Measures the sensitivity of a model's outputs to changes of its layers' outputs."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.batches import are_probabilities, as_rows, outputs_of, some_batches
from keras_small.survey.calibration import (
    Call,
    Statistics,
    map_floats,
    reason_to_keep,
    watch_calls,
    with_activation,
)
from keras_small.survey.errors import low_rank_table
from keras_small.survey.kinds import has_kernel, is_table
from keras_small.survey.repeated_calls import Runner

# The size, relative to a layer's outputs, of the changes that are made.
_NOISE_SHARE = 0.05
# Minimum entries of outputs that measure a sensitivity, if the data have as many.
_MINIMUM_OUTPUTS = 256
# For embeddings with more features all directions of the rows count alike.
MAXIMUM_FEATURES = 256
# Maximum entries of all outputs together that are compared, chosen at random.
_COMPARED_ENTRIES = 2**16
# Minimum rows of an output to compare; one row might be padding.
_COMPARED_ROWS = 16
# The rank of the tables that are compared, as a share of the number of features.
_RANK_SHARE = 0.375
# The response is used only if it cuts the change of the outputs to this share.
_USEFUL_SHARE = 0.8
# Added to each probability before its logarithm is taken.
_ADDED_PROBABILITY = 1e-7


def measure_sensitivity(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batches: Sequence[Any],
    statistics: Mapping[str, Statistics],
    outputs: Sequence[list[np.ndarray]],
) -> None:
    """Measures for each layer how much noise on its outputs changes the model's outputs.

    Adds noise of 5 % of the outputs' size to one layer at a time, before the activation if it has
    one. Layers whose errors hardly change the model's outputs get a smaller share of the budget.
    For probabilities, changes of their logarithms count, because a model that is sure of its
    training data hardly changes the probabilities themselves. One batch is enough for a model of
    many outputs; of a few numbers it would tell little.
    """
    known = list(zip(batches, outputs, strict=False))
    count = min(len(known), math.ceil(_MINIMUM_OUTPUTS / sum(x.size for x in outputs[0])))
    chosen = [known[n * len(known) // count] for n in range(count)]
    changes, sizes = zip(
        *(change_of_outputs(functools.partial(outputs_of, model, x), y) for x, y in chosen),
        strict=True,
    )
    size = math.hypot(*sizes)
    for path, layer in layers.items():
        try:
            with _add_noise(layer):
                changed = math.hypot(*(np.linalg.norm(change()) for change in changes))
        except Exception as error:
            statistics[path].failure = reason_to_keep(error)
            changed = 0.0
        statistics[path].sensitivity = float(changed / (_NOISE_SHARE * size)) if size > 0 else 1.0
    largest = max((statistics[path].sensitivity for path in layers), default=0.0)
    for path in layers:
        statistics[path].sensitivity = max(statistics[path].sensitivity, 1e-3 * largest) or 1.0


def measure_responses(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batches: Sequence[Any],
    statistics: Mapping[str, Statistics],
    outputs: Sequence[list[np.ndarray]],
) -> None:
    """Measures the response of the model's outputs to directions of each embedding's rows.

    Changes one feature at a time, by the same amount but a random sign for each token, and compares
    the changes of the model's outputs: entry `(i, j)` of the response is the product of the changes
    for the features `i` and `j`. This takes one run over the first batch for each feature. The
    response of a model that is far from linear may mislead, so it is only noted if a table of low
    rank that heeds it changes the outputs clearly less than one that does not.
    """
    for path, layer in layers.items():
        if not is_table(layer) or layer.output_dim > MAXIMUM_FEATURES:
            continue
        if statistics[path].moment is not None:  # it also returns logits, of other directions
            continue
        stacked = _changes_by_feature(model, layer, batches[0], outputs[0])
        response = stacked @ stacked.T
        if not np.trace(response) > 0:
            continue
        response *= len(response) / np.trace(response)
        approximation = [
            low_rank_table(layer, dataclasses.replace(statistics[path], response=x), _RANK_SHARE)
            for x in (None, response)
        ]
        without, heeding = _errors(model, batches, outputs, layer, approximation)
        if heeding <= _USEFUL_SHARE * without:
            statistics[path].response = response


def _errors(
    model: keras.layers.Layer,
    batches: Sequence[Any],
    outputs: Sequence[list[np.ndarray]],
    layer: keras.layers.Embedding,
    tables: Sequence[np.ndarray],
) -> np.ndarray:
    """Returns how much the outputs change on about 256 rows with each table of an embedding."""
    squares = np.zeros(len(tables))
    table = layer.get_weights()
    chosen = some_batches(list(zip(batches, outputs, strict=False)))
    run = Runner(model, runs=len(tables) * len(chosen))
    for batch, known in chosen:
        change, _ = change_of_outputs(functools.partial(run, batch), known)
        for i, approximation in enumerate(tables):
            layer.set_weights([approximation, *table[1:]])
            squares[i] += np.square(change()).sum()
            layer.set_weights(table)
    return np.sqrt(squares)


def change_of_outputs(
    run: Callable[..., list[np.ndarray]], outputs: Sequence[np.ndarray], entries: int | None = None
) -> tuple[Callable[..., np.ndarray], float]:
    """Returns a function that computes how much the outputs have changed, and their size.

    Args:
        run: Function that returns the outputs; the arguments are those of what is returned.
        outputs: The outputs before.
        entries: Maximum entries of all outputs together to compare. Default: all.
    """
    in_logs = [are_probabilities(x) for x in outputs]
    share = None if entries is None else entries // len(outputs)
    chosen = [_some_entries(as_rows(x).shape, share) for x in outputs]

    def comparable(outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = [as_rows(x)[index] for x, (index, _) in zip(outputs, chosen, strict=True)]
        compared = _comparable(rows, in_logs)
        return [x[:, index] for x, (_, index) in zip(compared, chosen, strict=True)]

    old = comparable(outputs)
    # Logits of masked classes are not finite.
    finite = [np.isfinite(x) for x in old]

    def change(*args: Any) -> np.ndarray:
        new = comparable(run(*args))
        differences = [
            np.subtract(a, b, out=np.zeros_like(a), where=where & np.isfinite(a)).ravel()
            for a, b, where in zip(new, old, finite, strict=True)
        ]
        return np.concatenate(differences)

    squares = (np.square(x[where]).sum() for x, where in zip(old, finite, strict=True))
    return change, float(np.sqrt(sum(squares)))


def _some_entries(
    shape: tuple[int, int], maximum: int | None
) -> tuple[slice | np.ndarray, slice | np.ndarray]:
    """Returns the indices of random rows and columns with a maximum of entries together."""
    rows, columns = shape
    if maximum is None or rows * columns <= maximum:
        return slice(None), slice(None)
    random = np.random.default_rng(0)
    count = max(maximum // columns, min(rows, _COMPARED_ROWS))
    chosen = random.permutation(rows)[:count]
    if count * columns <= maximum:
        return chosen, slice(None)
    return chosen, random.permutation(columns)[: max(1, maximum // count)]


def _changes_by_feature(
    model: keras.layers.Layer, layer: keras.layers.Embedding, batch: Any, outputs: list[np.ndarray]
) -> np.ndarray:
    """Returns how much the outputs change with each feature of an embedding's outputs."""

    def shifted(inputs: Any) -> Any:
        ids, feature = inputs

        def shift(_path: str, _call: Call, rows: Any) -> Any:
            rng = np.random.default_rng(0)  # the same signs for each feature
            signs = rng.choice((-1.0, 1.0), size=(*rows.shape[:-1], 1))
            size = _NOISE_SHARE * ops.sqrt(ops.mean(ops.square(ops.cast(rows, "float32"))))
            change = ops.convert_to_tensor(signs, "float32") * ops.one_hot(feature, rows.shape[-1])
            return rows + ops.cast(size * change, rows.dtype)

        with watch_calls({"": layer}, shift):
            return model(ids, training=False)

    change, _ = change_of_outputs(Runner(model, shifted), outputs, _COMPARED_ENTRIES)
    return np.stack([change([batch, np.array(n)]) for n in range(layer.output_dim)])


@contextlib.contextmanager
def _add_noise(layer: keras.layers.Layer) -> Iterator[None]:
    """Adds noise to all outputs of a layer, before its activation if it has one."""
    rng = np.random.default_rng(0)

    def noisy(outputs: Any) -> Any:
        array = ops.convert_to_numpy(outputs).astype("float32")
        noise = rng.normal(size=array.shape) * np.sqrt(np.mean(np.square(array)))
        return ops.convert_to_tensor(
            (array + _NOISE_SHARE * noise).astype("float32"), outputs.dtype
        )

    activation = layer.activation if has_kernel(layer) else None
    if activation is None:
        with watch_calls({"": layer}, lambda _path, _call, outputs: map_floats(noisy, outputs)):
            yield
        return
    with with_activation(layer, lambda outputs: activation(noisy(outputs))):
        yield


def _comparable(outputs: Sequence[np.ndarray], in_logs: Sequence[bool]) -> list[np.ndarray]:
    """Returns the outputs in float64; where asked for, their logarithms less their mean."""
    return [
        _centered_log(x) if in_log else x.astype("float64")
        for x, in_log in zip(outputs, in_logs, strict=True)
    ]


def _centered_log(probabilities: np.ndarray) -> np.ndarray:
    # With noise they may be negative, if no activation made them probabilities.
    logs = np.log(np.maximum(probabilities.astype("float64"), 0) + _ADDED_PROBABILITY)
    return logs - logs.mean(axis=-1, keepdims=True)
