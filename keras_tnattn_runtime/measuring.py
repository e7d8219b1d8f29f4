"""Measures a model's file in its runtime: `python -m keras_tnattn_runtime.measuring FILE INPUTS`.

`INPUTS` is an `.npz` file of arrays of some rows. Memory is what loading the file and a first call
of one row add to the process, so it is best alone in one. Times are medians on one thread.
"""

import functools
import importlib
import json
import resource
import statistics
import sys
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.layout import RUNTIMES
from keras_tnattn_runtime.running import RUNNERS

_SECONDS, _MOST_CALLS = 1.0, 200


def memory() -> int:
    """Returns the bytes of memory that this process has, or the most it ever had, off Linux.

    With what it shares: libraries are its own only until another process reads them, too.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def measure(path: str, inputs: Mapping[str, np.ndarray], many: int = 32) -> dict[str, float]:
    """Returns the bytes of memory, and the microseconds of a call of one row and of many.

    Args:
        path: The file.
        inputs: Arrays of one or more rows.
        many: The number of rows of the other call, to which the rows are repeated. Defaults to 32.
    """
    rows = {
        count: {name: np.resize(x, (count, *x.shape[1:])) for name, x in inputs.items()}
        for count in (1, many)
    }
    _import_of(path)
    before = memory()
    run = RUNNERS[Path(path).suffix](path)
    run(rows[1])
    result: dict[str, float] = {"resident_bytes": memory() - before}
    for count, name in ((1, "one_row_us"), (many, "many_rows_us")):
        run(rows[count])
        result[name] = 1e6 * _median_seconds(functools.partial(run, rows[count]))
    return result


def _import_of(path: str) -> None:
    """Imports the runtime of a file, whose own memory does not count."""
    for runtime in RUNTIMES.values():
        if runtime.suffix == Path(path).suffix:
            importlib.import_module(runtime.module)


def _median_seconds(call: Callable[[], Any]) -> float:
    times: list[float] = []
    while len(times) < 5 or (sum(times) < _SECONDS and len(times) < _MOST_CALLS):
        times.append(timeit.timeit(call, number=1))
    return statistics.median(times)


if __name__ == "__main__":
    with np.load(sys.argv[2]) as arrays:
        print(json.dumps(measure(sys.argv[1], dict(arrays))))
