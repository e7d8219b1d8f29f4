"""Saves models in memory first, because HDF5 that fails to write a file ends the process later."""

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_tnattn_runtime.folders import writing_to

WEIGHTS = "model.weights.h5"


def saved_archive(model: keras.Model) -> io.BytesIO:
    """Returns the `.keras` archive of a model, whose weights are in HDF5.

    Raises:
        OSError: If the folder for temporary files, which assets pass through, has no room.
    """
    archive = io.BytesIO()
    with writing_to(Path(tempfile.gettempdir())):
        _write_archive(model, archive)
    return archive


def _write_archive(model: keras.Model, file: io.IOBase) -> None:
    # A file object has no name that ends with `.keras`.
    keras.saving.save_model(model, file, zipped=False)


def saved_files(model: keras.Model) -> dict[str, bytes]:
    """Returns the files of a model's archive by name."""
    with zipfile.ZipFile(saved_archive(model)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@contextlib.contextmanager
def saved_folder(model: keras.Model) -> Iterator[Path]:
    """Saves a model into a folder for a while, which `keras.saving.load_model` reads."""
    with temporary_folder() as folder:
        path = folder / "archive.zip"
        with writing_to(folder.parent):
            # On disk, so that the weights are not in memory once more; this is no HDF5 yet.
            with _ErrorsLast(path.open("wb", buffering=0)) as file:
                _write_archive(model, file)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        path.unlink()
        yield folder


class _ErrorsLast(io.RawIOBase):
    """A file that raises the first error of a write once it is closed, and writes no more.

    Keras leaves a folder for assets behind if a write fails.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._error: OSError | None = None
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        self._size += len(rest)
        try:
            while self._error is None and rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._error = error
        return len(data)

    def close(self) -> None:
        super().close()
        self._file.close()
        error, self._error = self._error, None
        if error is not None:
            raise error


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder for a while."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
