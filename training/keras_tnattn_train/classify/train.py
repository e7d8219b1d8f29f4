"""Trains, measures and exports one text classifier."""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.utils.class_weight import compute_sample_weight

from keras_tnattn.export.explaining import attention_scores
from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import WordVectorizer, learn_words, split_characters, split_words
from keras_tnattn_train.classify.config import MOST_WORDS, PAIRWISE_WORDS, ClassifyConfig
from keras_tnattn_train.classify.initial_weights import svm_weights
from keras_tnattn_train.classify.reports import (
    draw_psi,
    parameter_counts,
    write_mistakes,
    write_report,
)
from keras_tnattn_train.data.batches import MAX_TOKENS, GroupedTextBatches, TextBatches
from keras_tnattn_train.data.stored import stored_array
from keras_tnattn_train.data.texts import LabeledTexts, split_rows
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import confusion_matrix, learning_curves
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog, fit, outputs_of, start_session

VALIDATION_FRACTION = 0.1
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


def train_classifier(config: ClassifyConfig, run: Run, data: LabeledTexts) -> dict[str, Any]:
    """Trains a classifier, or resumes an interrupted run.

    Args:
        config: The options.
        run: The run; its folder need not exist yet.
        data: All texts; this function splits off the test part.

    Returns:
        The content of `results.json`.

    Raises:
        InputError: If the config does not fit the data, or the run was started with other data.
    """
    try:
        start_session(config)
        vectorizer, parts = prepare_parts(config, data)
        train, weights = parts["train"], None
        if config.class_weights == "balanced":
            weights = compute_sample_weight("balanced", train.labels).astype("float32")
        arguments = (train.ids, train.labels, config.batch_size)
        batches = (
            TextBatches(*arguments, config.seed, weights)
            if train.ids.shape[1] <= SHORT_TEXTS
            else GroupedTextBatches(*arguments, MAX_TOKENS, config.seed, weights)
        )
        sizes = vectorizer.vocabulary_size(), len(data.class_names), len(batches)
        model = compiled_model(config, *sizes, max_words=vectorizer.max_words)
    except ValueError as error:
        # Keras and our layers validate sizes; report their errors as input errors.
        raise InputError(str(error)) from error
    vocabulary = vectorizer.get_vocabulary()
    description = {
        "fingerprint": data.fingerprint(),
        "notes": list(data.notes),
        "class_names": list(data.class_names),
        "vocabulary": vocabulary,
        **({} if config.max_words else {"max_words": vectorizer.max_words}),
    }
    run.start_or_check(config, description)

    test, validation = parts["test"], parts.get("validation")
    if config.initial_weights == "svm" and not run.last_checkpoint.exists():
        build = functools.partial(compiled_model, config, *sizes, max_words=vectorizer.max_words)
        model.set_weights(svm_weights(config, build, train.ids, train.labels))
    log = EpochLog(run, config.early_stopping, config.monitor)
    held_out = validation and GroupedTextBatches(validation.ids, validation.labels, 256, MAX_TOKENS)
    fit(model, batches, config, run, held_out, log)
    model = log.model
    probabilities = outputs_of(model, test.ids)
    predictions = probabilities.argmax(axis=-1)
    train_predictions = outputs_of(model, train.ids).argmax(axis=-1)
    write_report(test.labels, predictions, data.class_names, run.folder / "report.csv")
    write_mistakes(
        data.texts,
        test.rows,
        test.labels,
        probabilities,
        data.class_names,
        run.folder / "mistakes.csv",
    )
    results: dict[str, Any] = {
        "train_accuracy": float(np.mean(train_predictions == train.labels)),
        "test_accuracy": float(np.mean(predictions == test.labels)),
        "epochs": len(log.rows),
        "seconds_per_step": min(row["seconds_per_step"] for row in log.rows),
        "seconds": sum(row["seconds"] for row in log.rows),
        "parameters": parameter_counts(model),
        "rows": {name: len(part.labels) for name, part in parts.items()},
        "classes": len(data.class_names),
    }
    learning_curves(log.rows, results["test_accuracy"], run.folder / "learning_curves.png")
    confusion_matrix(
        test.labels, predictions, data.class_names, run.folder / "confusion_matrix.png"
    )
    scores = attention_scores(model)
    if scores is not None and "tt_ranks" in config.attention_arguments:
        sentence = _a_sentence(train.ids)
        draw_psi(
            keras.ops.convert_to_numpy(scores(sentence[None]))[0],
            [vocabulary[i] for i in sentence],
            run.folder / "psi.png",
        )
    return finish(
        config,
        run,
        model,
        results,
        lambda folder, version: export_trained(
            config, model, vectorizer, data, test, results, folder, version
        ),
    )


