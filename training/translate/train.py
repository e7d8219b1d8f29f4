"""Trains and exports one translator. Needs no TensorFlow where that is not the backend."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.metrics import TokenAccuracy
from keras_tnattn.schedules import WarmupInverseSquareRoot
from training.data.batches import BucketedBatches
from training.data.pairs.loading import load_pairs
from training.data.pairs.prepared import PreparedCorpus, load_prepared, prepare
from training.engine.checkpoints import EpochLog, load_weights, save_weights
from training.engine.finishing import finish, prepare_export
from training.engine.fitting import check_tensorboard, fit, on_all_gpus, reset_session
from training.engine.plots import learning_curves
from training.engine.runs import TRAIN_AGAIN, Run
from training.errors import InputError
from training.translate.config import TranslateConfig
from training.translate.loading import SUFFIX, untrained


def train_translator(config: TranslateConfig, run: Run) -> dict[str, Any]:
    """Trains a translator, or goes on with a run that was interrupted.

    Args:
        config: What to train, and on what.
        run: The run's folder; it is made if it does not exist.

    Returns:
        What is written to `results.json`.

    Raises:
        InputError: If the config does not fit the data, or the folder is another run's.
    """
    prepare_export(config)
    check_tensorboard(config)
    reset_session(config.seed)  # before the precision, which it forgets
    with _preparing(config, run) as corpus:
        print(_summary(corpus), flush=True)
        try:
            train = BucketedBatches(corpus.parts["train"], config.batch_size, config.seed)
            with on_all_gpus(config.batch_size):
                model = _compiled_model(config, corpus.vocabulary_sizes, len(train))
        except ValueError as error:  # the checks of sizes and ranges by those who know them
            raise InputError(str(error)) from error
        if config.early_stopping and not len(corpus.parts["validation"]):
            raise InputError(
                "Expected a corpus with a validation part for early_stopping. "
                f"Received: none, and early_stopping={config.early_stopping}"
            )
        if config.export_beam > corpus.vocabulary_sizes[1]:
            raise InputError(
                f"Expected export_beam of 1 to {corpus.vocabulary_sizes[1]}, the target "
                f"vocabulary. Received: export_beam={config.export_beam}"
            )
        corpus = _start(config, run, corpus)
        return _trained(config, run, corpus, model, train)


def _trained(
    config: TranslateConfig,
    run: Run,
    corpus: PreparedCorpus,
    model: keras.Model,
    train: BucketedBatches,
) -> dict[str, Any]:
    validation = None
    if len(corpus.parts["validation"]):
        validation = BucketedBatches(corpus.parts["validation"], config.batch_size)
    log = TranslatorLog(run, config.early_stopping, config.checkpoint_epochs, train.tokens)
    fit(model, train, config, run, validation=validation, log=log)
    best = log.rows[log.best_epoch() - 1] if validation else log.rows[-1]
    results = {
        **best,  # what the finished model was measured at
        "epochs": len(log.rows),
        "tokens_per_second": max(row["tokens_per_second"] for row in log.rows),
        "seconds_per_step": min(row["seconds_per_step"] for row in log.rows),
        "seconds": sum(row["seconds"] for row in log.rows),
        "parameters": model.count_params(),
        "pairs": {name: len(part) for name, part in corpus.parts.items()},
        "vocabulary_sizes": corpus.vocabulary_sizes,
    }
    learning_curves(log.rows, None, run.folder / "learning_curves.png")
    return finish(
        config,
        run,
        model,
        results,
        lambda folder, version: _export(config, model, corpus, folder, version),
    )


def _export(
    config: TranslateConfig, model: keras.Model, corpus: PreparedCorpus, folder: Path, version: int
) -> Path:
    from keras_tnattn.export import export_translator

    return export_translator(model, *corpus.tokenizers(), folder, version, config.export_beam)


class TranslatorLog(EpochLog):
    """Keeps weights beside the state to continue from: of the lowest loss and of the highest
    accuracy on the validation part, and of chosen epochs. Says how many tokens a second it takes.

    Args:
        run: The run.
        patience: As in `EpochLog`.
        checkpoint_epochs: The chosen epochs, counted from 1.
        tokens: How many target tokens an epoch predicts.
    """

    def __init__(
        self, run: Run, patience: int | None, checkpoint_epochs: list[int], tokens: int
    ) -> None:
        super().__init__(run, patience)
        self.checkpoint_epochs, self.tokens = checkpoint_epochs, tokens

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        # Keras shows what is added to the logs. Compiling is left out here too.
        logs["tokens_per_second"] = self.tokens / (self.params["steps"] * self._seconds_per_step)
        super().on_epoch_end(epoch, logs)

    def keep_weights(self) -> None:
        names = []
        if "val_loss" in self.rows[-1]:
            names += ["best_loss"] if self.best_epoch() == len(self.rows) else []
            best = self.best_epoch("val_accuracy", highest=True)
            names += ["best_accuracy"] if best == len(self.rows) else []
        if len(self.rows) in self.checkpoint_epochs:
            names.append(f"epoch_{len(self.rows):04}")
        for name in names:
            save_weights(self.model, len(self.rows), self._path(name))

    def restore_best(self) -> None:
        if "val_loss" not in self.rows[-1]:
            return
        load_weights(self.model, self._path("best_loss"), TRAIN_AGAIN)

    def _path(self, name: str) -> Path:
        return self.run.folder / "checkpoints" / f"{name}{SUFFIX}"


@contextlib.contextmanager
def _preparing(config: TranslateConfig, run: Run) -> Iterator[PreparedCorpus]:
    """Gives the tokenised corpus; leaves none behind if there is no run to put it into."""
    if config.corpus is None:
        yield load_prepared(config.prepared)
        return
    own, waiting = run.folder / "prepared", _waiting(run)
    if not run.exists:
        shutil.rmtree(waiting, ignore_errors=True)  # of an attempt that was killed
        own = waiting
    elif waiting.exists() and not own.exists():
        waiting.rename(own)  # the run was killed before it did this
    folder = Path(config.prepared or own)
    try:
        if run.exists and folder.exists():
            yield load_prepared(folder)
        else:
            corpus = load_pairs(config.corpus, config.data_dir, config.reverse, config.seed)
            print(f"preparing {folder}", flush=True)
            yield prepare(corpus, folder, **config.preparing)
    except InputError:
        shutil.rmtree(waiting, ignore_errors=True)
        raise


def _waiting(run: Run) -> Path:
    """Where a corpus is prepared for a run that does not exist yet."""
    return run.folder.with_name(f".prepared-{run.folder.name}")


def _start(config: TranslateConfig, run: Run, corpus: PreparedCorpus) -> PreparedCorpus:
    """Starts the run, or checks that the corpus is that of its start; returns where it is now."""
    if run.exists:
        run.check_data({"digest": corpus.digest})
        return corpus
    shared = config.prepared and str(corpus.folder.resolve())
    description = {
        "digest": corpus.digest,
        "languages": corpus.languages,
        "notes": corpus.notes,
        "prepared": shared,  # where it is, if not in the run's folder
    }
    run.start(config, description)
    if shared:
        return corpus
    return dataclasses.replace(corpus, folder=corpus.folder.rename(run.folder / "prepared"))


def _summary(corpus: PreparedCorpus) -> str:
    pairs = ", ".join(f"{len(part):,} {name}" for name, part in corpus.parts.items())
    pieces = " and ".join(f"{size:,}" for size in corpus.vocabulary_sizes)
    lines = [f"{' to '.join(corpus.languages)}: {pairs} pairs; {pieces} word pieces"]
    return "\n  ".join([*lines, *corpus.notes])


def _compiled_model(
    config: TranslateConfig, sizes: tuple[int, int], steps_per_epoch: int
) -> keras.Model:
    model = untrained(config, sizes)
    schedule = WarmupInverseSquareRoot(
        config.model_dim,
        config.warmup_steps,
        config.learning_rate,
        config.epochs * steps_per_epoch,
        config.cooldown_epochs * steps_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        metrics=[TokenAccuracy()],
        steps_per_execution=config.steps_per_execution,
        jit_compile={"auto": "auto", "on": True, "off": False}[config.jit_compile],
    )
    return model
