"""Loads saved models; a missing or damaged file is reported in one line."""

import json
import tempfile
import warnings
import zipfile
from pathlib import Path

import keras

import keras_small  # noqa: F401  registers the layers of small models
from keras_tnattn.errors import cause_of  # also registers the layers of keras_tnattn
from keras_tnattn_runtime.extras import installation
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.checkpoints import ARCHIVE_ERRORS

# Keras raises a TypeError about models with unknown layers.
_ERRORS = (*ARCHIVE_ERRORS, TypeError)
# What Keras warns of when it leaves weights at their initial values.
_MISSING_WEIGHTS = ".*freshly-initialized"
_WEIGHTS = ".weights.h5"


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
            f"warning: {cause_of(warning)}"
        ) from warning
    except _ERRORS as error:
        raise InputError(
            f"Expected the trained model of this run. Received: {path}, which is damaged or from "
            f"another program ({cause_of(error)}). Delete it and results.json, then finish the "
            "run with --resume"
        ) from error


def is_preset(path: Path) -> bool:
    """Returns whether a path is the folder of a preset of keras-hub."""
    return (path / "metadata.json").is_file()


def load_file(path: Path) -> keras.Model:
    """Reads a Keras model of any origin.

    Args:
        path: A `.keras` or `.h5` file; a `.weights.h5` file with the model's `to_json()` beside it;
            or the folder of a preset of keras-hub.
    """
    try:
        if path.name.endswith(_WEIGHTS):
            return _read_weights(path)
        if is_preset(path):
            return _read_preset(path)
        return _read(path, _MISSING_WEIGHTS)
    except (*_ERRORS, UserWarning) as error:
        raise InputError(
            f"Could not load the model {path}: {cause_of(error)}. Save it again, with Keras "
            f"{keras.__version__} or an older version"
        ) from error


def _read_weights(path: Path) -> keras.Model:
    """Reads the weights of a model, and its layers from the file of its config."""
    config = path.with_name(f"{path.name.removesuffix(_WEIGHTS)}.json")
    if not config.is_file():
        raise InputError(
            f"Expected the config of the model beside its weights. Received: {path}, without "
            f"{config.name}. Write it with Path({config.name!r}).write_text(model.to_json())"
        )
    model = keras.models.model_from_json(config.read_text(encoding="utf-8"))
    model.load_weights(path)
    return model


def _read_preset(path: Path) -> keras.Model:
    """Reads a preset of keras-hub: its task, if it has one, else its backbone."""
    try:
        import keras_hub
    except ImportError as error:
        raise InputError(
            f"Expected keras-hub, which reads presets. Received: {path}, and {error}. "
            f"{installation('keras_hub')}"
        ) from error
    task = path / "task.json"
    config = task if task.is_file() else path / "config.json"
    name = json.loads(config.read_text(encoding="utf-8"))["class_name"]
    options = {"preprocessor": None} if task.is_file() else {}
    kind = getattr(keras_hub.models, name, None)
    if kind is None:
        raise InputError(f"Expected a preset of keras-hub. Received: {path}, of the class {name}")
    return kind.from_preset(str(path), **options)


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
