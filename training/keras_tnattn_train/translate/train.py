"""Trains and exports one translator. TensorFlow is needed only if it is the backend."""

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.pairs.prepared import PreparedCorpus, load_prepared, prepare
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.processes.devices import on_all_gpus
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.checkpoints import load_weights, save_weights
from keras_tnattn_train.runs.counter import Counter
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.freezing import freeze
from keras_tnattn_train.runs.plots import learning_curves
from keras_tnattn_train.runs.run import TRAIN_AGAIN_HINT, Run
from keras_tnattn_train.runs.training import EpochLog, fit, start_session
from keras_tnattn_train.system.files import read_object
from keras_tnattn_train.translate.config import TranslateConfig, fitting_warmup
from keras_tnattn_train.translate.models import (
    ModelMaker,
    build_translator,
    check_sizes,
    compile_translator,
)

if TYPE_CHECKING:
    from keras_tnattn_train.exports.task import Task

FROZEN_PAIRS = 384  # with which the metric is measured
SUFFIX = ".weights.npz"  # of checkpoints that hold only the weights of an epoch


def train_translator(
    config: TranslateConfig,
    run: Run,
    workers: int = 1,
    make: ModelMaker = build_translator,
    multiple: int = 8,
) -> dict[str, Any]:
    """Trains a translator, or resumes an interrupted run.

    The lengths of batches are rounded up to `multiple`. JAX compiles a model for each of them.
    """
    if config.corpus is not None and not run.exists:
        check_sizes(config)
    start_session(config)
    # The corpus of a new run is prepared inside the partial folder: one rename starts the run.
    with run.starting() as folder:
        corpus = _prepared_corpus(config, run, folder / "prepared", workers)
        model, train = _model_and_batches(config, corpus, make, multiple)
        run.describe(folder, config, _description(config, corpus), "digest")
    if corpus.folder == folder / "prepared":
        corpus = dataclasses.replace(corpus, folder=run.folder / "prepared")
    return _train(config, run, corpus, model, train)


AHEAD_NOTE = (
    "note: with a metric_epsilon as large as this or the preset's, the decoder learns to read the "
    "words that it should predict from the metric of the whole target, so that losses are low and "
    "translations bad. To prevent it: --causal-metric, or {}--decoder-attention sdpa"
)
WARMUP_NOTE = (
    "note: the default of {:,} warm-up steps is more than the {:,} steps of this run, which takes "
    "{:,} instead; the peak of the learning rate stays"
)
WARMUP_WARNING = (
    "warning: the {:,} warm-up steps are more than the {:,} steps of this run, so the learning "
    "rate does not reach its peak. Set --warmup-steps to about a tenth of the steps, here {:,}, "
    "and --learning-rate, for instance 8e-4 for a small model"
)


