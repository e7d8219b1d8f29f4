"""A count of rows or sentences that are done, on stderr."""

import sys
import time
from typing import TextIO

LINES = 10  # about as many, where stderr is not a terminal


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
        self._next, self._shown = 1, None

    def show(self, done: int) -> None:
        """Shows that `done` of them are done."""
        if self._terminal:
            print(f"\r{self._line(done)}", end="", file=self._file, flush=True)
        elif done >= self._next or done == self.total:
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
