"""Exports classifiers of texts."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.exporting import write_file
from keras_tnattn.export.classifiers import (
    check_class_names,
    classifier_signatures,
    ignores_padding,
)
from keras_tnattn.export.signatures import Signatures
from keras_tnattn.text.words import WordVectorizer, lower_and_join, lower_and_separate
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.task import Task

# Texts with which a written folder is tried, besides the examples.
_TEXTS = ("", "a text", "Words, and more words.")
# Maximum error of probabilities: Keras' int8 rounds inputs, and files do not.
_MAXIMUM_PROBABILITY_ERROR = 0.02


@dataclasses.dataclass(frozen=True)
class Classifier(Task):
    """A classifier of texts.

    A portable folder has `model.onnx` or `model.tflite`, and is a function from a text to the name
    of its class. A version has the signatures of
    `keras_tnattn.export.classifiers.classifier_signatures`.

    Args:
        model: A model from ids `(B, L)` to class probabilities `(B, C)`.
        vectorizer: The vectorizer of texts, e.g. from `keras_tnattn.text.words.learn_words`, or a
            layer of `keras_tnattn.text.word_vectorizer`. Versions take any layer.
        class_names: The `C` names.
        split_words: For versions, a function from strings `(B,)` to the words `(B, None)` of the
            ids, e.g. `keras_tnattn.text.words.split_words`. Default: no signature `explain`.
        card: Entries of the model card. Default: none.
    """

    model: keras.Model
    vectorizer: WordVectorizer | keras.layers.Layer
    class_names: Sequence[str]
    split_words: Callable[[Tensor], Any] | None = None
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    kind = "a classifier"
    forms = ("Version", "Portable", "Page")

    def content(self) -> dict[str, Any]:
        check_class_names(self.model, self.class_names)
        words = self._words()
        return {
            "format": reader.FORMAT,
            "task": "classify",
            "class_names": list(self.class_names),
            "by_length": ignores_padding(self.model, words.vocabulary_size()),
            "words": {
                "vocabulary": words.get_vocabulary()[2:],
                "between": words.between,
                "max_words": words.max_words,
            },
        }

    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        words = self._words()
        name = f"model{suffix}"
        write_file(self.model, folder / name, words(self._texts()), words.max_words)
        return {"model": name}

    def compare(self, folder: Path) -> None:
        texts = self._texts()
        expected = keras.ops.convert_to_numpy(self.model(self._words()(texts), training=False))
        outputs = reader.load(folder).probabilities(texts)
        error = np.abs(outputs - expected).max()
        if not error <= _MAXIMUM_PROBABILITY_ERROR:
            raise RuntimeError(f"its probabilities are off by {error:.2g}")

    def signatures(self) -> Signatures:
        layer = self.vectorizer
        if isinstance(layer, WordVectorizer):
            layer = layer.layer()
        return classifier_signatures(self.model, layer, self.class_names, self.split_words)

    def _texts(self) -> list[str]:
        return [*_TEXTS, *self.examples]

    def _words(self) -> WordVectorizer:
        if isinstance(self.vectorizer, WordVectorizer):
            return self.vectorizer
        return plain_vectorizer(self.vectorizer)


def plain_vectorizer(layer: keras.layers.Layer) -> WordVectorizer:
    """Returns the vectorizer in plain Python that does what a layer of its own does.

    Raises:
        ValueError: If the layer splits texts in another way.
    """
    config = layer.get_config()
    splits = {
        ("whitespace", lower_and_separate): "words",
        ("character", lower_and_join): "characters",
    }
    split = splits.get((config.get("split"), config.get("standardize")))
    if split is None or config.get("ngrams") or config.get("output_mode") != "int":
        raise ValueError(
            "Expected a layer of keras_tnattn.text.words, whose words engines read. Received: "
            f"{layer.name}, another one. Export without engines"
        )
    return WordVectorizer(layer.get_vocabulary()[2:], config["output_sequence_length"], split)
