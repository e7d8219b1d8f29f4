"""Loads saved models; a missing or damaged file is reported in one line."""

import tempfile
import warnings
import zipfile
from pathlib import Path

import keras

import keras_tnattn  # noqa: F401  registers its layers
from keras_tnattn_train.options.errors import InputError, first_line
from keras_tnattn_train.runs.checkpoints import ARCHIVE_ERRORS

# Keras raises a TypeError about models with unknown layers.
_ERRORS = (*ARCHIVE_ERRORS, TypeError)
# What Keras warns of when it leaves weights at their initial values.
_MISSING_WEIGHTS = ".*freshly-initialized"


def load_model(path: Path, hint: str) -> keras.Model:
    """Reads the trained model of a run."""
    if not path.exists():
        raise InputError(
            f"Expected the model of a finished run. Received: {path}, which is missing. {hint}"
        )
    try:
        return _read(path, "")  # our models load without any warning
    except UserWarning as warning:
        raise InputError(
            f"Expected a model that Keras loads without a warning. Received: {path}, with the "
            f"warning: {first_line(warning)}"
        ) from warning
    except _ERRORS as error:
        raise InputError(
            f"Expected the trained model of this run. Received: {path}, which is damaged or from "
            f"another program ({first_line(error)}). Delete it and results.json, then finish the "
            "run with --resume"
        ) from error


def load_file(path: Path) -> keras.Model:
    """Reads a Keras model of any origin."""
    try:
        return _read(path, _MISSING_WEIGHTS)
    except (*_ERRORS, UserWarning) as error:
        raise InputError(f"Could not load the model {path}: {first_line(error)}") from error


def _read(path: Path, refused: str) -> keras.Model:
    """Loads a model; a warning of the user whose text matches `refused` is an error."""
    if path.suffix.lower() == ".keras" != path.suffix:
        with tempfile.TemporaryDirectory() as folder:  # Keras knows the suffix in lower case only
            link = Path(folder, f"{path.stem}.keras")
            link.symlink_to(path.resolve())
            return _read(link, refused)
    if path.suffix == ".keras":
        # For a truncated file Keras would say that it does not exist.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum is wrong")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", refused, UserWarning)
        return keras.models.load_model(path, compile=False)
