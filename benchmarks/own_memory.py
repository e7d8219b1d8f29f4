"""The memory that a process itself holds: without the pages of files, which the system can drop."""

import contextlib
import threading
from pathlib import Path


def own_memory():
    """Returns the bytes that this process holds beside the pages of files."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


@contextlib.contextmanager
def sampled_peak():
    """Yields a dict with `before`; after the block it also has `peak`, sampled every 5 ms."""
    memory = {"before": own_memory()}
    peaks, finished = [memory["before"]], threading.Event()

    def sample():
        while not finished.wait(0.005):
            peaks.append(own_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield memory
    finally:
        finished.set()
        sampler.join()
        memory["peak"] = max(*peaks, own_memory())
