"""Compares small models with the original one."""

import functools
import hashlib
import logging
import math
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_small.asked.data import CalibrationData, number_of_rows
from keras_small.asked.renumbering import Renumbering
from keras_small.survey.inventory import Inventory
from keras_small.survey.running import Runner
from keras_tnattn.errors import cause_of

_log = logging.getLogger(__name__)
# Higher is better.
Metric = Callable[[keras.Model], float]
_SAME_IDS = Renumbering()
# Maximum entries of the original's outputs that are kept.
_KEPT_OUTPUTS = 2**22
_ENTRIES_AT_ONCE = 2**20


class Comparison:
    """Compares small models with the original, by outputs and by the user's metric.

    Args:
        original: The model to compress; it is only run.
        metric: The metric, or `None`.
        data: The data, or `None`.

    Attributes:
        metric_before: The metric of the original; `None` without a metric.
        run_original: Returns the flattened outputs of the original for a batch.

    Raises:
        ValueError: If the metric is not finite.
    """

    def __init__(
        self, original: Inventory, metric: Metric | None, data: CalibrationData | None
    ) -> None:
        self.original = original
        self._metric = metric
        self.data = data
        self.metric_before = self.metric_of(original.model)
        self._runner = functools.partial(Runner, runs=0 if data is None else len(data.batches))
        self.run_original = self._runner(original.model)
        self._known: dict[bytes, list[np.ndarray]] = {}
        self._known_entries = 0
        self._latest: tuple[keras.Model, Runner] | None = None

    def _outputs_of_original(self, batch: Any) -> list[np.ndarray]:
        """Returns these outputs again for a batch that was seen before, if they are small."""
        if self._known_entries > _KEPT_OUTPUTS and not self._known:
            return self.run_original(batch)
        outputs = self._known.get(_digest(batch))
        if outputs is None:
            outputs = self.run_original(batch)
            self.remember(batch, outputs)
        return outputs

    def remember(self, batch: Any, outputs: list[np.ndarray]) -> None:
        """Keeps the outputs of the original, or of its copy, for a batch, if they are small."""
        self._known_entries += sum(array.size for array in outputs)
        if self._known_entries <= _KEPT_OUTPUTS:
            self._known[_digest(batch)] = outputs

    def without_metric(self) -> "Comparison":
        """Returns a comparison of the outputs alone."""
        return Comparison(self.original, None, self.data)

    def with_data(self, data: CalibrationData) -> "Comparison":
        """Returns a comparison on other data, without another measurement of the metric."""
        other = Comparison(self.original, None, data)
        other._metric = self._metric
        other.metric_before = self.metric_before
        return other

    @property
    def has_metric(self) -> bool:
        return self._metric is not None

    def metric_of(self, model: keras.Model) -> float | None:
        """Returns the value of the metric, or `None` without one.

        A model that the metric cannot measure is compiled: `evaluate` needs compiled ones.
        """
        metric = self._metric
        if metric is None:
            return None
        try:
            value: Any = metric(model)
        except (AttributeError, ValueError):  # the first on PyTorch
            if model.compiled:
                raise
            self.compile(model)
            value = metric(model)
        if isinstance(value, str) or np.ndim(value) or not hasattr(value, "__float__"):
            raise ValueError(
                "Expected a metric that returns one number, higher is better. Received: "
                f"metric(model)={reprlib.repr(value)}, a {type(value).__name__}"
            )
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"Expected a finite metric. Received: metric(model)={value}")
        return number

    def compile(self, small: keras.Model) -> None:
        """Compiles a small model as the original is, if Keras can save the arguments.

        Keras has to know the classes and functions of the original: call it in `known_objects`.
        """
        model = self.original.model
        custom = type(model).compile is not keras.Model.compile
        by_config = type(model).compile_from_config is not keras.Model.compile_from_config
        if not model.compiled or (custom and not by_config):
            return
        try:
            config = model.get_compile_config()
            if config:
                small.compile_from_config(config)
        except (TypeError, ValueError) as error:
            name = model.name
            _log.warning("the small model is not compiled as %s is: %s", name, cause_of(error))

    def report_error(
        self, small: keras.Model, renumbering: Renumbering, on_calibration: float | None = None
    ) -> tuple[float | None, int]:
        """Returns the error on the rows for reports, `None` without data, and their number.

        `on_calibration` is the error on the calibration, if it is known.
        """
        if self.data is None:
            return None, 0
        if on_calibration is not None and self.data.reports_calibration:
            return on_calibration, sum(map(number_of_rows, self.data.batches))
        return self.error_of(small, self.data.report_batches(), renumbering)

    def _runner_of(self, small: keras.Model) -> Runner:
        """Returns a runner of a small model, the latest again if it is of this one."""
        if self._latest is None or self._latest[0] is not small:
            self._latest = small, self._runner(small)
        return self._latest[1]

    def error_of(
        self, small: keras.Model, batches: Iterable[Any], renumbering: Renumbering = _SAME_IDS
    ) -> tuple[float, int]:
        """Returns the relative error of a small model's outputs, and the number of rows.

        Entries of the original's outputs that are not finite, such as those of masked classes, do
        not count; if they are finite in the small model, or the other way round, the error is
        infinite.

        Args:
            small: The model.
            batches: Inputs of the original model.
            renumbering: Converts them to inputs of the small one.
        """
        outputs = self._runner_of(small)
        error = 0.0
        size = 0.0
        rows = 0
        for batch in batches:
            rows += number_of_rows(batch)
            pairs = zip(self._outputs_of_original(batch), outputs(renumbering(batch)), strict=True)
            for expected, actual in pairs:
                for part in _parts(expected.size):
                    change, size_of_part = _squares(expected.ravel()[part], actual.ravel()[part])
                    error += change
                    size += size_of_part
        if not np.isfinite(error):
            return float("inf"), rows
        return float(np.sqrt(error / (size or 1.0))), rows


def _parts(entries: int) -> list[slice]:
    """Returns slices of an array, so that few of its entries are in float64 at once."""
    return [slice(n, n + _ENTRIES_AT_ONCE) for n in range(0, entries, _ENTRIES_AT_ONCE)]


def _squares(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float]:
    """Returns the sums of the squares of the changes, and of the finite entries before."""
    expected = expected.astype("float64")
    finite = np.isfinite(expected)
    size = float(np.square(expected[finite]).sum())
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return np.inf, size
    change = actual[finite] - expected[finite]
    return float(np.square(change).sum()), size


def _digest(batch: Any) -> bytes:
    digest = hashlib.blake2b()
    for array in map(np.asarray, keras.tree.flatten(batch)):
        digest.update(f"{array.shape} {array.dtype}".encode())
        has_texts = array.dtype.hasobject
        digest.update(repr(array.tolist()).encode() if has_texts else array.tobytes())
    return digest.digest()
