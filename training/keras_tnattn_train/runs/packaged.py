"""The models of texts that come with the package, exported as a run is."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tnattn_runtime.extras import has_onnx
from keras_tnattn_train.options.errors import InputError

if TYPE_CHECKING:
    from keras_tnattn_train.exports.task import Task


def packaged_models() -> dict[str, Path]:
    """Returns the folders of the models that come with the package, by name."""
    # Found without an import, which would bring Keras along.
    package = importlib.util.find_spec("keras_small")
    folders = (package and package.submodule_search_locations) or []
    abouts = [path for folder in folders for path in Path(folder).glob("pretrained/*/about.json")]
    return {path.parent.name: path.parent for path in sorted(abouts)}


def load_packaged(name: str) -> "PackagedClassifier | PackagedEncoder":
    """Loads a model of `packaged_models` that can be exported.

    Raises:
        InputError: If it is of another kind.
    """
    import keras_small

    about = json.loads((packaged_models()[name] / "about.json").read_text("utf-8"))
    if about["task"] == "encode":
        return PackagedEncoder(keras_small.load(name))
    if about["task"] == "classify":
        return PackagedClassifier(keras_small.load(name), about["words"])
    raise InputError(f"Expected docstrings or minilm. Received: {name}, which is no model for it")


class PackagedEncoder:
    """A sentence encoder that comes with the package, as `keras_small.load` returns it."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    def task(self) -> "Task":
        """Returns the model and its text, for `exports.export`."""
        from keras_tnattn_train.exports import Encoder

        return Encoder(self.encoder.model, self.encoder.pieces, self.encoder.card)


class PackagedClassifier:
    """A classifier of texts that comes with the package.

    Args:
        loaded: What `keras_small.load` returns.
        words: The vocabulary and the number of words of a text, in `about.json`.
    """

    def __init__(self, loaded: Any, words: dict[str, Any]) -> None:
        from keras_tnattn.text.words import WordVectorizer

        self.model = loaded.model
        self.class_names = loaded.class_names
        self.card = loaded.card
        self.vectorizer = WordVectorizer(words["vocabulary"], words["max_words"])

    def task(self) -> "Task":
        """Returns the model and its text, for `exports.export`."""
        from keras_tnattn.text.words import split_words
        from keras_tnattn_train.exports import Classifier

        return Classifier(self.model, self.vectorizer, self.class_names, split_words, self.card)

    def export(self, folder: Path) -> Path:
        """Exports the model to a new version in a folder, for the server, and returns its path."""
        from keras_tnattn_train.exports import Version, export

        engines = ("onnxruntime",) if has_onnx() else ()
        return export(self.task(), folder, Version(engines=engines))
