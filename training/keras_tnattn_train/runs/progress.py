"""Prints the progress of long work, line by line, for output that is not a terminal."""

import contextlib
import logging
import time
from collections.abc import Iterator

import keras

LINES = 10  # printed in one training, at most


class EpochLines(keras.callbacks.Callback):
    """Prints the metrics of every epoch or, if there are more than ten, at most ten times in total.

    Behind them are the seconds since this process began to train.

    Args:
        epochs: The number of epochs, including those before the training was resumed.
    """

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self._stride = -(-epochs // LINES)

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        number = epoch + 1
        if number % self._stride == 0 or number == self.epochs or self.model.stop_training:
            metrics = ", ".join(f"{name} {value:.4g}" for name, value in (logs or {}).items())
            seconds = time.perf_counter() - self._start
            line = f"epoch {number} of {self.epochs}: {metrics} ({seconds:.0f} s since the start)"
            print(line, flush=True)


class _Printer(logging.Handler):
    """Prints messages; unlike `StreamHandler`, it does not hide that the output is closed."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


@contextlib.contextmanager
def printed(name: str) -> Iterator[None]:
    """Prints what a logger tells of the progress of the work in the `with` block.

    Args:
        name: The logger's name.
    """
    log, handler = logging.getLogger(name), _Printer()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
