"""Trains, measures and exports one text classifier."""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tnattn.export import check_backend, export, next_version
from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import word_vectorizer
from training import evaluation, plots
from training.checkpoints import EpochLog
from training.config import TENSORIZED, ClassifyConfig
from training.data import LabelledTexts, split_rows
from training.data.batches import ShuffledBatches
from training.errors import InputError
from training.runs import Run, replacing

VALIDATION_FRACTION = 0.1


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one part: ids `(R, L)` and labels `(R,)`."""

    ids: np.ndarray
    labels: np.ndarray


def train_classifier(config: ClassifyConfig, run: Run, data: LabelledTexts) -> dict[str, Any]:
    """Trains a classifier, or goes on with a run that was interrupted.

    Args:
        config: What to train.
        run: The run's folder; it is made if it does not exist.
        data: All the texts; the test part is cut from them here.

    Returns:
        What is written to `results.json`.

    Raises:
        InputError: If the config does not fit the data, or the folder is another run's.
    """
    if config.export:
        _check_backend()
    keras.utils.clear_session()
    if keras.backend.backend() == "tensorflow" and tf.config.list_physical_devices("GPU"):
        # A GPU adds in any order, and a continued run would drift. A CPU does not: there the
        # deterministic kernels change nothing and make a step half as slow again.
        tf.config.experimental.enable_op_determinism()
    try:
        keras.utils.set_random_seed(config.seed)
        vectorizer, parts = _prepare(config, data)
        model = _compiled_model(config, vectorizer.vocabulary_size(), len(data.class_names))
    except ValueError as error:  # the checks of sizes and ranges by those who know them
        raise InputError(str(error)) from error
    vocabulary = [str(word) for word in vectorizer.get_vocabulary()]
    description = {
        "fingerprint": data.fingerprint(),
        "notes": list(data.notes),
        "class_names": list(data.class_names),
        "vocabulary": vocabulary,
    }
    if config.export:
        _make_export_folder(config)
    if run.exists:
        run.check_data(description)
    else:
        run.start(config, description)

    log = _fit(config, run, model, parts)
    train, test = parts["train"], parts["test"]
    predictions = evaluation.predict(model, test.ids)
    results = {
        "train_accuracy": float(np.mean(evaluation.predict(model, train.ids) == train.labels)),
        "test_accuracy": float(np.mean(predictions == test.labels)),
        "epochs": len(log.rows),
        "seconds_per_step": min(row["seconds_per_step"] for row in log.rows),
        "parameters": evaluation.parameter_counts(model),
        "rows": {name: len(part.labels) for name, part in parts.items()},
        "classes": len(data.class_names),
    }
    plots.learning_curves(log.rows, results["test_accuracy"], run.folder / "learning_curves.png")
    plots.confusion_matrix(
        test.labels, predictions, data.class_names, run.folder / "confusion_matrix.png"
    )
    if config.attention in TENSORIZED:
        sentence = _a_sentence(train.ids)
        plots.psi(
            evaluation.attention_scores(model, sentence),
            [vocabulary[i] for i in sentence],
            run.folder / "psi.png",
        )
    with replacing(run.folder / "model.keras") as path:
        model.save(path)
    if config.export:
        results["exported"] = str(_export(config, run, model, vectorizer, data.class_names))
    run.finish(results)
    return results


def _check_backend() -> None:
    try:
        check_backend()
    except RuntimeError as error:
        raise InputError(str(error)) from error


def _export_folder(config: ClassifyConfig) -> Path:
    return Path(config.saved_models, config.name)


def _make_export_folder(config: ClassifyConfig) -> None:
    """Finds out before the training whether the exported model can be written after it."""
    folder = _export_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"Expected a folder to export to. Received: {folder} ({error}). "
            "Choose another with --saved-models"
        ) from error


def _export(
    config: ClassifyConfig,
    run: Run,
    model: keras.Model,
    vectorizer: keras.layers.TextVectorization,
    class_names: Sequence[str],
) -> Path:
    """Exports under a version noted in the run first: a continued run exports no second time."""
    folder = _export_folder(config)
    note = run.folder / "export_version.txt"
    try:
        if not note.exists():
            with replacing(note) as path:
                path.write_text(f"{next_version(folder)}\n", encoding="utf-8")
        version = int(note.read_text(encoding="utf-8"))
        target = folder / str(version)
        if target.exists():
            return target
        return export(model, vectorizer, class_names, folder, version)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(
            f"Expected a folder to export to. Received: {folder} ({error}). "
            "Make room there, then go on with --resume"
        ) from error


def _prepare(
    config: ClassifyConfig, data: LabelledTexts
) -> tuple[keras.layers.TextVectorization, dict[str, Part]]:
    train, test = split_rows(data.labels, config.test_fraction, config.seed)
    rows = {"train": train, "test": test}
    if config.early_stopping:
        kept, validation = split_rows(data.labels[train], VALIDATION_FRACTION, config.seed)
        rows |= {"train": train[kept], "validation": train[validation]}
    vectorizer = word_vectorizer(
        [data.texts[i] for i in rows["train"]], config.vocabulary_size, config.max_words
    )
    ids = np.asarray(vectorizer(tf.constant(data.texts)), "int32")
    return vectorizer, {name: Part(ids[r], data.labels[r]) for name, r in rows.items()}


def _compiled_model(config: ClassifyConfig, vocabulary_size: int, classes: int) -> keras.Model:
    model = text_classifier(
        vocabulary_size,
        classes,
        attention=config.attention,
        embedding_dim=config.embedding_dim,
        num_heads=config.num_heads,
        **config.attention_options,
    )
    jit_compile = {"auto": config.attention == "ada" or "auto", "on": True, "off": False}
    model.compile(
        optimizer=keras.optimizers.Adam(config.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=config.steps_per_execution,
        jit_compile=jit_compile[config.jit_compile],
    )
    return model


def _fit(config: ClassifyConfig, run: Run, model: keras.Model, parts: dict[str, Part]) -> EpochLog:
    log = EpochLog(run, config.early_stopping)
    log.set_model(model)
    epoch = log.restore()
    if epoch < config.epochs and not log.done:
        train, validation = parts["train"], parts.get("validation")
        batches = ShuffledBatches(train.ids, train.labels, config.batch_size, config.seed)
        ordered = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.set_epoch(epoch)
        )
        model.fit(
            batches,
            initial_epoch=epoch,
            epochs=config.epochs,
            validation_data=validation and (validation.ids, validation.labels),
            validation_batch_size=256,
            shuffle=False,  # Keras would shuffle the batches too, by a state of its own
            callbacks=[ordered, log],
            verbose=1 if sys.stdout.isatty() else 2,
        )
    log.restore_best()
    return log


def _a_sentence(ids: np.ndarray) -> np.ndarray:
    """Picks the first text of 10 to 30 words, or the start of the longest one."""
    lengths = (ids != 0).sum(axis=1)
    fitting = np.flatnonzero((lengths >= 10) & (lengths <= 30))
    row = fitting[0] if len(fitting) else lengths.argmax()
    return ids[row, : min(lengths[row], 30)]
