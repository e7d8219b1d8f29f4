"""Small trained models that come with the package, each in a folder of its own.

A folder has `model.keras`, made by `keras_small.compress`, and `about.json`: the task, what turns
inputs into arrays and outputs into answers, and the card with data, licence and figures. They run
on every backend, without TensorFlow's operations on text. `make models` trains them again.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.coding import load_model
from keras_tnattn.search import BeamSearch
from keras_tnattn_runtime import reader

_HERE = Path(__file__).parent
MODEL, ABOUT = "model.keras", "about.json"


def names() -> list[str]:
    """Returns the names of the models that come with the package.

    Example:
        >>> names()
        ['dates-and-names', 'digits', 'docstrings']
    """
    return sorted(path.parent.name for path in _HERE.glob(f"*/{ABOUT}"))


def load(name: str | os.PathLike) -> Any:
    """Loads a trained model that comes with the package, or one from a folder like theirs.

    Args:
        name: `"docstrings"`, which tells the library that a docstring is from;
            `"dates-and-names"`, which translates dates, times, amounts and names of countries from
            Portuguese to English; `"digits"`, which reads pictures of digits, 8 x 8 grey values
            from 0 to 1; or the path of a folder like theirs, or of a `.tnz` file.

    Returns:
        A function of one input, or of a sequence of several, to answers. Its attribute `model` is
        the Keras model, and `card` a dict with data, licence, figures and command. Models of texts
        are those of `keras_tnattn_runtime.reader`, with the same methods. Of a `.tnz` file it is
        the Keras model, as `keras_small.coding.load_model` returns it; a class of its own is found
        in `keras.saving.custom_object_scope`.

    Raises:
        ValueError: If there is neither a model of this name nor such a folder, or it is damaged.

    Example:
        >>> translate = load("dates-and-names")
        >>> translate("terça-feira, 17 de dezembro de 1963")
        'Tuesday, December 17, 1963'
    """
    if Path(name).suffix.lower() == ".tnz":
        return load_model(name)
    own = _HERE / str(name)
    folder = own if str(name) in names() else Path(name)
    if not (folder / ABOUT).is_file():
        raise ValueError(
            f"Expected one of {names()}, a folder with {ABOUT}, or a .tnz file; keras.models."
            f"load_model loads .keras files, and predict runs. Received: name={str(name)!r}"
        )
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        kind = _KINDS[about["task"]]
        return kind(about, keras.saving.load_model(folder / MODEL, compile=False))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"Could not load the model in {folder}: {error}") from error


class _Classifier(reader.Classifier):
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.class_names, self.card, self.model = about["class_names"], about["card"], model
        self.words, self._by_length = reader.Words(**about["words"]), True

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(ids)  # compiled as a whole, which is faster on JAX


class _Translator(reader.Translator):
    def __init__(self, about: dict[str, Any], model: keras.Model) -> None:
        self.source, self.target = (reader.Pieces(**about[side]) for side in ("source", "target"))
        self.card, self.model, self.beam_size = about["card"], model, 1

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
        self.class_names, self.card, self.model = about["class_names"], about["card"], model

    def __call__(self, pictures: np.ndarray | Sequence[np.ndarray]) -> Any:
        """Returns the class of a picture, or the list of the classes of several."""
        batch = np.asarray(pictures, "float32")
        single = batch.ndim == len(self.model.input_shape) - 1
        probabilities = self.probabilities(batch[None] if single else batch)
        labels = [self.class_names[n] for n in probabilities.argmax(axis=1)]
        return labels[0] if single else labels

    def probabilities(self, pictures: np.ndarray) -> np.ndarray:
        """Returns floats `(B, C)` for pictures `(B, H, W)`."""
        logits = self.model.predict_on_batch(pictures)
        return keras.ops.convert_to_numpy(keras.ops.softmax(logits))


_KINDS: dict[str, Callable[[dict[str, Any], keras.Model], Any]] = {
    "classify": _Classifier,
    "translate": _Translator,
    "images": _PictureClassifier,
}
