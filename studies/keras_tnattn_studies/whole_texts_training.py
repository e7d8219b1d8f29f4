"""Trains and measures a classifier of whole documents."""

import dataclasses
import statistics
import time
from typing import Any

import keras

from keras_tnattn.estimator.batches import GroupedTextBatches
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.parts import Part
from keras_tnattn_studies.alone import peak_memory, restart_peak
from keras_tnattn_studies.whole_texts_config import WholeTextsConfig
from keras_tnattn_train.classify.train import prepare_parts
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog, as_dataset, fit, reset_session


class CostLog(EpochLog):
    """Also writes the seconds that the processor spent in this process in each epoch, and the peak
    of the memory until its end, in MiB, less the memory when the log was created.

    The arguments are those of `EpochLog`.
    """

    own_columns = (*EpochLog.own_columns, "processor_seconds", "peak_mebibytes")

    def __init__(self, run: Run, patience: int | None = None) -> None:
        super().__init__(run, patience)
        self._before = restart_peak()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._began = time.process_time()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        costs = {
            "processor_seconds": time.process_time() - self._began,
            "peak_mebibytes": peak_memory() - self._before,
        }
        super().on_epoch_end(epoch, {**(logs or {}), **costs})


def train_whole(config: WholeTextsConfig, folder: str) -> dict[str, Any]:
    """Trains a classifier, or resumes an interrupted run.

    Returns:
        The content of `results.json`: `validation_accuracy` in the best epoch, `test_accuracy`,
        `epochs`, `seconds_per_epoch` (of the processor, the median), and `megabytes`, the peak of
        the memory in training less the memory before, compilation included, in MiB; of a resumed
        run, the highest of its processes.
    """
    reset_session(config.seed)
    options = config.classifier
    data = load_texts(options.dataset, options.data_dir, options.text_column, options.label_column)
    vectorizer, parts = prepare_parts(options, data)

    def batches(part: Part, seed: int | None = None) -> GroupedTextBatches:
        size, tokens = config.batch_size, config.max_tokens
        return GroupedTextBatches(part.ids, part.labels, size, tokens, seed)

    train = batches(parts["train"], config.seed)
    settings = options.settings
    if config.model == "gru":
        gru = keras.layers.GRU(options.embedding_dim, return_sequences=True, name="attention")
        settings = dataclasses.replace(settings, attention=gru)
    sizes = (vectorizer.vocabulary_size(), len(data.class_names))
    model = compiled_model(settings, *sizes, len(train))
    run = Run(folder)
    run.start_or_check(config, {"fingerprint": data.fingerprint()})
    log = fit(
        model,
        train,
        config,
        run,
        batches(parts["validation"]),
        CostLog(run, config.early_stopping),
    )
    _, accuracy = model.evaluate(as_dataset(batches(parts["test"])), verbose=0)
    results = {
        "validation_accuracy": log.rows[log.best_epoch() - 1]["val_accuracy"],
        "test_accuracy": float(accuracy),
        "epochs": len(log.rows),
        "seconds_per_epoch": statistics.median(row["processor_seconds"] for row in log.rows),
        "megabytes": max(row["peak_mebibytes"] for row in log.rows),
    }
    run.finish(results)
    return results
