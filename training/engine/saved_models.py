"""Reading a run's `model.keras`, with an error of one line if it is missing or damaged."""

import warnings
import zipfile
from pathlib import Path

import keras

from training.engine.checkpoints import ARCHIVE_ERRORS, first_line
from training.errors import InputError


def load_model(path: Path, hint: str) -> keras.Model:
    """Reads a trained model.

    Args:
        path: The file.
        hint: A sentence for the error message: what to do if the file is missing.

    Raises:
        InputError: If it is missing, damaged or no model of ours.
    """
    if not path.exists():
        raise InputError(
            f"Expected the model of a finished run. Received: {path}, which is missing. {hint}"
        )
    try:
        # Keras says of a truncated file that it does not exist.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum is wrong")
        with warnings.catch_warnings():
            # Of missing weights Keras only warns, and leaves them as initialized.
            warnings.simplefilter("error", UserWarning)
            return keras.models.load_model(path, compile=False)
    # A TypeError or warning is what Keras raises for another program's model.
    except (*ARCHIVE_ERRORS, TypeError, UserWarning) as error:
        raise InputError(
            f"Expected a trained model of this run. Received: {path}, damaged or another "
            f"program's ({first_line(error)}). Delete it and results.json, then finish the run "
            "with --resume"
        ) from error
