"""Counts how often a small model has another top class, and bounds the share for all such inputs.

A flip is a row whose top class differs from the original's. Of independent rows that had no part
in making a model, their number is binomial, so the bound of Clopper and Pearson (1934) is exact.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.compression.batches import data_errors, number_of_rows, outputs_of


def upper_bound(flips: int, rows: int, confidence: float) -> float:
    """Returns the one-sided upper bound of Clopper and Pearson for the true share of flips.

    It is the `p` for which at most `flips` of `rows` has the probability `1 - confidence`.

    Args:
        flips: The number of flips.
        rows: The number of independent rows.
        confidence: In (0, 1).
    """
    counts = np.arange(flips + 1)
    # The logarithms of the binomial coefficients.
    ways = np.append(0.0, np.cumsum(np.log((rows - counts[:-1]) / counts[1:])))
    low, high = flips / rows, 1.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        logs = ways + counts * math.log(middle) + (rows - counts) * math.log1p(-middle)
        if np.exp(logs).sum() > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


@dataclasses.dataclass(frozen=True)
class FlipCount:
    """How many rows have another top class.

    Attributes:
        flips: The number of these rows.
        rows: The number of all rows that were counted.
        confidence: The probability with which `bound` holds, of one model chosen without the rows.
        bound: `upper_bound(flips, rows, confidence)`.
    """

    flips: int
    rows: int
    confidence: float
    bound: float

    def __str__(self) -> str:
        return (
            f"{self.flips:,} of {self.rows:,} rows held back have another top class, which bounds "
            f"the share by {100 * self.bound:.3g} % with confidence {100 * self.confidence:.6g} %"
        )


@dataclasses.dataclass(frozen=True)
class Promise:
    """With probability `count.confidence` over the draw of the rows, `max_flips` is kept.

    Attributes:
        max_flips: The largest share of inputs like the data that have another top class.
        count: What was counted of the model on the rows that were held back.
        planning_rows: The number of the other rows, with which the model was made.
    """

    max_flips: float
    count: FlipCount
    planning_rows: int

    def __str__(self) -> str:
        return (
            f"promise: at most {100 * self.max_flips:.6g} % of inputs like the data get another "
            f"top class; {self.count}; {self.planning_rows:,} other rows planned"
        )


class CountedRows:
    """Rows of inputs with the top classes of a model.

    Args:
        model: The original model.
        inputs: Arrays of equally many rows.
        batch_size: Rows per batch.

    Raises:
        ValueError: If the model's outputs have no classes.
    """

    def __init__(self, model: keras.Model, inputs: Any, batch_size: int) -> None:
        self.rows = number_of_rows(inputs)
        self.batches = [
            keras.tree.map_structure(lambda x, start=start: x[start : start + batch_size], inputs)
            for start in range(0, self.rows, batch_size)
        ]
        with data_errors():
            outputs = [outputs_of(model, batch) for batch in self.batches]
        for array in (array for arrays in outputs for array in arrays):
            _check_classes(array)
        self._classes = [top_classes(arrays) for arrays in outputs]

    def flips(self, predict: Callable[[Any], Sequence[Any]]) -> int:
        """Returns the number of rows that get another top class.

        Args:
            predict: Function from a batch of inputs to a list of the model's outputs.
        """
        flips = 0
        for batch, expected in zip(self.batches, self._classes, strict=True):
            classes = top_classes(predict(batch))
            if classes.shape != expected.shape:
                raise ValueError(
                    "Expected predictions of the shapes of the model's outputs. Received: top "
                    f"classes of shape {classes.shape} instead of {expected.shape}"
                )
            flips += int((classes != expected).any(axis=1).sum())
        return flips


def top_classes(outputs: Sequence[Any]) -> np.ndarray:
    """Returns the top class of each row, at each position of each output: ints `(rows, N)`.

    Of one column, the probability of the second of two classes, it is 1 if this is above 0.5; of a
    row with NaN it is -1.
    """
    columns = []
    for array in (np.asarray(output).astype("float64") for output in outputs):
        classes = array[..., 0] > 0.5 if array.shape[-1] == 1 else array.argmax(axis=-1)
        classes = np.where(np.isnan(array).any(axis=-1), -1, classes)
        columns.append(classes.reshape(len(array), -1))
    return np.concatenate(columns, axis=1)


def _check_classes(array: np.ndarray) -> None:
    numeric = array.dtype.kind not in "OSUb" and array.ndim > 1
    if not numeric or (array.shape[-1] == 1 and not ((array >= 0) & (array <= 1)).all()):
        raise ValueError(
            "Expected a classifier together with max_flips: outputs with a column for each class, "
            f"or with one probability. Received: outputs of shape {array.shape} and dtype "
            f"{array.dtype}"
        )


def halves(inputs: Any) -> tuple[Any, Any]:
    """Returns two random halves of the rows of arrays; of an odd number one is left out."""
    order = np.random.default_rng(0).permutation(number_of_rows(inputs))
    half = len(order) // 2
    first, second = order[:half], order[half : 2 * half]
    return tuple(
        keras.tree.map_structure(lambda x, rows=rows: x[rows], inputs) for rows in (first, second)
    )
