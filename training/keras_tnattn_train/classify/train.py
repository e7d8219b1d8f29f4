"""Trains, measures and exports one text classifier."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.keeping import Kept
from keras_tnattn.estimator.parts import CHUNK, Part, prepare
from keras_tnattn.estimator.text_classifier import TextClassifier, Training
from keras_tnattn.export.explaining import attention_scores
from keras_tnattn.text.words import WordVectorizer, split_characters, split_words
from keras_tnattn_runtime.extras import has_onnx
from keras_tnattn_runtime.stored import StorageError
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.reports import (
    draw_psi,
    parameter_counts,
    write_mistakes,
    write_report,
)
from keras_tnattn_train.data.texts.labeled import LabeledTexts, split_rows
from keras_tnattn_train.options.errors import input_errors
from keras_tnattn_train.runs.cards import DECIMALS, describe
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import confusion_matrix, learning_curves
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog, fit, start_session


def train_classifier(config: ClassifyConfig, run: Run, data: LabeledTexts) -> dict[str, Any]:
    """Trains a classifier, or resumes an interrupted run."""
    with input_errors():  # Keras and our layers validate sizes
        start_session(config)
    classifier = ClassifierOfRun(config, run, data)
    train, test = split_rows(data.labels, config.test_fraction, config.seed)
    with input_errors(StorageError):
        classifier.fit_rows(train)
        tested = Part.of(classifier.vectorizer_, data.texts, data.labels, test)
    parts = {**classifier.parts, "test": tested}
    trained = TrainedClassifier(config, classifier.model_, classifier.vectorizer_, data, tested)
    results = _results(trained, parts, classifier.log) | described(classifier.kept_)
    _write_reports(trained, run.folder)
    rows = classifier.log.rows
    learning_curves(rows, results["test_accuracy"], run.folder / "learning_curves.png")
    _draw_attention(trained, parts["train"].ids, run.folder / "psi.png")
    return finish(config, run, trained.model, results, functools.partial(trained.export, results))


class ClassifierOfRun(TextClassifier):
    """The estimator whose training is a run: with checkpoints, and on several devices.

    Attributes:
        parts: The parts of the rows that it was fitted to, `train` and perhaps `validation`.
        log: The metrics of the epochs.
    """

    def __init__(self, config: ClassifyConfig, run: Run, data: LabeledTexts) -> None:
        super().__init__(verbose=1)
        self.config = config
        self.run = run
        self.data = data

    def fit_rows(self, rows: np.ndarray) -> None:
        """Trains on some rows of the data, or resumes that."""
        data = self.data
        self._fit(self.config.settings, data.texts, data.labels, rows, np.array(data.class_names))

    def _prepare(self, *arguments: Any) -> tuple[WordVectorizer, dict[str, Part]]:
        with input_errors():
            vectorizer, self.parts = super()._prepare(*arguments)
        return vectorizer, self.parts

    def _train(self, training: Training) -> keras.Model:
        config, run = self.config, self.run
        with input_errors():  # Keras and our layers validate sizes
            model = training.build()
        run.start_or_check(config, _description(config, training.vectorizer, self.data))
        if config.initial_weights == "svm" and not run.last_checkpoint.exists():
            self._start_from_svm(model, training)
        if config.word_dropout or config.dropout:
            print(
                "  loss and accuracy of an epoch are those of training, with dropped words and "
                "features; val_loss, val_accuracy and the results are those of whole texts"
            )
        held_out = training.parts.get("validation")
        self.log = fit(
            model,
            training.batches,
            config,
            run,
            held_out and held_out.batches(),
            EpochLog(run, config.early_stopping, config.monitor),
        )
        return self.log.model


def described(kept: Kept | None) -> dict[str, Any]:
    """Returns the entry `kept` of `results.json` and of the model card, if there is one."""
    if kept is None:
        return {}
    accuracies = dataclasses.asdict(kept)
    weights = accuracies.pop("weights")
    rounded = {name: round(value, DECIMALS) for name, value in accuracies.items()}
    return {"kept": {"weights": weights, **rounded}}


def _description(
    config: ClassifyConfig, vectorizer: WordVectorizer, data: LabeledTexts
) -> dict[str, Any]:
    return {
        "fingerprint": data.fingerprint(),
        "notes": list(data.notes),
        "class_names": list(data.class_names),
        "vocabulary": vectorizer.get_vocabulary(),
        **({} if config.max_words else {"max_words": vectorizer.max_words}),
    }


@dataclasses.dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier, with what it was trained and is tested on."""

    config: ClassifyConfig
    model: keras.Model
    vectorizer: WordVectorizer
    data: LabeledTexts
    test: Part

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """The probabilities `(R, C)` of the classes for the test part."""
        return outputs_of(self.model, self.test.ids)

    @property
    def predictions(self) -> np.ndarray:
        """The predicted classes `(R,)` of the test part."""
        return self.probabilities.argmax(axis=-1)

    def export(self, results: dict[str, Any], folder: Path, version: int | None = None) -> Path:
        """Exports the classifier with a model card and examples from the test part."""
        from keras_tnattn_train import exports  # which needs TensorFlow

        data, rows = self.data, self.test.rows
        source = {
            "name": self.config.dataset,
            "fingerprint": data.fingerprint(),
            "notes": list(data.notes),
        }
        examples = [data.texts[row][:200] for row in rows[:: max(1, len(rows) // 5)][:5]]
        card = {"examples": examples, **describe(self.config, source, results)}
        if "kept" in results:
            card["kept"] = results["kept"]
        split = split_words if self.vectorizer.split == "words" else split_characters
        task = exports.Classifier(self.model, self.vectorizer, data.class_names, split, card)
        if has_onnx():
            try:
                return exports.export(task, folder, exports.Version(version, ("onnxruntime",)))
            except RuntimeError as error:  # not every model can be converted
                print(f"note: TensorFlow computes the exported model, because: {error}")
        return exports.export(task, folder, exports.Version(version))


def _results(trained: TrainedClassifier, parts: dict[str, Part], log: EpochLog) -> dict[str, Any]:
    """Returns the content of `results.json`."""
    train_predictions = outputs_of(trained.model, parts["train"].ids).argmax(axis=-1)
    return {
        "train_accuracy": float(np.mean(train_predictions == parts["train"].labels)),
        "test_accuracy": float(np.mean(trained.predictions == trained.test.labels)),
        **log.costs,
        "parameters": parameter_counts(trained.model),
        "rows": {name: len(part.labels) for name, part in parts.items()},
        "classes": len(trained.data.class_names),
    }


def _write_reports(trained: TrainedClassifier, folder: Path) -> None:
    labels, names = trained.test.labels, trained.data.class_names
    write_report(labels, trained.predictions, names, folder / "report.csv")
    write_mistakes(
        trained.data.texts,
        trained.test.rows,
        labels,
        trained.probabilities,
        names,
        folder / "mistakes.csv",
    )
    confusion_matrix(labels, trained.predictions, names, folder / "confusion_matrix.png")


def _draw_attention(trained: TrainedClassifier, train_ids: np.ndarray, path: Path) -> None:
    scores = attention_scores(trained.model)
    if scores is not None and "tt_ranks" in trained.config.attention_arguments:
        sentence, vocabulary = _a_sentence(train_ids), trained.vectorizer.get_vocabulary()
        psi = keras.ops.convert_to_numpy(scores(sentence[None]))[0]
        draw_psi(psi, [vocabulary[i] for i in sentence], path)


def prepare_parts(
    config: ClassifyConfig, data: LabeledTexts
) -> tuple[WordVectorizer, dict[str, Part]]:
    """Returns a vectorizer that is learned from the training part, and the parts as ids by name.

    These are `train`, `test` and, if there is one, `validation`.
    """
    train, test = split_rows(data.labels, config.test_fraction, config.seed)
    with input_errors((ValueError, StorageError)):
        vectorizer, parts = prepare(config.settings, data.texts, data.labels, train, print)
        tested = Part.of(vectorizer, data.texts, data.labels, test)
    return vectorizer, {**parts, "test": tested}


def _a_sentence(ids: np.ndarray) -> np.ndarray:
    """Returns the first text of 10 to 30 words or, if there is none, the start of the longest."""
    blocks = (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
    lengths = np.concatenate([np.count_nonzero(block, axis=1) for block in blocks])
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= 30))
    row = fitting[0] if len(fitting) else lengths.argmax()
    return ids[row, : min(lengths[row], 30)]
