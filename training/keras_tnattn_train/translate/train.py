"""Trains and exports one translator. TensorFlow is needed only if it is the backend."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.metrics import TokenAccuracy
from keras_tnattn.schedules import WarmupInverseSquareRoot
from keras_tnattn_train.data.batches import BucketedBatches
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.pairs.prepared import PreparedCorpus, load_prepared, prepare
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.devices import process_id, wait_for_all
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.checkpoints import EpochLog, load_weights, save_weights
from keras_tnattn_train.runs.counter import Counter
from keras_tnattn_train.runs.finishing import finish, prepare_export
from keras_tnattn_train.runs.fitting import check_tensorboard, fit, on_all_gpus, reset_session
from keras_tnattn_train.runs.plots import learning_curves
from keras_tnattn_train.runs.runs import TRAIN_AGAIN, Run
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.models import untrained

SUFFIX = ".weights.npz"  # of checkpoints that hold only the weights of an epoch


def train_translator(config: TranslateConfig, run: Run, workers: int = 1) -> dict[str, Any]:
    """Trains a translator, or resumes an interrupted run.

    Args:
        config: The options.
        run: The run; its folder need not exist yet.
        workers: The number of processes that prepare the corpus. Default 1, this process.

    Returns:
        The content of `results.json`.

    Raises:
        InputError: If the config does not fit the data, or the folder belongs to another run.
    """
    prepare_export(config)
    check_tensorboard(config)
    exists = run.exists
    if not exists and config.corpus is not None:
        _check_sizes(config)
    reset_session(config.seed)  # before the model, because it also resets the precision
    wait_for_all("the start of the run")  # no process may start it before all have looked
    if exists:
        corpus = _prepared(config, run.folder / "prepared", workers, resumed=True)
        run.check_data({"digest": corpus.digest})
        model, train = _model_and_batches(config, corpus)
    else:
        # The corpus is prepared inside the partial folder: one rename starts the run.
        with run.starting() as folder:
            corpus = _prepared(config, folder / "prepared", workers, resumed=False)
            model, train = _model_and_batches(config, corpus)
            run.describe(folder, config, _description(config, corpus))
        if corpus.folder == folder / "prepared":
            corpus = dataclasses.replace(corpus, folder=run.folder / "prepared")
        wait_for_all("the run folder")
    return _trained(config, run, corpus, model, train)


_READS_AHEAD = (
    "note: with a metric_epsilon as large as this or the preset's, the decoder learns to read the "
    "words that it should predict from the metric of the whole target, so that losses are low and "
    "translations bad. To prevent it: --causal-metric, or {}--decoder-attention sdpa"
)


_LONG_WARMUP = (
    "warning: the {:,} warm-up steps are more than the {:,} steps of this run, so the learning "
    "rate does not reach its peak. Set --warmup-steps to about a tenth of the steps, here {:,}, "
    "and --learning-rate, for instance 8e-4 for a small model"
)


def _model_and_batches(
    config: TranslateConfig, corpus: PreparedCorpus
) -> tuple[keras.Model, BucketedBatches]:
    print(_summary(corpus), flush=True)
    if config.reads_ahead:
        # Only power law graph attention to the source has a metric of its own.
        of_source = "--cross-metric key and " if config.attention == "plga" else ""
        print(_READS_AHEAD.format(of_source), file=sys.stderr)
    try:
        train = BucketedBatches(corpus.parts["train"], config.batch_size, config.seed)
        steps, warmup = config.epochs * len(train), config.warmup_steps
        if warmup > steps:
            print(_LONG_WARMUP.format(warmup, steps, max(1, steps // 10)), file=sys.stderr)
        with on_all_gpus(config.batch_size):
            model = _compiled_model(config, corpus.vocabulary_sizes, len(train))
    # Keras and our layers validate sizes; report their errors as input errors.
    except ValueError as error:
        raise InputError(str(error)) from error
    for name in ("early_stopping", "epochs_after_best"):
        if getattr(config, name) and not len(corpus.parts["validation"]):
            raise InputError(
                f"Expected a corpus with a validation part for {name}. "
                f"Received: none, and {name}={getattr(config, name)}"
            )
    if config.export_beam > corpus.vocabulary_sizes[1]:
        raise InputError(
            f"Expected export_beam of 1 to {corpus.vocabulary_sizes[1]}, the size of the target "
            f"vocabulary. Received: export_beam={config.export_beam}"
        )
    return model, train


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
    log = TranslatorLog(
        run,
        config.early_stopping,
        config.checkpoint_epochs,
        train.tokens,
        config.epochs_after_best,
    )
    model = fit(model, train, config, run, validation=validation, log=log).model
    results = {
        **log.rows[log.chosen_epoch - 1],  # the metrics of the finished model
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
        lambda folder, version: export_trained(config, model, corpus, results, folder, version),
    )


def export_trained(
    config: TranslateConfig,
    model: keras.Model,
    corpus: PreparedCorpus,
    results: dict[str, Any],
    folder: Path,
    version: int | None = None,
) -> Path:
    """Exports a translator with a model card and examples from the test part.

    Returns:
        The path of the new version.
    """
    from keras_tnattn.export import export_translator

    data = {
        "name": config.corpus or config.prepared,
        "fingerprint": corpus.digest,
        "notes": list(corpus.notes),
    }
    source, target = corpus.tokenizers()
    sentences = corpus.parts["test"].source
    examples = [sentences[i] for i in range(min(5, len(sentences)))]
    card = {
        "languages": list(corpus.languages),
        "examples": [source.detokenize(ids).numpy().decode() for ids in examples],
        **describe(config, data, results),
    }
    return export_translator(model, source, target, folder, version, config.export_beam, card=card)


class TranslatorLog(EpochLog):
    """Keeps the weights of the lowest validation loss, of the highest validation accuracy and of
    chosen epochs, besides the state to resume from. Also measures the tokens per second.

    Args:
        run: The run.
        patience: As in `EpochLog`.
        checkpoint_epochs: The chosen epochs, counted from 1.
        tokens: The number of target tokens that are predicted in an epoch.
        epochs_after_best: The final model is that of this many epochs after the lowest validation
            loss, or of the last epoch, if there are fewer. Default: 0, that of the lowest loss.
    """

    own_columns = (*EpochLog.own_columns, "tokens_per_second")

    def __init__(
        self,
        run: Run,
        patience: int | None,
        checkpoint_epochs: Sequence[int],
        tokens: int,
        epochs_after_best: int = 0,
    ) -> None:
        super().__init__(run, patience)
        self.checkpoint_epochs, self.tokens = checkpoint_epochs, tokens
        self.epochs_after_best = epochs_after_best

    @property
    def chosen_epoch(self) -> int:
        """The epoch, counted from 1, of the final model; without validation, the last epoch."""
        if "val_loss" not in self.rows[-1]:
            return len(self.rows)
        return min(self.best_epoch() + self.epochs_after_best, len(self.rows))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        # Keras shows what is added to the logs. As in the parent class, compiling does not count.
        logs = {} if logs is None else logs
        logs["tokens_per_second"] = self.tokens / (self.params["steps"] * self._seconds_per_step)
        super().on_epoch_end(epoch, logs)

    def keep_weights(self) -> None:
        names = []
        if "val_loss" in self.rows[-1]:
            names += ["best_loss"] if self.best_epoch() == len(self.rows) else []
            best = self.best_epoch("val_accuracy", highest=True)
            names += ["best_accuracy"] if best == len(self.rows) else []
            after_best = self.best_epoch() + self.epochs_after_best
            if self.epochs_after_best and after_best == len(self.rows):
                names.append("after_best")
        if len(self.rows) in self.checkpoint_epochs:
            names.append(f"epoch_{len(self.rows):04}")
        for name in names:
            save_weights(self.model, len(self.rows), self._path(name))

    def restore_best(self) -> None:
        if self.chosen_epoch == len(self.rows):
            return  # the model has these weights
        name = "after_best" if self.epochs_after_best else "best_loss"
        load_weights(self.model, self._path(name), TRAIN_AGAIN)

    def _path(self, name: str) -> Path:
        return self.run.folder / "checkpoints" / f"{name}{SUFFIX}"


def _check_sizes(config: TranslateConfig) -> None:
    """Builds a model of few words, before a corpus is prepared for sizes that do not fit."""
    reset_session(config.seed)  # so that all processes have the same weights
    try:
        untrained(config, (16, 16))
    except ValueError as error:
        raise InputError(str(error)) from error


def _prepared(config: TranslateConfig, own: Path, workers: int, resumed: bool) -> PreparedCorpus:
    """Returns the tokenized corpus, in the shared folder or in `own`; prepares it if needed."""
    if config.corpus is None:
        return load_prepared(str(config.prepared))
    folder, corpus = Path(config.prepared or own), None
    if process_id() == 0 and not (resumed and folder.exists()):
        pairs = load_pairs(
            config.corpus,
            config.data_dir,
            config.reverse,
            config.seed,
            skip_bad_rows=config.skip_bad_rows,
        )
        print(f"preparing the corpus of {config.name}", flush=True)
        corpus = prepare(pairs, folder, **config.preparing, workers=workers, progress=_shown())
    wait_for_all("the prepared corpus")
    return corpus or load_prepared(folder)


def _shown() -> Callable[[str, int, int], None]:
    """Returns a function that shows the progress of the preparation."""
    counters: dict[str, Counter] = {}

    def show(what: str, done: int, total: int) -> None:
        counter = counters.setdefault(what, Counter(f"pairs {what}"))
        counter.show(done, total)
        if done == total:
            counter.close()

    return show


def _description(config: TranslateConfig, corpus: PreparedCorpus) -> dict[str, Any]:
    return {
        "digest": corpus.digest,
        "languages": corpus.languages,
        "notes": corpus.notes,
        # The path of the corpus, if it is not in the run's folder.
        "prepared": config.prepared and str(corpus.folder.resolve()),
    }


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
