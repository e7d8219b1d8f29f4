"""Runs a measurement in a process of its own, whose memory is limited and measured."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.processes.workers import other_processes
from keras_tnattn_train.system.memory import give_back_memory

# What allocators write into the message of the exception that they raise, or to stderr before they
# end the process.
_OUT_OF_MEMORY = (
    "OOM when allocating",
    "RESOURCE_EXHAUSTED",
    "bad_alloc",
    "allocate memory",
    "alloc failed",
    "pthread_create() failed",  # no memory for a thread's stack
)


def check_platform() -> None:
    """Raises `InputError` unless the system is Linux, which limits and tells the memory."""
    if sys.platform != "linux":
        raise InputError(
            "Expected Linux, which limits and tells the memory of a process. Received: "
            f"platform={sys.platform}. Run the study on another machine or in a container"
        )


def run_alone(
    function: Callable[..., dict[str, Any]], *arguments: Any, gigabytes: float
) -> dict[str, Any] | None:
    """Calls a function in a new process, which may allocate so much memory after its start.

    Returns:
        What the function returned; `None` if it asked for more memory.
    """
    hint = (
        f"run the same command again, or start a study in another --run-dir with fewer --gigabytes "
        f"than {gigabytes:g}"
    )
    with tempfile.NamedTemporaryFile() as errors:
        try:
            with other_processes(1, hint, _start, gigabytes, errors.name) as pool:
                return pool.submit(function, *arguments).result()
        except MemoryError:
            return None
        except InputError as error:  # allocators may also end the process
            text = Path(errors.name).read_text(encoding="utf-8", errors="replace")
            if _tells_lack_of_memory(f"{text}{error}"):
                return None
            sys.stderr.write(text)
            raise
        except Exception as error:
            if _tells_lack_of_memory(str(error)):
                return None
            raise


def _tells_lack_of_memory(text: str) -> bool:
    return any(sign in text for sign in _OUT_OF_MEMORY)


def _start(gigabytes: float, errors: str) -> None:
    import resource  # which only Unix has

    file = os.open(errors, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, sys.stderr.fileno())
    start_backend(keep_memory=False)  # what was freed would count as used
    limit = int(1024 * 1024 * memory("VmData") + gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def restart_peak() -> float:
    """Lets the peak of this process's memory begin anew, and returns the memory now, in MiB.

    Free memory is given back first, so that what is taken from it counts.
    """
    give_back_memory()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def peak_memory() -> float:
    """Returns the peak of this process's memory since `restart_peak`, in MiB."""
    return memory("VmHWM")


def memory(field: str) -> float:
    """Returns an entry of `/proc/self/status`, which Linux has, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
