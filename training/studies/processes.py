"""Runs a measurement in a process of its own, whose memory is limited and measured."""

import concurrent.futures
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from training.engine.backend import start_backend

# What allocators write into the message of the exception that they raise.
_OUT_OF_MEMORY = ("OOM when allocating", "RESOURCE_EXHAUSTED", "bad_alloc", "can't allocate memory")


def run_alone(
    function: Callable[..., dict[str, Any]], *arguments: Any, gigabytes: float
) -> dict[str, Any] | None:
    """Calls a function in a new process, which may allocate so much memory after its start.

    Args:
        function: A function of a module, which the new process imports.
        *arguments: Its arguments; they and the result are pickled.
        gigabytes: The memory that the process may allocate once Keras is imported.

    Returns:
        What the function returned; `None` if the memory was not enough.
    """
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), _start, (gigabytes,)
    ) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except (MemoryError, BrokenProcessPool):  # allocators may also end the process
            return None
        except Exception as error:
            if any(sign in str(error) for sign in _OUT_OF_MEMORY):
                return None
            raise


def _start(gigabytes: float) -> None:
    start_backend()
    limit = int(1024 * memory("VmData") * 1024 + gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def restart_peak() -> float:
    """Lets the peak of this process's memory begin anew, and returns the memory now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def peak_memory() -> float:
    """Returns the peak of this process's memory since `restart_peak`, in MB."""
    return memory("VmHWM")


def memory(field: str) -> float:
    """Returns an entry of `/proc/self/status`, which Linux has, in MB (of 1024 kB)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
