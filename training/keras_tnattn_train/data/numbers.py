"""Reads tables of numbers with the class of each row, which measure a model of any origin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.data.tables import BadRows, open_table
from keras_tnattn_train.options.errors import InputError

_MOST_CLASSES = 2**31  # as labels are int32


def read_numbers(path: Path, label_column: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns floats `(rows, columns)` in the order of a table, and its classes `(rows,)`."""
    inputs = []
    labels = []
    bad = BadRows(path, None)
    with open_table(path) as table:
        place = table.place(label_column)
        if place is None:
            raise InputError(
                f"Expected a column of classes named {label_column!r}. Received: {path}, with "
                f"the columns {', '.join(table.columns)}. Choose one with --label-column"
            )
        for row in table:
            if row.problem:
                bad.add(row, row.problem)
                continue
            fields = list(row.fields)
            try:
                label = _class_number(fields.pop(place))
                inputs.append([float(field) for field in fields])
                labels.append(label)
            except ValueError as error:
                bad.add(row, str(error))
    bad.notes()
    if len(labels) < 2:
        raise InputError(
            "Expected a table with rows, of which a half is data and the other measures. "
            f"Received: {path}, with {len(labels)}"
        )
    return np.array(inputs, "float32"), np.array(labels, "int32")


def _class_number(field: str) -> int:
    try:
        number = float(field)
    except ValueError:
        number = -1
    if not 0 <= number < _MOST_CLASSES or number != int(number):
        raise ValueError(
            "Expected the number of a class: 0, 1, ... in the order of the model's outputs. "
            f"Received: {field!r}"
        )
    return int(number)


def halves(
    inputs: np.ndarray, labels: np.ndarray, shape: tuple[int | None, ...], dtype: str
) -> tuple[np.ndarray, Callable[[Any], float]]:
    """Returns the inputs of one half of the rows, and what measures accuracy on the other.

    A model with a single output has two classes: the second above a probability of 0.5, or above a
    logit of 0.
    """
    sizes = tuple(-1 if size is None else size for size in shape[1:])
    try:
        inputs = inputs.reshape(len(inputs), *sizes).astype(dtype)
    except ValueError as error:
        raise InputError(
            f"Expected {shape[1:]} numbers in a row, the input of the model. Received: "
            f"{inputs.shape[1]} columns beside the label"
        ) from error
    order = np.random.default_rng(0).permutation(len(inputs))
    used, measured = order[::2], order[1::2]

    def accuracy(model: Any) -> float:
        outputs = model.predict(inputs[measured], verbose=0)
        shape: tuple[int, ...] = getattr(outputs, "shape", ())
        if shape[1:] == (1,) and labels.max() <= 1:
            is_probability = outputs.min() >= 0 and outputs.max() <= 1
            classes = outputs[:, 0] > (0.5 if is_probability else 0)
            return float((classes == labels[measured]).mean())
        if len(shape) != 2 or shape[1] <= max(1, labels.max()):
            raise InputError(
                f"Expected a model with an output for each of the classes 0 to {labels.max()}. "
                f"Received: outputs {shape or type(outputs).__name__}"
            )
        return float((outputs.argmax(axis=1) == labels[measured]).mean())

    return inputs[used], accuracy
