"""Counts changed answers, and bounds their rate or mean change on new inputs.

A flip is a row whose top class differs from the original's. Of independent rows that had no part
in making a model, their number is binomial, so the bound of Clopper and Pearson (1934) is exact.
The mean of other numbers in [0, 1] has the bound of Hoeffding and Bentkus, whatever their
distribution (Bates et al., 2021, https://arxiv.org/abs/2101.02703, sec. 3.1).
"""

import abc
import dataclasses
import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_small.asked.data import number_of_rows

# From a batch of outputs, the original's and others, to a number in [0, 1] for each row.
Change = Callable[[Sequence[Any], Sequence[Any]], np.ndarray]


def upper_bound(flips: int, rows: int, confidence: float) -> float:
    """Returns the one-sided upper bound of Clopper and Pearson for the true share of flips.

    It is the `p` for which at most `flips` of `rows` has the probability `1 - confidence`.

    Args:
        flips: The number of flips.
        rows: The number of independent rows.
        confidence: In (0, 1).
    """
    return _largest_share(flips / rows, _log_probability(flips, rows), confidence)


def mean_bound(total: float, rows: int, confidence: float) -> float:
    """Returns the one-sided upper bound of Hoeffding and Bentkus for a mean of numbers in [0, 1].

    A mean `m` stays possible if `exp(-n KL(total / n, m))`, which bounds the probability of so
    small a sum by Hoeffding (1963), and `e P(Bin(n, m) <= ceil(total))`, which bounds it by Bentkus
    (2004), are both above `1 - confidence`.

    Args:
        total: The sum of the numbers.
        rows: The number `n` of independent rows.
        confidence: In (0, 1).
    """
    mean = total / rows
    at_most = _log_probability(math.ceil(total), rows)

    def log_probability(share: float) -> float:
        hit = mean * math.log(share / mean) if mean else 0.0
        missed = (1 - mean) * math.log((1 - share) / (1 - mean)) if mean < 1 else 0.0
        return min(rows * (hit + missed), 1 + at_most(share))

    return _largest_share(mean, log_probability, confidence)


def _largest_share(
    minimum: float, log_probability: Callable[[float], float], confidence: float
) -> float:
    """Returns the largest share of at least `minimum` with a probability above `1 - confidence`."""
    low = minimum
    high = 1.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if log_probability(middle) > math.log1p(-confidence):
            low = middle
        else:
            high = middle
    return high


def _log_probability(count: int, rows: int) -> Callable[[float], float]:
    """Returns the logarithm of the probability of at most `count` of `rows`, by their share."""
    counts = np.arange(count + 1)
    # The logarithms of the binomial coefficients.
    ways = np.append(0.0, np.cumsum(np.log((rows - counts[:-1]) / counts[1:])))

    def log_probability(share: float) -> float:
        logs = ways + counts * math.log(share) + (rows - counts) * math.log1p(-share)
        return float(np.logaddexp.reduce(logs))

    return log_probability


@dataclasses.dataclass(frozen=True)
class FlipCount:
    """The number of rows that have another top class, with a bound of their share.

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
            f"{self.flips:,} of {self.rows:,} held-out predictions changed; with "
            f"{100 * self.confidence:.6g} % confidence at most {100 * self.bound:.3g} % of all do"
        )

    @property
    def evidence(self) -> str:
        """The count, as the sentence of a promise goes on."""
        return f"{self.flips:,} of {self.rows:,} held-out rows did; bound {100 * self.bound:.3g} %"


@dataclasses.dataclass(frozen=True)
class MeanChange:
    """The mean change of the outputs of rows, with its bound.

    Attributes:
        mean: The mean change.
        rows: The number of rows that were measured.
        confidence: The probability with which `bound` holds, of one model chosen without the rows.
        bound: `mean_bound(mean * rows, rows, confidence)`.
    """

    mean: float
    rows: int
    confidence: float
    bound: float

    def __str__(self) -> str:
        return (
            f"{self.rows:,} held-out outputs changed by {self.mean:.3g} on average; with "
            f"{100 * self.confidence:.6g} % confidence all change by at most {self.bound:.3g} on "
            "average"
        )

    @property
    def evidence(self) -> str:
        """The mean, as the sentence of a promise goes on."""
        return f"{self.rows:,} held-out rows did by {self.mean:.3g}; bound {self.bound:.3g}"


_SENTENCES: dict[str, Callable[[float], str]] = {
    "max_flips": lambda limit: f"at most {100 * limit:.6g} % of predictions change",
    "max_change": lambda limit: f"outputs change by at most {limit:.6g} on average",
}


@dataclasses.dataclass(frozen=True)
class KeptPromise:
    """A limit that is kept with probability `count.confidence` over the draw of the rows.

    Attributes:
        name: `"max_flips"` or `"max_change"`.
        limit: The maximum share of inputs like the data that have another top class, or the
            maximum mean change of their outputs.
        count: The count on the rows that were held back, with its bound.
        planning_rows: The number of the other rows, with which the model was planned.
    """

    name: str
    limit: float
    count: FlipCount | MeanChange
    planning_rows: int

    def __str__(self) -> str:
        return (
            f"With {100 * self.count.confidence:.6g} % confidence "
            f"{_SENTENCES[self.name](self.limit)} ({self.count.evidence}). It was planned on "
            f"{self.planning_rows:,} other rows"
        )


class Counted(abc.ABC):
    """A measure of how much the answer to a row changes, in [0, 1].

    Attributes:
        name: The argument of `Promise` that asks for it.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def check_outputs(self, outputs: Sequence[np.ndarray]) -> None:
        """Raises `ValueError` if no change can be counted of such outputs."""

    def summary(self, outputs: Sequence[Any]) -> list[Any]:
        """Returns the part of a batch of outputs that `changes` compares."""
        return list(outputs)

    @abc.abstractmethod
    def changes(self, before: list[Any], after: list[Any]) -> np.ndarray:
        """Returns the change of each row, in [0, 1]."""

    @abc.abstractmethod
    def describe(self, total: float, rows: int) -> str:
        """Returns a sum of changes in words."""

    @abc.abstractmethod
    def count(self, total: float, rows: int, confidence: float) -> "FlipCount | MeanChange":
        """Returns a sum of changes with its bound."""


