"""Trains, measures and exports one text classifier."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.utils.class_weight import compute_sample_weight

from keras_tnattn.export.explaining import attention_scores
from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import WordVectorizer, learn_words, split_characters, split_words
from keras_tnattn_runtime.extras import has_onnx
from keras_tnattn_train.classify.config import MOST_WORDS, PAIRWISE_WORDS, ClassifyConfig
from keras_tnattn_train.classify.initial_weights import svm_weights
from keras_tnattn_train.classify.keeping import described, keep_better
from keras_tnattn_train.classify.reports import (
    draw_psi,
    parameter_counts,
    write_mistakes,
    write_report,
)
from keras_tnattn_train.data.batches import MAX_TOKENS, GroupedTextBatches, TextBatches
from keras_tnattn_train.data.stored import stored_array
from keras_tnattn_train.data.texts.labeled import LabeledTexts, split_rows
from keras_tnattn_train.options.errors import input_errors
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import confusion_matrix, learning_curves
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog, fit, outputs_of, start_session

# How many words of a text are read by default: those of this share of the training texts, but at
# least so many; less if the ids of all texts would take more than 4 GiB.
WHOLE_TEXTS, FEWEST_WORDS = 0.99, 200
LARGEST_IDS = 2**30
# Texts of up to this many words share batches whatever their lengths.
SHORT_TEXTS = 256
CHUNK = 4096  # texts that are in memory at once


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one part: their numbers `(R,)`, ids `(R, L)`, on disk, and labels `(R,)`."""

    rows: np.ndarray
    ids: np.ndarray
    labels: np.ndarray

    def batches(self) -> GroupedTextBatches:
        """Returns the batches with which it is measured."""
        return GroupedTextBatches(self.ids, self.labels, 256, MAX_TOKENS)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids and the labels."""
        return self.ids, self.labels


def train_classifier(config: ClassifyConfig, run: Run, data: LabeledTexts) -> dict[str, Any]:
    """Trains a classifier, or resumes an interrupted run."""
    with input_errors():  # Keras and our layers validate sizes
        start_session(config)
        vectorizer, parts = prepare_parts(config, data)
        batches = _training_batches(config, parts["train"])
        sizes = vectorizer.vocabulary_size(), len(data.class_names), len(batches)
        build = functools.partial(compiled_model, config, *sizes, max_words=vectorizer.max_words)
        model = build()
    run.start_or_check(config, _description(config, vectorizer, data))
    if config.initial_weights == "svm" and not run.last_checkpoint.exists():
        model.set_weights(svm_weights(config, build, parts["train"].ids, parts["train"].labels))
    if config.word_dropout or config.dropout:
        print(
            "  loss and accuracy of an epoch are those of training, with dropped words and "
            "features; val_loss, val_accuracy and the results are those of whole texts"
        )
    log = EpochLog(run, config.early_stopping, config.monitor)
    held_out = parts.get("validation")
    log = fit(model, batches, config, run, held_out and held_out.batches(), log)
    model, kept = log.model, None
    if config.may_keep_svm:
        model, kept = keep_better(
            config, build, model, parts["train"].arrays, parts["validation"].arrays
        )
        if kept is not None:
            print(f"  {kept}", flush=True)
    trained = TrainedClassifier(config, model, vectorizer, data, parts["test"])
    results = _results(trained, parts, log) | described(kept)
    _write_reports(trained, run.folder)
    learning_curves(log.rows, results["test_accuracy"], run.folder / "learning_curves.png")
    _draw_attention(trained, parts["train"].ids, run.folder / "psi.png")
    return finish(config, run, model, results, functools.partial(trained.export, results))


def _training_batches(config: ClassifyConfig, train: Part) -> keras.utils.PyDataset:
    weights = None
    if config.class_weights == "balanced":
        weights = compute_sample_weight("balanced", train.labels).astype("float32")
    arguments = (train.ids, train.labels, config.batch_size)
    if train.ids.shape[1] <= SHORT_TEXTS:
        return TextBatches(*arguments, config.seed, weights)
    return GroupedTextBatches(*arguments, MAX_TOKENS, config.seed, weights)


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

    These are `train`, `test` and, if there is one, `validation`. An SVM that may be kept is fitted
    to the validation part, too, in the end, so the vectorizer then knows its words.
    """
    train, test = split_rows(data.labels, config.test_fraction, config.seed)
    rows = {"train": train, "test": test}
    if config.validation_fraction:
        share = config.validation_fraction
        training, validation = split_rows(data.labels[train], share, config.seed)
        rows |= {"train": train[training], "validation": train[validation]}
    vectorizer = learn_words(
        (data.texts[row] for row in (train if config.may_keep_svm else rows["train"])),
        config.vocabulary_size,
        functools.partial(_words_to_read, config),
        config.split,
    )
    return vectorizer, {
        name: Part(r, ids_of(vectorizer, data.texts, r), data.labels[r]) for name, r in rows.items()
    }


