"""Trains and measures a language model."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy.special import log_softmax

from keras_tnattn.metrics import TokenAccuracy
from keras_tnattn.models import LanguageModel, language_model
from keras_tnattn.models.freezing import metric_spreads
from keras_tnattn_runtime.extras import has_onnx, installation
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import Corpus, PackedBatches, Part
from keras_tnattn_train.language.tokens import Tokens
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.cards import DECIMALS, describe, without_folders
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.freezing import freeze
from keras_tnattn_train.runs.plots import learning_curves
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog, fit, start_session

FROZEN_ROWS = 256  # with which the metric is measured
SPREAD_ROWS = 16  # the same after each epoch
LOSS_IGNORING_PADDING = {"from_logits": True, "ignore_class": 0}


class SpreadLog(EpochLog):
    """Also writes how much the metric of each layer depends on the text: its largest spread."""

    def __init__(self, run: Run, patience: int | None, inputs: np.ndarray, num_layers: int) -> None:
        super().__init__(run, patience)
        self._inputs = inputs
        self._names = [f"metric_spread_{number}" for number in range(num_layers)]
        self.own_columns = (*EpochLog.own_columns, *self._names)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        layers = metric_spreads(self.model, self._inputs, batch_size=4)
        spreads = zip(self._names, (layer.largest for layer in layers), strict=True)
        super().on_epoch_end(epoch, {**(logs or {}), **dict(spreads)})


def train_language_model(
    config: LanguageConfig, run: Run, corpus: Corpus, model: keras.Model | None = None
) -> dict[str, Any]:
    """Trains a language model, or resumes an interrupted run."""
    _check_runtime(config)
    has_metric = model is None and config.attention == "plga"
    if model is None:
        start_session(config)
        model = new_model(config, corpus.tokens.vocabulary_size)
    batches = PackedBatches(
        corpus.parts["train"],
        config.length,
        config.batch_size,
        config.seed,
        config.batches_per_epoch,
    )
    compile_model(model, config, config.epochs * len(batches))
    run.start_or_check(config, corpus.description())

    validation = PackedBatches(corpus.parts["validation"], config.length, config.batch_size)
    log = EpochLog(run, config.early_stopping)
    if has_metric:
        rows = validation[0][0][:SPREAD_ROWS]
        log = SpreadLog(run, config.early_stopping, rows, config.num_layers)
    log = fit(model, batches, config, run, validation, log)
    model = log.model
    results = {}
    if config.freeze_metric:
        model, results["frozen"] = _freeze(model, validation, run)
    results |= _results(config, model, corpus, log)
    learning_curves(log.rows, None, run.folder / "learning_curves.png")

    def write(folder: Path, version: int) -> Path:
        card = card_of(config, corpus, results)
        return export(model, corpus.tokens, folder, version, card)

    return finish(config, run, model, results, write)


def _check_runtime(config: LanguageConfig) -> None:
    if config.export and not has_onnx():
        raise InputError(
            f"--export of a language model needs ONNX Runtime. {installation('onnxruntime')}"
        )


def _freeze(model: keras.Model, validation: PackedBatches, run: Run) -> Any:
    number = min(-(-FROZEN_ROWS // validation.batch_size), len(validation))
    loss = keras.losses.SparseCategoricalCrossentropy(**LOSS_IGNORING_PADDING)
    return freeze(model, [validation[i] for i in range(number)], loss, run)


def _results(
    config: LanguageConfig, model: keras.Model, corpus: Corpus, log: EpochLog
) -> dict[str, Any]:
    """Returns the content of `results.json`, but for what the freezing adds."""
    costs = log.costs
    return {
        **{
            part: measure(model, corpus.parts[part], config.length, config.batch_size)
            for part in ("validation", "test")
        },
        "parameters": {"all": model.count_params()},
        **costs,
        "tokens_per_second": config.batch_size * config.length / costs["seconds_per_step"],
    }


def export(
    model: LanguageModel, tokens: Tokens, folder: Path, version: int | None, card: dict[str, Any]
) -> Path:
    """Exports a language model as a version for the server, and returns its path."""
    from keras_tnattn_train import exports

    task = exports.LanguageModel(model, dataclasses.asdict(tokens), card)
    return exports.export(task, folder, exports.Version(version, engines=("onnxruntime",)))


def card_of(config: LanguageConfig, corpus: Corpus, results: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a model card that come from a run."""
    card = describe(config, {"name": ", ".join(map(without_folders, config.corpus))}, {})
    scores = {"bits_per_byte": round(results["test"]["bits_per_byte"], DECIMALS)}
    examples = corpus.openings(max(1, min(24, config.length // 4)))
    return {**card, "scores": scores, "examples": examples}


def new_model(config: LanguageConfig, vocabulary_size: int) -> LanguageModel:
    """Returns the untrained model of a run."""
    options: dict[str, Any] = {}
    if config.attention == "plga":
        options = {
            "residual_units": config.residual_units,
            "residual_dim": config.residual_dim,
            "causal_metric": config.causal_metric,
            "epsilon": config.metric_epsilon,
        }
    position_encoding = config.position_encoding
    return language_model(
        vocabulary_size,
        config.attention,
        num_layers=config.num_layers,
        model_dim=config.model_dim,
        num_heads=config.num_heads,
        feedforward_dim=config.feedforward_dim,
        dropout=config.dropout,
        feedforward=config.feedforward,
        position_encoding=None if position_encoding == "auto" else position_encoding,
        norm_first=True,
        max_length=config.length,
        **options,
    )


def compile_model(model: keras.Model, config: LanguageConfig, num_steps: int) -> None:
    """Compiles a model with the loss and the optimizer of a training of so many steps."""
    warmup = min(100, max(1, num_steps // 10))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, num_steps - warmup), warmup_target=config.learning_rate, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0, beta_2=0.98),
        keras.losses.SparseCategoricalCrossentropy(**LOSS_IGNORING_PADDING),
        weighted_metrics=[TokenAccuracy(name="accuracy")],
        jit_compile=keras.backend.backend() == "jax",
    )


def measure(model: keras.Model, part: Part, length: int, batch_size: int) -> dict[str, float]:
    """Measures a model on a part: each row is read without the rows before it.

    Returns:
        `loss`, nats per token; `perplexity`, its exponential; and `bits_per_byte`, the bits of all
        predicted ids, ends of documents included, over the UTF-8 bytes of the documents.
    """
    batches = PackedBatches(part, length, batch_size)
    nats = 0.0
    count = 0
    for index in range(len(batches)):
        inputs, labels = batches[index]
        logits = log_softmax(model.predict_on_batch(inputs).astype("float64"), axis=-1)
        real = labels != 0
        label_logits = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        nats -= label_logits[real].sum()
        count += int(real.sum())
    loss = nats / count
    return {
        "loss": float(loss),
        "perplexity": float(math.exp(min(loss, 700))),
        "bits_per_byte": float(nats / math.log(2) / part.num_bytes),
    }


def summary(results: dict[str, Any], config: LanguageConfig) -> str:
    """Summarizes the results in lines."""
    test = results["test"]
    lines = [
        f"bits per byte: {test['bits_per_byte']:.4f} on the test part, "
        f"{results['validation']['bits_per_byte']:.4f} on the validation part; perplexity per "
        f"token: {test['perplexity']:.3f}",
        f"parameters: {results['parameters']['all']:,}; training: {results['seconds']:.0f} s, "
        f"compilation included; {results['tokens_per_second']:,.0f} tokens per second without it",
    ]
    frozen = results.get("frozen", {}).get("layers") == config.num_layers
    if config.attention == "plga" and not (config.causal_metric or frozen):
        lines.append(
            "these losses are those of a metric that reads ahead; --freeze-metric or "
            "--causal-metric gives those of generation"
        )
    return "\n".join(lines)
