"""Reports the progress of a compression: printed if asked for, and logged at level `INFO`."""

import contextlib
import contextvars
import logging
from collections.abc import Iterator

_log = logging.getLogger("keras_small")
# Of the current thread, so that other compressions at the same time are not printed.
_verbose = contextvars.ContextVar("verbose", default=False)


def is_told() -> bool:
    """Whether progress is printed or logged."""
    return _verbose.get() or _log.isEnabledFor(logging.INFO)


def tell(message: str, *values: object) -> None:
    """Prints and logs a line; `values` are inserted with `%`."""
    _log.info(message, *values)
    if _verbose.get():
        print(message % values, flush=True)


@contextlib.contextmanager
def printing(verbose: int) -> Iterator[None]:
    """Sets whether lines are printed."""
    token = _verbose.set(bool(verbose))
    try:
        yield
    finally:
        _verbose.reset(token)
