"""Computes the signatures of a classifier, or continues texts, by another engine than TensorFlow.

An exported version has a folder for each engine with which it was verified: what
`keras_tnattn_runtime.reader` reads.
"""

import dataclasses
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime import reader
from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.layout import ENGINES as FOLDER
from keras_tnattn_runtime.layout import READER_RUNTIMES, RUNTIMES
from keras_tnattn_serving.errors import RequestError

_Compute = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
_log = logging.getLogger(__name__)


def check_installed(engine: str) -> None:
    """Raises an `ImportError` if an engine is not installed."""
    package = RUNTIMES[engine].package if engine in RUNTIMES else None
    if package and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"The engine {engine} is not installed. {installation(package)}, "
            "or serve with --engine auto"
        )


@dataclasses.dataclass(frozen=True)
class Engine:
    """A loaded engine."""

    name: str
    signatures: dict[str, _Compute]
    language_model: reader.LanguageModel | None = None


def load_engine(path: Path, engine: str) -> Engine:
    """Loads the engine of a version.

    `"auto"` is the first that the version has, that is installed and that loads, else TensorFlow.

    Raises:
        ImportError: If the engine is not installed.
        ValueError: If the version has no such engine, or its files are damaged or of another
            version.
    """
    if engine == "tensorflow":
        return Engine(engine, {})
    if engine != "auto":
        check_installed(engine)
        if not (path / FOLDER / engine).is_dir():
            raise ValueError(
                f"Expected {path / FOLDER / engine}. The model was exported without the engine "
                f"{engine}: export it again, or serve it with --engine auto"
            )
        return _loaded_engine(engine, path / FOLDER / engine)
    for name in READER_RUNTIMES:
        if (path / FOLDER / name).is_dir():
            try:
                check_installed(name)
                return _loaded_engine(name, path / FOLDER / name)
            except (ImportError, OSError, ValueError) as error:
                _log.warning("%s is served by TensorFlow: %s", path, error)
    return Engine("tensorflow", {})


def _loaded_engine(name: str, folder: Path) -> Engine:
    # One thread: the server uses the other cores for what surrounds the model.
    model = reader.load(folder, threads=1)
    if isinstance(model, reader.LanguageModel):
        return Engine(name, {}, model)
    return Engine(name, _signatures(model))


def _signatures(classifier: reader.Classifier) -> dict[str, _Compute]:
    names = np.array([name.encode() for name in classifier.class_names], object)
    size = classifier.words.vocabulary_size

    def outputs(probabilities: np.ndarray) -> dict[str, np.ndarray]:
        return {"label": names[probabilities.argmax(axis=1)], "probabilities": probabilities}

    def from_text(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        texts = [text.decode("utf-8", "replace") for text in arrays["text"]]
        return outputs(classifier.probabilities(texts))

    def from_ids(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
        ids = arrays["ids"]
        if ids.size and not 0 <= ids.min() <= ids.max() < size:
            raise RequestError(f"Expected ids of 0 to {size - 1}. Received: others")
        return outputs(classifier.from_ids(ids))

    return {"serving_default": from_text, "ids": from_ids}
