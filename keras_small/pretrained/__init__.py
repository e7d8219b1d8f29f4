"""Small trained models that come with the package, each in a folder of its own.

A folder has `model.keras` or `model.tnz`, made by `keras_small.compress`, and `about.json`: the
task, the rules from inputs to arrays and from outputs to answers, and the card with data, licence
and figures. They run on every backend, without TensorFlow's operations on text. `make models`
makes them again.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import keras
import numpy as np

from keras_small.coding.files import load_model
from keras_tnattn.search import BeamSearch
from keras_tnattn_runtime import reader
from keras_tnattn_runtime.layout import RUNTIMES, portable_folder

_HERE = Path(__file__).parent
MODEL = "model.keras"
CODED_MODEL = "model.tnz"
ABOUT = "about.json"


def names() -> list[str]:
    """Returns the names of the models that come with the package.

    Example:
        >>> names()
        ['dates-and-names', 'digits', 'docstrings', 'minilm']
    """
    return sorted(path.parent.name for path in _HERE.glob(f"*/{ABOUT}"))


def load(name: str | os.PathLike | IO[bytes]) -> Any:
    """Loads a model that comes with the package, one from a folder like theirs, or a `.tnz` file.

    Args:
        name: `"docstrings"`, which tells the library that a docstring is from;
            `"dates-and-names"`, which translates dates, times, amounts and names of countries from
            Portuguese to English; `"digits"`, which reads pictures of digits, 8 x 8 grey values
            from 0 to 1; `"minilm"`, the sentence encoder all-MiniLM-L6-v2, for which the package
            `constriction` has to be installed (the extra `coded`); or the path of a folder like
            theirs, or of a `.tnz` file; or a `.tnz` file that was opened in binary mode.

    Returns:
        A function of one input, or of a sequence of several, to answers. Its attribute `model` is
        the Keras model, and `card` a dict with data, licence, figures and command. Models of texts
        are those of `keras_tnattn_runtime.reader`, with the same methods, such as
        `load("minilm").encode(texts)`, which returns vectors `(N, 384)` of length 1. For a `.tnz`
        file it is the Keras model, the same as that of the `.keras` file, compiled if the saved one
        was; its integers stay integers. A class of its own is found in
        `keras.saving.custom_object_scope`.

    Raises:
        FileNotFoundError: If there is no such `.tnz` file.
        ImportError: If `constriction` is missing for a `.tnz` file or `"minilm"`.
        TypeError: If `name` is neither a path nor a file, or the file was opened in text mode.
        ValueError: If there is neither a model of this name nor such a folder, or it is damaged.

    Example:
        >>> translate = load("dates-and-names")
        >>> translate("terça-feira, 17 de dezembro de 1963")
        'Tuesday, December 17, 1963'
    """
    if hasattr(name, "read"):
        return load_model(name)
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"{_expected()}. Received: name={name!r:.80}")
    if Path(name).suffix.lower() == ".tnz":
        return load_model(name)
    own = _HERE / str(name)
    folder = own if str(name) in names() else Path(name)
    if not (folder / ABOUT).is_file():
        raise ValueError(f"{_expected()}. Received: name={str(name)!r}{_other_loader(folder)}")
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        kind = _KINDS[about["task"]]
        return kind(about, _model_in(folder))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"Could not load the model in {folder}: {error}") from error


def _model_in(folder: Path) -> keras.Model:
    coded = folder / CODED_MODEL
    if coded.is_file():
        return load_model(coded)
    return keras.saving.load_model(folder / MODEL, compile=False)


def _expected() -> str:
    return f"Expected one of {names()}, a folder with {ABOUT}, or a .tnz file"


def _other_loader(path: Path) -> str:
    """Names the loader of another file or folder, as the end of an error."""
    if path.suffix in (".keras", ".h5"):
        return f". Use keras.models.load_model({str(path)!r})"
    if path.suffix in {runtime.suffix for runtime in RUNTIMES.values()}:
        return f". Use keras_small.runtimes.file_outputs({str(path)!r}), which runs it"
    if any(any(path.glob(f"{version}saved_model.pb")) for version in ("", "[0-9]*/")):
        return (
            ", a SavedModel. Use keras_tnattn.export.load for one of texts, or "
            "tf.saved_model.load for others"
        )
    if (portable := portable_folder(path)) is not None:
        return f", an exported folder. Use keras_tnattn_runtime.reader.load({str(portable)!r})"
    if (path / "config.json").is_file():
        return f", a run. Use keras-tnattn predict {path}, or keras.models.load_model for its model"
    return (
        ", which is none of them: keras.models.load_model loads .keras files, "
        "keras_tnattn.export.load SavedModels of texts, and keras_tnattn_runtime.reader.load "
        "exported folders"
    )


class _Classifier(reader.Classifier):
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.class_names = about["class_names"]
        self.card = about["card"]
        self.model = model
        self.words = reader.Words(**about["words"])
        self._by_length = True

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(ids)  # compiled as a whole, which is faster on JAX


class _Encoder(reader.Encoder):
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.pieces = reader.BertPieces(**about["pieces"])
        self.dim = about["dim"]
        self.card = about["card"]
        self.model = model
        self._is_new = True

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        # Padded to few shapes, because each is compiled.
        count, length = ids.shape
        longer = min(_power_of_two(max(length, 16)), self.pieces.max_length)
        padded = np.zeros((_power_of_two(count), longer), "int32")
        padded[:count, :length] = ids
        padded[count:, 0] = self.pieces.start  # the mean of no pieces is NaN
        return self._vectors(padded)[:count]

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        if self._is_new and keras.backend.backend() == "tensorflow":
            # A graph takes seconds, which a single call does not get back.
            self._is_new = False
            return keras.ops.convert_to_numpy(self.model(ids, training=False))
        return self.model.predict_on_batch(ids)


def _power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()


class _Translator(reader.Translator):
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.source = reader.Pieces(**about["source"])
        self.target = reader.Pieces(**about["target"])
        self.card = about["card"]
        self.model = model
        self.beam_size = 1

    def search(
        self, source: np.ndarray, beam_size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        found = self._search(beam_size or self.beam_size)(source)
        return np.asarray(found.ids), np.asarray(found.scores)

    @functools.cached_property
    def _search(self) -> Callable[[int], BeamSearch]:
        return functools.cache(functools.partial(BeamSearch, self.model))


class _PictureClassifier:
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.class_names = about["class_names"]
        self.card = about["card"]
        self.model = model

    def __repr__(self) -> str:
        name, count = reader.name_of(self), len(self.class_names)
        shape = self.model.input_shape[1:]
        return (
            f"<classifier {name}: called with a picture {shape}, it gives one of {count} classes>"
        )

    def __call__(self, pictures: np.ndarray | Sequence[np.ndarray]) -> Any:
        """Returns the class of a picture, or the list of the classes of several."""
        batch = np.asarray(pictures, "float32")
        shape = self.model.input_shape[1:]
        if batch.shape in ((0,), (0, *shape)):
            return []
        single = batch.shape == shape
        if single:
            batch = batch[None]
        if batch.shape[1:] != shape:
            raise ValueError(
                f"Expected a picture of shape {shape}, or several. "
                f"Received: pictures.shape={batch.shape}"
            )
        labels = [self.class_names[n] for n in self.probabilities(batch).argmax(axis=1)]
        return labels[0] if single else labels

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        """Returns floats `(B, C)` for pictures `(B, H, W)`."""
        logits = self.model.predict_on_batch(pictures)
        return keras.ops.convert_to_numpy(keras.ops.softmax(logits))


_KINDS: dict[str, Callable[[dict[str, Any], keras.Model], Any]] = {
    "classify": _Classifier,
    "encode": _Encoder,
    "translate": _Translator,
    "images": _PictureClassifier,
}
