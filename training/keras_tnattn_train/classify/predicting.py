"""A finished run of `classify` predicts: what an answer within seconds needs, and no more."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn.estimator.batches import compiled_lengths
from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.predictions import Predictor, label_columns, labels
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import PredictingRun
from keras_tnattn_train.system.files import read_object


class PredictingClassifier(PredictingRun):
    """The finished run of a classifier, which predicts."""

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

        return Predictor(predictions, label_columns(self.class_names))
