"""Trains and measures a classifier of whole documents."""

import statistics
import time
from typing import Any

import keras

from keras_tnattn.models import text_classifier
from training.classify.train import Part, prepare_parts
from training.data.batches import GroupedTextBatches
from training.data.texts import load_texts
from training.engine.checkpoints import EpochLog
from training.engine.fitting import as_dataset, fit, reset_session
from training.engine.runs import Run
from training.studies.processes import peak_memory, restart_peak
from training.studies.whole_texts import WholeTextsConfig

EMBEDDING_DIM = 64


class ProcessorLog(EpochLog):
    """Also writes the seconds that the processor spent in this process in each epoch."""

    own_columns = (*EpochLog.own_columns, "processor_seconds")

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._began = time.process_time()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        seconds = time.process_time() - self._began
        super().on_epoch_end(epoch, {**(logs or {}), "processor_seconds": seconds})


def train_whole(config: WholeTextsConfig, folder: str) -> dict[str, Any]:
    """Trains a classifier, or resumes an interrupted run.

    Args:
        config: The options.
        folder: The run's folder; it need not exist yet.

    Returns:
        The content of `results.json`: `validation_accuracy` in the best epoch, `test_accuracy`,
        `epochs`, `seconds_per_epoch` (of the processor, the median), and `megabytes`, the peak of
        the memory in training less the memory before, compilation included.
    """
    reset_session(config.seed)
    texts = config.texts
    data = load_texts(texts.dataset, texts.data_dir, texts.text_column, texts.label_column)
    vectorizer, parts = prepare_parts(texts, data)
    model = _model(config, vectorizer.vocabulary_size(), len(data.class_names))
    run = Run(folder)
    run.start_or_check(config, {"fingerprint": data.fingerprint()})

    def batches(part: Part, seed: int | None = None) -> GroupedTextBatches:
        size, tokens = config.batch_size, config.max_tokens
        return GroupedTextBatches(part.ids, part.labels, size, tokens, seed)

    validation = batches(parts["validation"])
    before = restart_peak()
    log = fit(
        model,
        batches(parts["train"], config.seed),
        config,
        run,
        config.early_stopping,
        validation,
        ProcessorLog(run, config.early_stopping),
    )
    megabytes = peak_memory() - before
    _, accuracy = model.evaluate(as_dataset(batches(parts["test"])), verbose=0)
    results = {
        "validation_accuracy": log.rows[log.best_epoch() - 1]["val_accuracy"],
        "test_accuracy": float(accuracy),
        "epochs": len(log.rows),
        "seconds_per_epoch": statistics.median(row["processor_seconds"] for row in log.rows),
        "megabytes": megabytes,
    }
    run.finish(results)
    return results


def _model(config: WholeTextsConfig, vocabulary_size: int, num_classes: int) -> keras.Model:
    attention: str | keras.layers.Layer
    options: dict[str, Any] = {}
    if config.model == "tsa":
        attention, options = "tsa", {"damping": config.damping}
    elif config.model == "mha":
        attention = "sdpa"
    elif config.model == "gru":
        attention = keras.layers.GRU(EMBEDDING_DIM, return_sequences=True, name="attention")
    else:
        attention = keras.layers.Identity(name="attention")
    model = text_classifier(
        vocabulary_size,
        num_classes,
        attention,
        EMBEDDING_DIM,
        word_dropout=config.word_dropout,
        **options,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(config.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        # XLA would compile every length anew.
        jit_compile=False,
    )
    return model
