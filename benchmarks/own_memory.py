"""The memory that a process itself holds: without the pages of files, which the system can drop."""

import contextlib
import os
import threading
from pathlib import Path


def own_memory(process="self"):
    """Returns the bytes that a process, by default this one, holds beside the pages of files."""
    status = Path(f"/proc/{process}/status").read_text()
    lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * sum(int(line.split()[1]) for line in lines)  # none of one that ended


def memory_of_children():
    """Returns the bytes that the processes which this one started hold beside pages of files."""
    total = 0
    for number in children():
        with contextlib.suppress(OSError):  # that ended meanwhile
            total += own_memory(number)
    return total


def seconds_of_children():
    """Returns the seconds of the processor that the running processes of this one took."""
    total = 0
    for number in children():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])  # of itself, and of the system for it
    return total / os.sysconf("SC_CLK_TCK")


def children():
    """Returns the numbers of the processes that this one started."""
    return " ".join(x.read_text() for x in Path("/proc/self/task").glob("*/children")).split()


@contextlib.contextmanager
def sampled_peak(children=False):
    """Yields a dict with `before`; after the block it also has `peak`, sampled every 5 ms.

    With `children` both are of this process and of those that it started.
    """

    def held():
        return own_memory() + (memory_of_children() if children else 0)

    memory = {"before": held()}
    peaks, finished = [memory["before"]], threading.Event()

    def sample():
        while not finished.wait(0.005):
            peaks.append(held())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield memory
    finally:
        finished.set()
        sampler.join()
        memory["peak"] = max(*peaks, held())
