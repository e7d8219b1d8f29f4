"""Reports the progress of a compression: printed if asked for, and logged at level `INFO`."""

import contextlib
import contextvars
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import keras

Entry = TypeVar("Entry")

# A shorter task shows no bar. In a log file each update of a bar is a line: one a second at most.
_SECONDS_WITHOUT_BAR = 2.0
_SECONDS_BETWEEN_UPDATES = 1.0

_log = logging.getLogger("keras_small")
# Each thread has its own value, so that compressions at the same time are not printed, too.
_verbose = contextvars.ContextVar("verbose", default=False)


def is_told() -> bool:
    """Whether progress is printed or logged."""
    return _verbose.get() or _log.isEnabledFor(logging.INFO)


def tell(message: str, *values: object) -> None:
    """Prints and logs a line; `values` are inserted with `%`."""
    _log.info(message, *values)
    if _verbose.get():
        print(message % values, flush=True)


def note(message: str, *values: object) -> None:
    """Logs a line that a bar stands for where lines are printed."""
    _log.info(message, *values)


def with_bar(entries: Iterable[Entry], costs: Iterable[float]) -> Iterator[Entry]:
    """Yields entries, and shows a bar with the remaining time once they take some seconds.

    Args:
        entries: What is worked on one after the other.
        costs: The cost of each entry, in any unit.
    """
    pairs = list(zip(entries, costs, strict=True))
    total = sum(cost for _, cost in pairs) or 1.0
    bar = keras.utils.Progbar(100, interval=_SECONDS_BETWEEN_UPDATES, unit_name="percent")
    start = time.monotonic()
    done = 0.0
    for entry, cost in pairs:
        yield entry
        done += cost
        percent = round(100 * done / total)
        # Without any progress the remaining time is unknown.
        if percent and _verbose.get() and time.monotonic() - start > _SECONDS_WITHOUT_BAR:
            bar.update(percent)


@contextlib.contextmanager
def printing(verbose: int) -> Iterator[None]:
    """Sets whether lines are printed."""
    token = _verbose.set(bool(verbose))
    try:
        yield
    finally:
        _verbose.reset(token)
