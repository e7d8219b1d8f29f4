"""Shows on stderr how many rows or sentences are done."""

import sys
import time
from typing import TextIO

LINES = 10  # printed in total if stderr is not a terminal, approximately


class Counter:
    """Shows on stderr how many rows or sentences are done.

    On a terminal one line is rewritten. Otherwise a line is printed at each tenth of the total or,
    if the total is unknown, each time the count has doubled.
    """

    def __init__(self, what: str, file: TextIO | None = None) -> None:
        self.what = what
        self._file = file or sys.stderr
        self._terminal = self._file.isatty()
        self._start = time.perf_counter()
        self._next = 1
        self._shown = False

    def show(self, done: int, total: int | None = None) -> None:
        """Shows the number done and, if known, the total."""
        of = "" if total is None else f" of {total:,}"
        line = f"{done:,}{of} {self.what}, {time.perf_counter() - self._start:.0f} s"
        if self._terminal:
            print(f"\r{line}", end="", file=self._file, flush=True)
            self._shown = True
        elif done >= self._next or done == total:
            print(line, file=self._file, flush=True)
            self._next = 2 * done if total is None else done + -(-total // LINES)

    def close(self) -> None:
        """Ends the line on a terminal."""
        if self._shown:
            print(file=self._file, flush=True)