def _model_and_batches(
    config: TranslateConfig, corpus: PreparedCorpus, make: ModelMaker, multiple: int
) -> tuple[keras.Model, BucketedBatches]:
    print(_summary(corpus), flush=True)
    if config.reads_ahead:
        # Only power law graph attention to the source has a metric of its own.
        of_source = "--cross-metric key and " if config.attention == "plga" else ""
        print(AHEAD_NOTE.format(of_source), file=sys.stderr)
    with input_errors():  # Keras and our layers validate sizes
        train = BucketedBatches(corpus.parts["train"], config.batch_size, config.seed, multiple)
        steps = config.epochs * len(train)
        warmup = config.warmup_steps
        fitting = fitting_warmup(config, steps)
        if fitting < warmup:
            print(WARMUP_NOTE.format(warmup, steps, fitting), file=sys.stderr)
        elif warmup > steps:
            print(WARMUP_WARNING.format(warmup, steps, max(1, steps // 10)), file=sys.stderr)
        with on_all_gpus(config.batch_size):
            model = compile_translator(config, corpus.vocabulary_sizes, len(train), make)
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


def _train(
    config: TranslateConfig,
    run: Run,
    corpus: PreparedCorpus,
    model: keras.Model,
    train: BucketedBatches,
) -> dict[str, Any]:
    validation = None
    if len(corpus.parts["validation"]):
        part = corpus.parts["validation"]
        validation = BucketedBatches(part, config.batch_size, multiple=train.multiple)
    log = TranslatorLog(
        run, config.early_stopping, config.checkpoint_epochs, train.tokens, config.epochs_after_best
    )
    model = fit(model, train, config, run, validation=validation, log=log).model
    results = {
        **log.rows[log.chosen_epoch - 1],  # the metrics of the finished model
        **log.costs,
        "tokens_per_second": max(row["tokens_per_second"] for row in log.rows),
        "parameters": model.count_params(),
        "pairs": {name: len(part) for name, part in corpus.parts.items()},
        "vocabulary_sizes": corpus.vocabulary_sizes,
    }
    if config.freeze_metric:
        batches = train if validation is None else validation
        sample = batches.sample(-(-FROZEN_PAIRS // config.batch_size))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model, results["frozen"] = freeze(model, sample, loss, run)
        results["parameters"] = model.count_params()
    learning_curves(log.rows, None, run.folder / "learning_curves.png")

    def export(folder: Path, version: int) -> Path:
        measured = {**results, **scores_of_evaluations(run.folder)}
        return export_trained(config, model, corpus, measured, folder, version)

    return finish(config, run, model, results, export)


def export_trained(
    config: TranslateConfig,
    model: keras.Model,
    corpus: PreparedCorpus,
    results: dict[str, Any],
    folder: Path,
    version: int | None = None,
) -> Path:
    """Exports a translator with a model card and examples from the test part."""
    from keras_tnattn_train.exports import Version, export

    task = task_of(config, model, corpus, model_card(config, corpus, results))
    return export(task, folder, Version(version))


def task_of(
    config: TranslateConfig, model: keras.Model, corpus: PreparedCorpus, card: dict[str, Any]
) -> "Task":
    """Returns a translator and its tokenizers, for exports."""
    from keras_tnattn_train.exports import Translator

    return Translator(model, *corpus.tokenizers, beam_size=config.export_beam, card=card)


def model_card(
    config: TranslateConfig, corpus: PreparedCorpus, results: dict[str, Any]
) -> dict[str, Any]:
    """Returns the entries of a model card, with examples from the test part."""
    data = {
        "name": config.corpus or config.prepared,
        "fingerprint": corpus.digest,
        "notes": list(corpus.notes),
    }
    source = corpus.tokenizers[0]
    sentences = corpus.parts["test"].source
    examples = [sentences[i] for i in range(min(5, len(sentences)))]
    return {
        "languages": list(corpus.languages),
        "examples": [source.detokenize(ids).numpy().decode() for ids in examples],
        **describe(config, data, results),
    }


def scores_of_evaluations(folder: Path) -> dict[str, float]:
    """Returns what `evaluate` has measured on the whole test part, such as `test_beam4_bleu`."""
    return {
        f"{path.stem.removeprefix('evaluation-').replace('-', '_')}_bleu": read_object(
            path, "Delete it"
        )["bleu"]
        for path in sorted(folder.glob("evaluation-test-beam?*.json"))
        if re.fullmatch(r"evaluation-test-beam\d+\.json", path.name)
    }


class TranslatorLog(EpochLog):
    """Keeps the weights of the lowest validation loss, of the highest validation accuracy and of
    chosen epochs, besides the state to resume from. Also measures the tokens per second.

    The final model is that of `epochs_after_best` epochs after the lowest validation loss.
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
        self.checkpoint_epochs = checkpoint_epochs
        self.tokens = tokens
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
        load_weights(self.model, self._path(name), TRAIN_AGAIN_HINT)

    def _path(self, name: str) -> Path:
        return self.run.folder / "checkpoints" / f"{name}{SUFFIX}"


def _prepared_corpus(
    config: TranslateConfig, run: Run, default: Path, workers: int
) -> PreparedCorpus:
    """Returns the tokenized corpus, in the shared folder or in `own`; prepares it if needed."""
    if config.corpus is None:
        return load_prepared(str(config.prepared))
    corpus = config.corpus
    folder = Path(config.prepared or default)

    def work() -> PreparedCorpus | None:
        if run.exists and folder.exists():
            return None
        pairs = load_pairs(
            corpus, config.data_dir, config.reverse, config.seed, skip_bad_rows=config.skip_bad_rows
        )
        print(f"preparing the corpus of {config.name}", flush=True)
        return prepare(pairs, folder, config.preparation, workers, _progress_on_stderr())

    return run.lead(work) or load_prepared(folder)


def _progress_on_stderr() -> Callable[[str, int, int], None]:
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
