"""Gives freed memory back to the system, where the C library keeps it for itself."""

import contextlib
import ctypes


def give_back_memory() -> None:
    """Gives the pages that are free back, which glibc does only at the end of its heap.

    What a copy or a run of a model has freed lies between what is still in use, and what comes next
    is of other sizes.
    """
    # Another C library has no such function; on Windows there is none to ask.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
