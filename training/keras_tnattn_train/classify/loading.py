"""Loads a trained text classifier from its run."""

import dataclasses
from pathlib import Path

import keras
import numpy as np

from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.runs import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.system.files import read_object


@dataclasses.dataclass(frozen=True)
class TrainedClassifier:
    """A classifier and its vocabulary.

    Args:
        model: The model, from ids `(B, L)` to probabilities `(B, C)`.
        vectorizer: Turns `B` texts into ids `(B, L)`.
        class_names: The names of the `C` classes.
    """

    model: keras.Model
    vectorizer: WordVectorizer
    class_names: list[str]

    def probabilities(self, texts: list[str]) -> np.ndarray:
        """Returns the probabilities `(B, C)` of `B` texts."""
        return np.asarray(self.model.predict_on_batch(self.vectorizer(texts)))


def load_classifier(folder: str | Path) -> TrainedClassifier:
    """Loads the classifier of a finished run.

    Raises:
        InputError: If the run does not exist or is not finished, or one of its files is damaged.
    """
    folder = Path(folder)
    config = Run(folder).read_config(ClassifyConfig, {})
    hint = "Train the run again"
    data = read_object(folder / "data.json", hint)
    model = load_model(folder / "model.keras", "Finish the run with --resume")
    vocabulary, names = data.get("vocabulary"), data.get("class_names")
    if not isinstance(vocabulary, list) or not isinstance(names, list):
        raise InputError(
            f"Expected vocabulary and class_names in {folder / 'data.json'}. Received: "
            f"{', '.join(data)}. {hint}"
        )
    if model.output_shape[-1] != len(names):
        raise InputError(
            f"Expected a classifier of {len(names)} classes, as {folder / 'data.json'} says. "
            f"Received: {folder / 'model.keras'} with {model.output_shape[-1]}. {hint}"
        )
    # The first two entries stand for padding and for unknown words.
    return TrainedClassifier(model, WordVectorizer(vocabulary[2:], config.max_words), names)
