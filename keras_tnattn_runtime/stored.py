"""Arrays in temporary files instead of in memory.

The files lie in the folder that the environment variable `TMPDIR` names, and are deleted together
with what is in them. They are mapped into memory: the system keeps the parts that were read as long
as there is room.
"""

import contextlib
import itertools
import mmap
import tempfile
from collections.abc import Iterable

import numpy as np


class StorageError(OSError):
    """A temporary file could not be written."""


def stored_array(blocks: Iterable[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Joins arrays, which are read once, to one in a temporary file, which cannot be written."""
    blocks = iter(blocks)
    first = next(blocks)
    content = store(block.tobytes() for block in itertools.chain([first], blocks))
    return np.frombuffer(content, first.dtype).reshape(shape)


def store(chunks: Iterable[bytes]) -> mmap.mmap | bytes:
    """Writes bytes to a temporary file, and maps it.

    Raises:
        StorageError: If the file cannot be written.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        for chunk in chunks:  # whose own errors are not those of the file
            try:
                file.write(chunk)
            except OSError as error:
                raise _unwritable(error) from error
        try:
            file.flush()
            # An empty file cannot be mapped.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
        except OSError as error:
            raise _unwritable(error) from error
    finally:
        with contextlib.suppress(OSError):  # what could not be written before
            file.close()


def _unwritable(error: OSError) -> StorageError:
    text = error.strerror or str(error)
    return StorageError(
        f"Could not store the data in {tempfile.gettempdir()}: {text[:1].lower()}{text[1:]}. Name "
        "a folder with more room in the environment variable TMPDIR"
    )
