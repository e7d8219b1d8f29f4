"""A finished run of `classify`: predicts, is compressed, and exports."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.reports import parameter_counts
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.classify.train import Part, TrainedClassifier, ids_of, prepare_parts
from keras_tnattn_train.data.batches import compiled_lengths
from keras_tnattn_train.data.texts import LabeledTexts
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.predictions import Predictor, labels
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.runs.training import outputs_of
from keras_tnattn_train.system.files import read_object

if TYPE_CHECKING:
    from keras_tnattn_train.exports import Task

# The share of a text's words with which a small model is trained.
HEALING_SHARE = 0.3


class ClassifierRun(TrainedRun):
    """The finished run of a classifier."""

    renumbered = 2  # padding and unknown words

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.config = self.run.read_config(ClassifyConfig, {})
        hint = "Train the run again"
        data = read_object(folder / "data.json", hint)
        self.model = load_model(folder / "model.keras", "Finish the run with --resume")
        vocabulary, names = data.get("vocabulary"), data.get("class_names")
        if not isinstance(vocabulary, list) or not isinstance(names, list):
            raise InputError(
                f"Expected vocabulary and class_names in {folder / 'data.json'}. Received: "
                f"{', '.join(data)}. {hint}"
            )
        if self.model.output_shape[-1] != len(names):
            raise InputError(
                f"Expected a classifier of {len(names)} classes, as {folder / 'data.json'} says. "
                f"Received: {folder / 'model.keras'} with {self.model.output_shape[-1]}. {hint}"
            )
        self.class_names, self.fingerprint = names, data.get("fingerprint")
        self._max_words = self.config.max_words or int(data.get("max_words", 200))
        self.vectorizer = self._vectorizer(vocabulary)

    def _vectorizer(self, vocabulary: list[str]) -> WordVectorizer:
        # The first two entries stand for padding and for unknown words.
        return WordVectorizer(vocabulary[2:], self._max_words, self.config.split)

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        told = False

        def predictions(texts: list[str]) -> Any:
            nonlocal told
            if not told and any(map(self.vectorizer.cuts, texts)):
                told = True
                print(
                    f"note: the first {self.vectorizer.max_words:,} {self.config.split} of a text "
                    "are read, and some texts have more (--max-words of classify)",
                    file=sys.stderr,
                )
            ids = self.vectorizer(texts)
            ids = ids[:, : compiled_lengths(ids).max()]
            return labels(np.asarray(self.model.predict_on_batch(ids)), self.class_names, ids)

        return predictions

    @functools.cached_property
    def data(self) -> LabeledTexts:
        """The texts that it was trained on and tested with."""
        data = read_texts(self.config)
        self.run.check_data({"fingerprint": data.fingerprint()})
        return data

    @functools.cached_property
    def parts(self) -> dict[str, Part]:
        """The parts of these texts, as ids."""
        return prepare_parts(self.config, self.data)[1]

    def probabilities(self, texts: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """Returns the probabilities `(R, C)` of the classes of some rows of `texts`."""
        return outputs_of(self.model, ids_of(self.vectorizer, texts, rows))

    def inputs(self) -> np.ndarray:
        return self.parts["train"].ids

    def new_inputs(self) -> np.ndarray:
        parts = self.parts
        return np.concatenate([parts[x].ids for x in ("validation", "test") if x in parts])

    def healing_inputs(self) -> np.ndarray:
        return thin_out(self.inputs())

    def accuracy(self) -> Callable[[keras.Model], float]:
        parts = self.parts
        part = parts.get("validation", parts["train"])
        rows = slice(None) if "validation" in parts else np.arange(len(part.labels)) % 10 == 0
        return _accuracy(part.ids[rows], part.labels[rows])

    def description(self, result: Any) -> dict[str, Any]:
        vocabulary = self.vectorizer.get_vocabulary()
        for order in result.id_orders.values():
            vocabulary = [vocabulary[old] for old in order if old < len(vocabulary)]
        return {
            "fingerprint": self.fingerprint,
            "class_names": self.class_names,
            "vocabulary": vocabulary,
            "max_words": self._max_words,
        }

    def scores(self, result: Any) -> dict[str, float]:
        test = self.parts["test"]
        ids = result.renumber(test.ids)
        return {
            "test_accuracy_before": _accuracy(test.ids, test.labels)(self.model),
            "test_accuracy_after": _accuracy(ids, test.labels)(result.model),
        }

    def summary(self, scores: dict[str, float], folder: Path) -> str:
        before, after = scores.values()
        return f"accuracy on the test part: {before:.1%} -> {after:.1%}"

    def export(self, result: Any, scores: dict[str, float], folder: Path) -> Path:
        measured = {
            "test_accuracy": scores["test_accuracy_after"],
            "parameters": parameter_counts(result.model),
        }
        vectorizer = self._vectorizer(self.description(result)["vocabulary"])
        trained = TrainedClassifier(
            self.config, result.model, vectorizer, self.data, self.parts["test"]
        )
        return trained.export(measured, folder)

    def task(self) -> "Task":
        from keras_tnattn_train.exports import Classifier

        description = describe(self.config, {"name": self.config.dataset}, {})
        card = {"name": self.config.name, **description}
        return Classifier(self.model, self.vectorizer, self.class_names, card=card)


def _accuracy(ids: np.ndarray, labels: np.ndarray) -> Callable[[keras.Model], float]:
    return lambda model: float(np.mean(outputs_of(model, ids).argmax(axis=-1) == labels))


def thin_out(ids: np.ndarray) -> np.ndarray:
    """Returns texts with about 30 % of their words, so that the model has not memorized them.

    Args:
        ids: Integers `(R, L)`, padded with 0.
    """
    words = (np.random.default_rng(0).random(ids.shape) < HEALING_SHARE) & (ids != 0)
    words[~words.any(axis=1), 0] = True  # no text becomes empty
    order = np.argsort(~words, axis=1, kind="stable")
    return np.take_along_axis(np.where(words, ids, 0), order, axis=1)