def export_trained(
    config: ClassifyConfig,
    model: keras.Model,
    vectorizer: WordVectorizer,
    data: LabeledTexts,
    test: Part,
    results: dict[str, Any],
    folder: Path,
    version: int | None = None,
) -> Path:
    """Exports a classifier with a model card and examples from the test part.

    Returns:
        The path of the new version.
    """
    from keras_tnattn.export import export_classifier  # which needs TensorFlow

    source = {
        "name": config.dataset,
        "fingerprint": data.fingerprint(),
        "notes": list(data.notes),
    }
    examples = [data.texts[row][:200] for row in test.rows[:: max(1, len(test.rows) // 5)][:5]]
    split = split_words if vectorizer.split == "words" else split_characters
    card = {"examples": examples, **describe(config, source, results)}

    def export(engines: Sequence[str]) -> Path:
        layer = vectorizer.layer()
        return export_classifier(
            model, layer, data.class_names, folder, version, split, card, engines
        )

    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        return export(())
    try:
        return export(("onnxruntime",))
    except RuntimeError as error:  # not every model can be converted
        print(f"note: TensorFlow computes the exported model, because: {error}")
        return export(())


def prepare_parts(
    config: ClassifyConfig, data: LabeledTexts
) -> tuple[WordVectorizer, dict[str, Part]]:
    """Splits the rows, learns the vocabulary of the training part and turns all texts into ids.

    Returns:
        The vectorizer and the parts `train`, `test` and, with early stopping, `validation`.
    """
    train, test = split_rows(data.labels, config.test_fraction, config.seed)
    rows = {"train": train, "test": test}
    if config.early_stopping:
        training, validation = split_rows(data.labels[train], VALIDATION_FRACTION, config.seed)
        rows |= {"train": train[training], "validation": train[validation]}
    vectorizer = learn_words(
        (data.texts[row] for row in rows["train"]),
        config.vocabulary_size,
        functools.partial(_words_to_read, config),
        config.split,
    )
    return vectorizer, {
        name: Part(r, ids_of(vectorizer, data.texts, r), data.labels[r]) for name, r in rows.items()
    }


def _words_to_read(config: ClassifyConfig, lengths: np.ndarray) -> int:
    """Chooses how many words of a text are read, and prints what share of them that cuts off.

    Args:
        config: The options.
        lengths: The numbers of words of the training texts.
    """
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
    """Builds a compiled classifier.

    Args:
        config: The options of the model and of the training.
        vocabulary_size: The number of ids.
        classes: The number of classes.
        steps: The number of steps in an epoch.
        attention: A layer in place of the attention of the config, which is then `"none"`.
        max_words: The maximum number of words of a text, for learned positions. Default: that of
            the config.

    Returns:
        A model from ids `(B, L)` to probabilities `(B, classes)`.
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
        normalization=config.normalization == "on",
        feedforward_dim=config.feedforward_dim or None,
        position_encoding=positions,
        max_length=(max_words or config.max_words) if positions == "learned" else None,
        feedforward=config.feedforward,
        **config.attention_options,
    )
    jit_compile = {"auto": config.attention == "ada" or "auto", "on": True, "off": False}
    rate: Any = config.learning_rate
    if config.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(rate, config.epochs * steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=config.steps_per_execution,
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
