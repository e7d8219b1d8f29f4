"""Locks by which processes agree on which of them works in a folder."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

# What `flock` answers on network file systems that have no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def locked(folder: Path, wait: bool = False, required: bool = False) -> Iterator[bool]:
    """Locks a folder, which need not exist, by the file `.lock-NAME` beside it.

    The system frees the lock of a process that is killed.

    Args:
        folder: The folder.
        wait: Whether to wait until no other process has it locked. Default `False`.
        required: Whether it is an error if the folder cannot be locked. By default the work goes on
            without a lock, and a message says so, unless the system or the disk has no locks or
            the folder does not exist.

    Yields:
        `False` if another process has the folder locked, else `True`.

    Raises:
        InputError: If a lock is required, and the folder cannot be locked.
    """
    file, free, path = None, True, folder
    new: list[Path] = []
    try:
        real = Path(os.path.realpath(folder))
        path = real.parent / f".lock-{real.name}"
        new = [parent for parent in path.parents if not parent.exists()]
        file = _acquired(path, wait)
    except BlockingIOError:
        free = False
    except ImportError as error:
        if required:
            raise InputError(f"Could not lock {path}: this system has no locks") from error
    except OSError as error:
        _remove_empty(new)
        if required:
            why = reason(error)
            raise InputError(f"Could not lock {path}: {why}. Choose another folder") from error
        if error.errno not in _NO_LOCKS and os.path.exists(folder):
            print(
                f"could not lock {path}: {reason(error)}. Make sure that no other process uses "
                f"{folder}",
                flush=True,
            )
    try:
        yield free
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(file)
            _remove_empty(new)


def _acquired(path: Path, wait: bool) -> int:
    """Returns the locked file, which is open."""
    import fcntl  # which only Unix has

    while True:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = _opened(path)
        except FileNotFoundError:  # another process has just removed the folder that it had made
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(file).st_nlink:
                return file
        except BaseException as error:
            os.close(file)
            if is_new and isinstance(error, OSError) and error.errno in _NO_LOCKS:
                path.unlink(missing_ok=True)
            raise
        os.close(file)  # another process has just ended and deleted the file


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        return os.open(path, os.O_RDONLY)  # another user made it


def _remove_empty(folders: list[Path]) -> None:
    """Removes the folders that were made for the lock, unless something was written there."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()
