"""Locks by which processes agree who works in a folder."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from training.base.errors import InputError
from training.base.files import reason


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False, required: bool = False) -> Iterator[bool]:
    """Locks a folder, which need not exist, by the file `.lock-NAME` beside it.

    The system frees the lock of a process that is killed.

    Args:
        folder: The folder.
        wait: Whether to wait until no other process has it locked. Default `False`.
        required: Whether a system or a disk without locks is an error. By default the work goes on
            without a lock.

    Yields:
        `False` if another process has the folder locked, else `True`.

    Raises:
        InputError: If a lock is required, and there are no locks.
    """
    path = folder.with_name(f".lock-{folder.name}")
    new = [parent for parent in path.parents if not parent.exists()]
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _acquired(path, wait)
    except BlockingIOError:
        yield False
        return
    except (ImportError, OSError) as error:  # some network file systems have no locks
        if is_new:
            _remove(path, new)
        if required:
            why = reason(error) if isinstance(error, OSError) else "this system has no locks"
            raise InputError(f"Could not lock {path}: {why}. Choose another folder") from error
        yield True
        return
    with file:
        try:
            yield True
        finally:
            _remove(path, new)


def _acquired(path: Path, wait: bool) -> TextIO:
    import fcntl  # which only Unix has

    while True:
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # another process has just ended and deleted the file


def _remove(path: Path, parents: list[Path]) -> None:
    """Removes the file, and the folders made for it that nothing else was written to."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        for parent in parents:
            parent.rmdir()
