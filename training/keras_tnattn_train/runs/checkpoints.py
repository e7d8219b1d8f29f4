"""Checkpoints from which an interrupted run continues exactly as if it had not stopped."""

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn_train.options.errors import InputError, first_line
from keras_tnattn_train.processes.devices import to_numpy, written_once
from keras_tnattn_train.system.files import replacing, writing

# What zipfile and NumPy raise when they read a file that is damaged or not an archive.
ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    KeyError,  # a member is missing
    MemoryError,  # a damaged header claims a huge array
    RuntimeError,  # a damaged header claims encryption or an unknown compression
    ValueError,  # a damaged header of an array
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def save_state(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes everything the next epoch depends on: weights, random and optimizer states."""
    _save(path, epochs, variables_of(model))


def load_state(model: keras.Model, path: Path) -> int:
    """Restores what `save_state` wrote into the same model, which has to be compiled."""
    return _load(path, variables_of(model), "Delete it to train the run from the beginning")


def save_weights(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes only the weights, as a zip archive, which has checksums (HDF5 has none)."""
    _save(path, epochs, model.weights)


def load_weights(model: keras.Model, path: Path, hint: str) -> int:
    """Restores what `save_weights` wrote into the same model, compiled or not."""
    return _load(path, model.weights, hint)


def _save(path: Path, epochs: int, variables: list[Any]) -> None:
    arrays = [to_numpy(variable) for variable in variables]

    def write() -> None:
        with writing(path.parent):
            path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, epochs, *arrays)

    written_once(write, "a checkpoint")  # which any process may read from now on


def _load(path: Path, variables: list[Any], hint: str) -> int:
    try:
        # Open the file here, because NumPy does not close a damaged file that it opened itself.
        # ZipFile rejects other files, for which NumPy would suggest unpickling.
        with path.open("rb") as file, zipfile.ZipFile(file), np.load(file) as saved:
            arrays = [saved[name] for name in saved.files]
            expected = [(), *(tuple(variable.shape) for variable in variables)]
            if [array.shape for array in arrays] != expected:
                raise ValueError("the shapes of its arrays are not those of this model")
            epochs = int(arrays[0])
    except ARCHIVE_ERRORS as error:
        raise InputError(
            f"Expected a checkpoint of this model. Received: {path} ({first_line(error)}). {hint}"
        ) from error
    for variable, array in zip(variables, arrays[1:], strict=True):
        variable.assign(array)
    return epochs


def variables_of(model: keras.Model) -> list[Any]:
    """Returns what the next epoch of a compiled model depends on."""
    model.optimizer.build(model.trainable_variables)
    # The random states of dropout are among the non-trainable variables here, but are not in
    # the files of `save_weights`.
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
