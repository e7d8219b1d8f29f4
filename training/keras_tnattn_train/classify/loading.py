"""A finished run of `classify`: predicts, is compressed, and exports."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.parts import Part, ids_of
from keras_tnattn_train.classify.predicting import PredictingClassifier
from keras_tnattn_train.classify.reports import parameter_counts
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.classify.train import TrainedClassifier, prepare_parts
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.trained import TrainedRun

if TYPE_CHECKING:
    from keras_tnattn_train.exports.task import Task

# The share of a text's words with which a small model is trained.
HEALING_SHARE = 0.3


class ClassifierRun(PredictingClassifier, TrainedRun):
    """The finished run of a classifier."""

    kept_ids = 2  # padding and unknown words

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
        if result.renumbering:
            old_ids = result.renumbering.old_ids
            vocabulary = [vocabulary[old] for old in old_ids if old < len(vocabulary)]
        return {
            "fingerprint": self.fingerprint,
            "class_names": self.class_names,
            "vocabulary": vocabulary,
            "max_words": self._max_words,
        }

    def scores(self, result: Any) -> dict[str, float]:
        test = self.parts["test"]
        ids = result.renumbering(test.ids)
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
