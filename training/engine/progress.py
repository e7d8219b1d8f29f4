"""Progress of training in a few lines, where the output is not a terminal."""

import sys
import time
from typing import TextIO

import keras

LINES = 10  # at most, of one training


class EpochLines(keras.callbacks.Callback):
    """Prints the metrics of every epoch, or of every tenth of the epochs if there are many.

    Args:
        epochs: The number of epochs, those of an earlier run included.
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
            print(f"epoch {number} of {self.epochs}: {metrics} ({seconds:.0f} s)", flush=True)


class Counter:
    """Shows on stderr how many rows or sentences are done.

    On a terminal one line is rewritten; elsewhere a line is printed at each tenth of the total or,
    if the total is unknown, each time the count has doubled.

    Args:
        what: What is counted, for instance `"sentences"`.
        total: How many there are. Default: unknown.
        file: Where to print. Default: stderr.
    """

    def __init__(self, what: str, total: int | None = None, file: TextIO | None = None) -> None:
        self.what, self.total = what, total
        self._file = file or sys.stderr
        self._terminal = self._file.isatty()
        self._start = time.perf_counter()
        self._next = 1
        self._shown: int | None = None

    def show(self, done: int) -> None:
        """Shows that `done` of them are done."""
        if self._terminal:
            print(f"\r{self._line(done)}", end="", file=self._file, flush=True)
        elif done >= self._next:
            print(self._line(done), file=self._file, flush=True)
            self._next = 2 * done if self.total is None else done + -(-self.total // LINES)
        self._shown = done

    def close(self) -> None:
        """Ends the line."""
        if self._terminal and self._shown is not None:
            print(file=self._file, flush=True)

    def _line(self, done: int) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{done:,}{of} {self.what}, {time.perf_counter() - self._start:.0f} s"
