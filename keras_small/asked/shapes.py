"""Compares the shapes of data with those of a model's inputs, before any work."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_small.asked.data import Data, are_arrays, inputs_and_labels


def check_shapes(model: keras.Model, data: Data | None) -> None:
    """Refuses arrays without an axis of rows, and labels among the inputs of a model.

    Arrays of a model whose inputs are not known, dicts and batches are left to the model.

    Raises:
        ValueError: If the arrays cannot be what the model reads.
    """
    tensors = getattr(model, "inputs", None)
    if data is None or not tensors or not are_arrays(data.inputs):
        return
    inputs, labels = inputs_and_labels(data.inputs, len(tensors))
    if isinstance(inputs, dict):
        return
    arrays = keras.tree.flatten(inputs)
    shapes = [tuple(getattr(array, "shape", ())) for array in arrays]
    expected = [tuple(tensor.shape) for tensor in tensors]
    if all(len(shape) == len(full) - 1 for shape, full in zip(shapes, expected, strict=True)):
        raise ValueError(
            f"Expected data with a row for each sample, of shape {_text(expected)}. Received: data "
            f"of shape {_text(shapes)}, a single row. Pass several rows, or data[None] for this one"
        )
    are_pair = isinstance(data.inputs, tuple) and labels is None and len(tensors) == 2
    if are_pair and not _fits(shapes[1], expected[1]):
        raise ValueError(
            f"Expected an array for each of the 2 inputs, of shape {_text(expected)}. Received: a "
            f"tuple of arrays of shape {_text(shapes)}. Pass labels, which are not used, as "
            "((first, second), labels)"
        )
    rows = shapes[0][0] if shapes[0] else None
    given = keras.tree.flatten(labels)[0] if labels is not None else None
    if given is not None and hasattr(given, "__len__") and len(given) != rows:
        raise ValueError(
            "Expected as many labels as rows, or inputs alone. Received: a tuple of "
            f"{rows} rows and {len(given)} labels"
        )


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(n is None or m == n for m, n in pairs)


def _text(shapes: Sequence[Any]) -> str:
    return " and ".join(map(str, shapes))
