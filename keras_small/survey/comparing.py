"""Compares small models with the original one."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_small.asked.batches import number_of_rows
from keras_small.asked.goals import Metric
from keras_small.survey.repeated_calls import Runner


class Comparison:
    """What small models are compared with: the original's outputs, and the user's metric.

    Args:
        original: The model to compress; it is only run.
        metric: The metric, whose values are finite, or `None`.
        runs: About how many batches there will be.
    """

    def __init__(self, original: keras.Model, metric: Metric | None, runs: int) -> None:
        self._metric = metric
        self.metric_before = self.metric_of(original)
        self._runner = functools.partial(Runner, runs=runs)
        self._outputs = self._runner(original)

    def metric_of(self, model: keras.Model) -> float | None:
        """Returns the value of the metric, or `None` without one."""
        return None if self._metric is None else self._metric(model)

    def error_of(
        self,
        small: keras.Model,
        batches: Iterable[Any],
        renumbered: Callable[[Any], Any] = lambda inputs: inputs,
    ) -> tuple[float, int]:
        """Returns the relative error of a small model's outputs, and the number of rows.

        Entries of the original's outputs that are not finite, such as those of masked classes, do
        not count; if they are finite in the small model, or the other way round, the error is
        infinite. `renumbered` takes the original's inputs to those of the small model.
        """
        outputs = self._runner(small)
        error, size, rows = 0.0, 0.0, 0
        for batch in batches:
            rows += number_of_rows(batch)
            pairs = zip(self._outputs(batch), outputs(renumbered(batch)), strict=True)
            for expected, actual in pairs:
                if expected.dtype.kind in "OSU":
                    continue
                expected, actual = expected.astype("float64"), actual.astype("float64")
                finite = np.isfinite(expected)
                same = np.array_equal(expected[~finite], actual[~finite], equal_nan=True)
                difference = actual[finite] - expected[finite]
                error += float(np.square(difference).sum()) if same else np.inf
                size += float(np.square(expected[finite]).sum())
        if not np.isfinite(error):
            return float("inf"), rows
        return float(np.sqrt(error / (size or 1.0))), rows