class Flips(Counted):
    """Whether a row has another top class."""

    name = "max_flips"

    def check_outputs(self, outputs: Sequence[np.ndarray]) -> None:
        for array in outputs:
            check_classes(array)

    def summary(self, outputs: Sequence[Any]) -> list[Any]:
        return [top_classes(outputs)]

    def changes(self, before: list[Any], after: list[Any]) -> np.ndarray:
        return (before[0] != after[0]).any(axis=1)

    def describe(self, total: float, rows: int) -> str:
        return f"{total:.0f} of {rows} top classes differ"

    def count(self, total: float, rows: int, confidence: float) -> FlipCount:
        flips = round(total)
        return FlipCount(flips, rows, confidence, upper_bound(flips, rows, confidence))


class Changes(Counted):
    """The size of the change of the outputs of a row."""

    name = "max_change"

    def __init__(self, change: Change | None = None) -> None:
        self._change = change or relative_change

    def changes(self, before: list[Any], after: list[Any]) -> np.ndarray:
        return self._change(before, after)

    def check_outputs(self, outputs: Sequence[np.ndarray]) -> None:
        if any(array.dtype.kind in "OSUb" for array in outputs):
            raise ValueError(
                "Expected outputs of numbers together with max_change. Received: outputs of "
                f"dtypes {[str(array.dtype) for array in outputs]}"
            )

    def describe(self, total: float, rows: int) -> str:
        return f"{rows} rows change by {total / rows:.3g} on average"

    def count(self, total: float, rows: int, confidence: float) -> MeanChange:
        return MeanChange(total / rows, rows, confidence, mean_bound(total, rows, confidence))


class CountedRows:
    """Rows of inputs with the outputs of the original, of which other outputs differ.

    Args:
        predict: Function from a batch of inputs to the list of the original's outputs, arrays.
        inputs: Arrays of equally many rows.
        batch_size: Rows per batch.
        counted: The measure of the change of a row.
    """

    def __init__(
        self,
        predict: Callable[[Any], list[np.ndarray]],
        inputs: Any,
        batch_size: int,
        counted: Counted,
    ) -> None:
        self.rows = number_of_rows(inputs)
        self.counted = counted
        self.batches = [
            keras.tree.map_structure(lambda x, start=start: x[start : start + batch_size], inputs)
            for start in range(0, self.rows, batch_size)
        ]
        self.outputs = []
        for batch in self.batches:
            outputs = predict(batch)
            counted.check_outputs(outputs)
            self.outputs.append(counted.summary(outputs))

    def total(self, predict: Callable[[Any], Sequence[Any]]) -> float:
        """Returns the sum of the changes of all rows.

        Args:
            predict: Function from a batch of inputs to the output, or a list of the outputs.
        """
        total = 0.0
        for batch, before in zip(self.batches, self.outputs, strict=True):
            after = self.counted.summary(keras.tree.flatten(predict(batch)))
            shapes = [[np.shape(output) for output in outputs] for outputs in (before, after)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    "Expected predictions of the shapes of the model's outputs, "
                    f"{shapes[0]}. Received: {shapes[1]}"
                )
            changes = np.asarray(self.counted.changes(before, after), "float64")
            if changes.shape != (len(before[0]),) or not ((changes >= 0) & (changes <= 1)).all():
                raise ValueError(
                    "Expected a change in [0, 1] of each row. Received: changes of shape "
                    f"{changes.shape}, {reprlib.repr(changes.tolist())}"
                )
            total += float(changes.sum())
        return total


def relative_change(before: Sequence[Any], after: Sequence[Any]) -> np.ndarray:
    """Returns `min(1, |after - before| / |before|)` of each row, over all of its outputs.

    For a row that was all 0 it is 0 if it still is, and else 1; for one with NaN it is 1.
    """
    old, new = (
        np.concatenate([np.asarray(x, "float64").reshape(len(x), -1) for x in outputs], axis=1)
        for outputs in (before, after)
    )
    change, size = (np.linalg.norm(x, axis=1) for x in (new - old, old))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(change == 0, 0.0, change / size)
    return np.where(np.isnan(ratio), 1.0, np.minimum(ratio, 1.0))


def top_classes(outputs: Sequence[Any]) -> np.ndarray:
    """Returns the top class of each row, at each position of each output: ints `(rows, N)`.

    An output of one column is the probability of the second of two classes, which is the top class
    above 0.5. A row with NaN has the class -1.
    """
    columns = []
    for array in (np.asarray(output).astype("float64") for output in outputs):
        classes = array[..., 0] > 0.5 if array.shape[-1] == 1 else array.argmax(axis=-1)
        classes = np.where(np.isnan(array).any(axis=-1), -1, classes)
        columns.append(classes.reshape(len(array), -1))
    return np.concatenate(columns, axis=1)


def check_classes(array: np.ndarray) -> None:
    """Checks that an output has classes."""
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
