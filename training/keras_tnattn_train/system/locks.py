"""Locks by which processes of a machine agree on which of them works in a folder."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason


@contextlib.contextmanager
def folder_lock(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Locks a folder, which need not exist, by a file in the system's folder of temporary files.

    Yields `False` if another process has the folder locked, else `True`. The system frees the lock
    of a process that is killed.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    path = Path(tempfile.gettempdir(), f"keras-tnattn-{name}.lock")
    lock = filelock.FileLock(path)
    is_free = True
    try:
        lock.acquire(blocking=wait)
    except filelock.Timeout:
        is_free = False
    except OSError as error:
        raise InputError(f"Could not lock {folder} by {path}: {reason(error)}") from error
    try:
        yield is_free
    finally:
        lock.release()
