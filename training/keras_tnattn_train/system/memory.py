"""Keeps freed memory in the process, because it is slow to get it again."""

import ctypes
import os
import platform

# Parameters of glibc's mallopt, and their values: no block in a mapping of its own, nothing at the
# end of the heap given back, and one heap for all threads, which knows no largest block.
_M_MMAP_MAX, _M_TRIM_THRESHOLD, _M_ARENA_MAX = -4, -1, -8
_KEPT = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}


def keep_freed_memory() -> bool:
    """Lets glibc keep the memory that is freed, in place of giving it back to the system.

    By default each tensor of more than 32 MB is a mapping of its own, and a training step gets all
    of them anew: the system has to clear each page and to enter it, which took more than a third of
    a step of the paper's translator #2 (docs/speed.md). The peak of the memory is the same; the
    process keeps it until it ends.

    Returns:
        Whether the memory is kept: not without glibc, and not if the environment variable
        `GLIBC_TUNABLES` or one like `MALLOC_ARENA_MAX` is set, which then decides.
    """
    decided = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if decided or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(parameter, value) for parameter, value in _KEPT.items()])
