"""What a compression and a healing are asked for, checked once."""

import dataclasses
import functools
import math
import numbers
import re
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_small.asked.batches import are_arrays
from keras_small.asked.counting import Change, FewFlips, Promising, SmallChange
from keras_small.formats import FORMATS
from keras_small.formats.runtime_tables import RUNTIMES
from keras_tnattn.checks import check_int

Metric = Callable[[keras.Model], float]

# The bits that stand for floats.
FLOATS = 32
# Where `bits` are not given: 2 and more for a whole layer, 8 or 4 for factors, which lose more in 2
# than is expected. Integers of 4 bits that reach a target lose less than other formats.
CHOSEN_BITS, ENOUGH_BITS = (8, 4, 2), 4


@dataclasses.dataclass(frozen=True)
class Smaller:
    """A model that is `factor` times smaller, in bytes of its weights; 1 for no other reason."""

    factor: float = 1.0

    @property
    def argument(self) -> str:
        return f"target={self.factor}"

    def __post_init__(self) -> None:
        _check_number("target", self.factor)
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"Expected a target of at least 1. Received: target={self.factor}")


@dataclasses.dataclass(frozen=True)
class Within:
    """The smallest layers whose estimated errors are at most `tolerance`."""

    tolerance: float

    @property
    def argument(self) -> str:
        return f"tolerance={self.tolerance}"

    def __post_init__(self) -> None:
        _check_number("tolerance", self.tolerance)
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(
                f"Expected a tolerance of at least 0. Received: tolerance={self.tolerance}"
            )


@dataclasses.dataclass(frozen=True)
class Keeping:
    """The smallest model whose metric is at most `drop` lower than that of the original.

    Attributes:
        metric: The metric, higher is better.
        drop: The maximum decrease.
        limit: How many times smaller the model may become; `None` for as many as possible.
    """

    name: ClassVar[str] = "max_drop"
    metric: Metric
    drop: float
    limit: float | None = None

    @property
    def argument(self) -> str:
        return f"max_drop={self.drop}"

    def __post_init__(self) -> None:
        _check_number("max_drop", self.drop)
        if self.metric is None or not 0 <= self.drop < math.inf:
            raise ValueError(
                "Expected a max_drop of at least 0 together with a metric. "
                f"Received: max_drop={self.drop}, metric={self.metric}"
            )
        if self.limit is not None:
            Smaller(self.limit)


Goal = Smaller | Within | Keeping | Promising


def goal_of(
    target: float | None,
    tolerance: float | None,
    metric: Metric | None,
    max_drop: float | None,
    max_flips: float | None = None,
    max_change: float | None = None,
    change: Change | None = None,
    confidence: float = 0.95,
) -> Goal:
    """Returns the goal that arguments of `compress` describe."""
    goals = {"target": target, "tolerance": tolerance, "max_drop": max_drop}
    promises = {"max_flips": max_flips, "max_change": max_change}
    for name, value in (goals | promises | {"confidence": confidence}).items():
        if value is not None:
            _check_number(name, value)
    asked = [name for name, value in promises.items() if value is not None]
    if asked:
        others = {name: value for name, value in (goals | promises).items() if name != asked[0]}
        given = [f"{name}={value}" for name, value in others.items() if value is not None]
        if given:
            raise ValueError(
                f"Expected {asked[0]} without another goal. Received: "
                f"{asked[0]}={promises[asked[0]]}, {', '.join(given)}"
            )
    if change is not None and max_change is None:
        raise ValueError(f"Expected change with max_change. Received: change={change}")
    if max_flips is not None:
        return FewFlips(max_flips, confidence)
    if max_change is not None:
        return SmallChange(max_change, confidence, change)
    if confidence != 0.95:
        raise ValueError(
            f"Expected confidence with max_flips or max_change. Received: confidence={confidence}"
        )
    if tolerance is not None:
        for name, value in (("target", target), ("max_drop", max_drop)):
            if value is not None:
                raise ValueError(
                    f"Expected either `tolerance` or `{name}`. "
                    f"Received: tolerance={tolerance}, {name}={value}"
                )
        return Within(tolerance)
    if max_drop is not None:
        return Keeping(metric, max_drop, target)  # type: ignore[arg-type]
    return Smaller(1.0 if target is None else target)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        hint = "" if np.ndim(value) == 0 else ". Inputs are an argument by name: data="
        raise ValueError(f"Expected a number. Received: {name}={reprlib.repr(value)}{hint}")


