"""Measures how much the outputs of a model change with those of its layers."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.batches import are_probabilities
from keras_tnattn.compression.calibration import Seen, watched

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

    Adds noise of 5 % of the outputs' size to one layer at a time. Layers whose errors hardly change
    the model's outputs get a smaller share of the budget. For probabilities, changes of their
    logarithms count, because a model that is sure of its training data hardly changes the
    probabilities themselves.
    """
    outputs = _comparable(outputs)
    size = np.sqrt(sum(np.square(x).sum() for x in outputs))
    for path in layers:
        if seen[path].batch is None:
            continue
        rng = np.random.default_rng(0)

        def noise(array: np.ndarray, rng: np.random.Generator = rng) -> np.ndarray:
            return rng.normal(size=array.shape) * np.sqrt(np.mean(np.square(array)))

        change = _change(model, {path: layers[path]}, batch, outputs, noise)
        sensitivity = np.linalg.norm(change) / size if size > 0 else 1.0
        seen[path].sensitivity = float(max(sensitivity, 1e-3))


def _change(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batch: Any,
    outputs: list[np.ndarray],
    changed_by: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Returns how the model's outputs change for a change of the layers' outputs, flattened."""

    def watch(_path: str, _inputs: Any, layer_outputs: Any) -> Any:
        array = ops.convert_to_numpy(layer_outputs).astype("float32")
        changed = (array + _CHANGE * changed_by(array)).astype("float32")
        return ops.convert_to_tensor(changed, layer_outputs.dtype)

    with watched(layers, watch):
        changed = keras.tree.flatten(model(batch, training=False))
    new = _comparable([ops.convert_to_numpy(x) for x in changed])
    differences = [np.ravel(a - b) for a, b in zip(new, outputs, strict=True)]
    return np.concatenate(differences) / _CHANGE


def _comparable(outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs in float64; of probabilities, the logarithms less their mean."""
    return [_centered_log(x) if are_probabilities(x) else x.astype("float64") for x in outputs]


def _centered_log(probabilities: np.ndarray) -> np.ndarray:
    logs = np.log(probabilities.astype("float64") + _SMALLEST)
    return logs - logs.mean(axis=-1, keepdims=True)
