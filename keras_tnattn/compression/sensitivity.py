"""Measures how much the outputs of a model change with those of its layers."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.batches import are_probabilities
from keras_tnattn.compression.calibration import Seen, activated, watched

# The size, relative to a layer's outputs, of the changes that are made.
_CHANGE = 0.05
# Added to each probability before its logarithm is taken.
_SMALLEST = 1e-7


def measure_sensitivity(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batch: Any,
    seen: Mapping[str, Seen],
    outputs: list[np.ndarray],
) -> None:
    """Measures for each layer how much noise on its outputs changes the model's outputs.

    Adds noise of 5 % of the outputs' size to one layer at a time, before the activation if it has
    one. Layers whose errors hardly change the model's outputs get a smaller share of the budget.
    For probabilities, changes of their logarithms count, because a model that is sure of its
    training data hardly changes the probabilities themselves.
    """
    in_logs = [are_probabilities(x) for x in outputs]
    outputs = _comparable(outputs, in_logs)
    size = np.sqrt(sum(np.square(x[np.isfinite(x)]).sum() for x in outputs))
    for path, layer in layers.items():
        with _noisy(layer):
            changed = keras.tree.flatten(model(batch, training=False))
        new = _comparable([ops.convert_to_numpy(x) for x in changed], in_logs)
        change = np.concatenate(
            [_finite_difference(a, b) for a, b in zip(new, outputs, strict=True)]
        )
        sensitivity = np.linalg.norm(change) / (_CHANGE * size) if size > 0 else 1.0
        seen[path].sensitivity = float(max(sensitivity, 1e-3))


@contextlib.contextmanager
def _noisy(layer: keras.layers.Layer) -> Iterator[None]:
    """Adds noise to the outputs of a layer, before its activation if it has one."""
    rng = np.random.default_rng(0)

    def noisy(outputs: Any) -> Any:
        array = ops.convert_to_numpy(outputs).astype("float32")
        noise = rng.normal(size=array.shape) * np.sqrt(np.mean(np.square(array)))
        return ops.convert_to_tensor((array + _CHANGE * noise).astype("float32"), outputs.dtype)

    activation = getattr(layer, "activation", None)
    if activation is None:
        with watched({"": layer}, lambda _path, _inputs, outputs: noisy(outputs)):
            yield
        return
    with activated(layer, lambda outputs: activation(noisy(outputs))):
        yield


def _comparable(outputs: Sequence[np.ndarray], in_logs: Sequence[bool]) -> list[np.ndarray]:
    """Returns the outputs in float64; where asked for, their logarithms less their mean."""
    return [
        _centered_log(x) if in_log else x.astype("float64")
        for x, in_log in zip(outputs, in_logs, strict=True)
    ]


def _centered_log(probabilities: np.ndarray) -> np.ndarray:
    # With noise they may be negative, if no activation made them probabilities.
    logs = np.log(np.maximum(probabilities.astype("float64"), 0) + _SMALLEST)
    return logs - logs.mean(axis=-1, keepdims=True)


def _finite_difference(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Returns the differences where both are finite: logits of masked classes are not."""
    finite = np.isfinite(new) & np.isfinite(old)
    return new[finite] - old[finite]