@dataclasses.dataclass(frozen=True)
class Options:
    """How a model is compressed: arguments of `compress` that hold for each layer."""

    formats: tuple[str, ...]
    bits: int | None
    filters: Any
    min_speed: float | None
    batch_size: int
    renumber: int | None
    effort: str
    verbose: int
    for_runtime: str | None = None
    max_resident: int | None = None

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size)
        check_int("verbose", int(self.verbose), at_least=0)
        choices = tuple(name for name in FORMATS if name not in ("dense", "coded"))
        none = not self.formats and self.bits == FLOATS
        if none or not (self.is_coded or set(self.formats) <= set(choices)):
            raise ValueError(
                f"Expected formats among {choices}. Received: formats={list(self.formats)}"
            )
        if self.effort not in ("full", "fast"):
            raise ValueError(f"Expected 'full' or 'fast'. Received: effort={self.effort!r}")
        if self.bits not in (None, FLOATS, 8, 4, 3, 2):
            raise ValueError(
                "Expected 8, 4, 3 or 2, 32 for floats, or None for what the bytes are best spent "
                f"on. Received: bits={self.bits!r}"
            )
        self._check_runtime()
        if self.min_speed is not None:
            _check_number("min_speed", self.min_speed)
        if self.renumber is not None:
            check_int("renumber", self.renumber, at_least=0)
        if self.filters is not None and not callable(self.filters):
            _check_patterns(self.filters)

    def _check_runtime(self) -> None:
        if self.max_resident is not None:
            check_int("max_resident", self.max_resident)
        if self.for_runtime is None:
            if self.max_resident is not None:
                raise ValueError(
                    "Expected max_resident with for_runtime, whose memory it bounds. Received: "
                    f"max_resident={self.max_resident}, for_runtime=None"
                )
            return
        if self.for_runtime not in tuple(RUNTIMES):
            raise ValueError(
                f"Expected a runtime among {tuple(RUNTIMES)}, or None for any. "
                f"Received: for_runtime={self.for_runtime!r}"
            )
        numbers = RUNTIMES[self.for_runtime].bits
        if self.bits not in (None, FLOATS, *numbers):
            raise ValueError(
                f"Expected bits among {numbers}, which files for {self.for_runtime} keep small. "
                f"Received: bits={self.bits}, for_runtime={self.for_runtime!r}"
            )

    @property
    def is_coded(self) -> bool:
        """Whether the bytes that count are those of a coded file."""
        return self.formats == ("coded",)

    @property
    def widths(self) -> tuple[int | None, ...]:
        """The bits to look for, those of whole layers last; `None` stands for floats."""
        return {None: CHOSEN_BITS, FLOATS: (None,)}.get(self.bits, (self.bits,))

    @property
    def fewest_bits(self) -> int | None:
        return self.widths[-1]

    @property
    def enough_bits(self) -> int:
        """The fewest bits with which integers that reach a target need no other formats."""
        return ENOUGH_BITS if self.bits is None else self.bits

    @property
    def wants_integers(self) -> bool:
        """Whether layers become integers also without another goal."""
        return self.bits not in (None, FLOATS)

    def selects(self, layer: keras.layers.Layer) -> bool:
        """Whether `filters` selects a layer, as in `keras.Model.quantize`."""
        if self.filters is None:
            return True
        if callable(self.filters):
            return bool(self.filters(layer))
        return any(re.search(pattern, layer.name) for pattern in as_tuple(self.filters))


def finite(metric: Metric, prepare: Callable[[keras.Model], None]) -> Metric:
    """Returns a metric that refuses values which are not finite.

    Models that it cannot measure are prepared: `evaluate` needs compiled ones.
    """

    @functools.wraps(metric)
    def number_of(model: keras.Model) -> float:
        try:
            value: Any = metric(model)
        except (AttributeError, ValueError):  # the first on PyTorch
            if model.compiled:
                raise
            prepare(model)
            value = metric(model)
        try:
            number = float(value)
        except TypeError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"Expected a finite metric. Received: metric(model)={value}")
        return number

    if not callable(metric):
        raise ValueError(f"Expected a function of a model. Received: metric={metric}")
    return number_of


def check_together(goal: Goal, options: Options, data: Any, metric: Any) -> None:
    """Checks options that need data, or contradict a metric."""
    if isinstance(goal, Promising):
        if not are_arrays(data):
            raise ValueError(
                "Expected data as arrays together with a promise, because some of their rows are "
                f"held back. Received: {goal.argument}, data={type(data).__name__}"
            )
        if options.renumber is not None:
            raise ValueError(
                "Expected renumber without a promise, which compares models of the original ids. "
                f"Received: renumber={options.renumber}, {goal.argument}"
            )
        if options.max_resident is not None:
            raise ValueError(
                "Expected max_resident without a promise, whose order of models knows only their "
                f"bytes. Received: max_resident={options.max_resident}, {goal.argument}"
            )
    speed, renumber = options.min_speed, options.renumber
    if speed is not None and (data is None or speed <= 0):
        raise ValueError(
            "Expected a positive min_speed, and data to measure it on. "
            f"Received: min_speed={speed}, data={'none' if data is None else 'some'}"
        )
    if renumber is not None and metric is not None:
        raise ValueError(
            "Expected renumber without a metric, which measures models of the original ids. "
            f"Received: renumber={renumber}, metric={metric}"
        )
    if renumber is not None and data is None:
        raise ValueError(
            "Expected data, which show the embedding that reads the model's ids, together with "
            f"renumber. Received: renumber={renumber}, data=None"
        )


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """Returns one text or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def _check_patterns(filters: Any) -> None:
    try:
        for pattern in as_tuple(filters):
            re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"Expected regular expressions. Received: filters={filters!r} ({error})"
        ) from error


@dataclasses.dataclass(frozen=True)
class Healing:
    """How a small model is trained towards the original's outputs; see `CompressionResult.heal`."""

    epochs: int = 1
    learning_rate: float = 1e-3
    batch_size: int = 32
    label_weight: float = 0.0
    loss: Any = None
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.outputs and self.label_weight:
            raise ValueError(
                "Expected either outputs of layers as targets or labels. "
                f"Received: outputs={list(self.outputs)}, label_weight={self.label_weight}"
            )
        check_int("epochs", self.epochs)
        check_int("batch_size", self.batch_size)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"Expected a positive number. Received: learning_rate={self.learning_rate}"
            )
