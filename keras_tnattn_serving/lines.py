"""Lines written in the background."""

import queue
import threading
from typing import TextIO

_MOST = 10_000  # lines that wait


class Lines:
    """Writes lines to a stream in a thread of its own.

    A pipe that nobody reads blocks whoever writes to it. Here it is the thread; while it is
    blocked, up to 10,000 lines wait, and further ones are dropped and counted.

    Attributes:
        dropped: How many lines were dropped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.dropped = stream, 0
        self._queue: queue.Queue[str | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Adds a line; never waits."""
        try:
            self._queue.put_nowait(line + "\n")
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 1.0) -> None:
        """Ends the thread after the lines that wait, or leaves it behind after `seconds`."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:  # blocked: there is nothing to wait for
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._stream.write(line)
                if self._queue.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the reader is gone, or the stream was closed
                self.dropped += 1
