"""Saves models in memory first, because HDF5 that fails to write a file ends the process later."""

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

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
        # Keras writes its archive into a file object, which has no name that ends with `.keras`.
        keras.saving.save_model(model, archive, zipped=False)
    return archive


def saved_files(model: keras.Model) -> dict[str, bytes]:
    """Returns the files of a model's archive by name."""
    with zipfile.ZipFile(saved_archive(model)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@contextlib.contextmanager
def saved_folder(model: keras.Model) -> Iterator[Path]:
    """Saves a model into a folder for a while, which `keras.saving.load_model` reads."""
    with temporary_folder() as folder:
        with writing_to(folder.parent), zipfile.ZipFile(saved_archive(model)) as archive:
            archive.extractall(folder)
        yield folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder for a while."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