def _words_to_read(config: ClassifyConfig, lengths: np.ndarray) -> int:
    """Chooses how many words of a text are read, and prints what share of them that cuts off."""
    words = config.max_words
    if words is None:
        most = PAIRWISE_WORDS if config.compares_pairs else MOST_WORDS
        most = min(most, max(FEWEST_WORDS, LARGEST_IDS // len(lengths)))
        enough = int(np.quantile(lengths, WHOLE_TEXTS, method="higher"))
        # Texts that come later may be longer than those of the training part.
        words = min(max(enough, FEWEST_WORDS), most)
    left_out = np.maximum(lengths - words, 0)
    share = left_out.sum() / max(lengths.sum(), 1)
    unit = "words" if config.split == "words" else "characters"
    if left_out.any():
        print(
            f"  the first {words:,} {unit} of a text are read; {np.mean(left_out > 0):.1%} of the "
            f"training texts are longer, and {share:.1%} of their {unit} are cut off (--max-words)"
        )
    else:
        print(f"  texts are read whole, up to {words:,} {unit}")
    return words


def ids_of(vectorizer: WordVectorizer, texts: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Returns int32 ids `(R, L)` of the texts of some rows, in a temporary file."""
    return stored_array(
        (
            vectorizer([texts[row] for row in rows[start : start + CHUNK]])
            for start in range(0, len(rows), CHUNK)
        ),
        (len(rows), vectorizer.max_words),
    )


def compiled_model(
    config: ClassifyConfig,
    vocabulary_size: int,
    classes: int,
    steps: int,
    attention: keras.layers.Layer | None = None,
    max_words: int | None = None,
) -> keras.Model:
    """Builds a compiled model from ids `(B, L)` to probabilities `(B, classes)`.

    A layer `attention` takes the place of that of the config, which is then `"none"`.
    """
    positions = None if config.position_encoding == "none" else config.position_encoding
    model = text_classifier(
        vocabulary_size,
        classes,
        attention=attention or config.attention,
        embedding_dim=config.embedding_dim,
        num_heads=config.num_heads,
        num_layers=config.num_layers,
        embedding=config.embedding,
        embedding_tt_ranks=config.embedding_tt_ranks,
        word_dropout=config.word_dropout,
        dropout=config.dropout,
        normalization=config.recipe == "tuned",
        feedforward_dim=config.feedforward_dim or None,
        position_encoding=positions,
        max_length=(max_words or config.max_words) if positions == "learned" else None,
        feedforward=config.feedforward,
        **config.attention_options,
    )
    jit_compile = {"auto": config.attention == "ada" or "auto", "on": True, "off": False}
    rate: Any = config.learning_rate
    if config.recipe == "tuned":
        rate = keras.optimizers.schedules.CosineDecay(rate, config.epochs * steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=jit_compile[config.jit_compile],
    )
    return model


def _a_sentence(ids: np.ndarray) -> np.ndarray:
    """Returns the first text of 10 to 30 words or, if there is none, the start of the longest."""
    blocks = (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
    lengths = np.concatenate([np.count_nonzero(block, axis=1) for block in blocks])
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= 30))
    row = fitting[0] if len(fitting) else lengths.argmax()
    return ids[row, : min(lengths[row], 30)]
