"""Keeps freed memory in the process, because it is slow to get it again."""

import ctypes
import os
import platform

# Parameters of glibc's mallopt, and their values: no block in a mapping of its own, nothing at the
# end of the heap given back, and one heap for all threads, because the blocks of other heaps are at
# most 64 MB.
_M_MMAP_MAX = -4
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8
_KEPT = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}
# The environment variables that set these and the like, also as `glibc.malloc.arena_max` and so on
# in `GLIBC_TUNABLES`.
_VARIABLES = (
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
_TUNABLES = tuple(
    f"glibc.malloc.{name.removeprefix('MALLOC_').strip('_').lower()}=" for name in _VARIABLES
)


def keep_freed_memory() -> bool:
    """Lets glibc keep the memory that is freed, in place of giving it back to the system.

    By default glibc gives large blocks back, those of more than 32 MB always, and a training step
    gets them anew: the system clears and maps each page, which took about a third of a step of the
    paper's translator #2 (docs/speed.md). Measured on one and two cores; with many more, the
    threads may wait for the one heap. Threads that have allocated before keep their heaps, so call
    this early. Without effect on other allocators, as loaded by `LD_PRELOAD`.

    Returns:
        Whether glibc keeps it: not on other systems, and not if one of glibc's environment
        variables about this is set, for instance `MALLOC_ARENA_MAX`, which then decides.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    decided = any(map(os.environ.get, _VARIABLES)) or any(name in tunables for name in _TUNABLES)
    if decided or not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(parameter, value) for parameter, value in _KEPT.items()])


def give_back_memory() -> None:
    """Gives all pages that are free back to the system, so that what is in use can be measured."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
