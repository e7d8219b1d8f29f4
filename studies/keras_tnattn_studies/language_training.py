"""Trains and measures one model of the study `language`."""

import functools
import math
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.models import LanguageModel
from keras_tnattn.models.freezing import freeze_metric, metric_spreads
from keras_tnattn.search import Generator
from keras_tnattn_studies.alone import peak_memory, restart_peak
from keras_tnattn_studies.language_audits import losses, order_parameter
from keras_tnattn_studies.language_config import LSTM, NGRAMS, LanguageTraining
from keras_tnattn_studies.language_lstm import LSTMSteps, lstm_language_model
from keras_tnattn_studies.ngrams import ngram_bits
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import Corpus, PackedBatches, read_corpus
from keras_tnattn_train.language.predicting import model_path
from keras_tnattn_train.language.train import (
    FROZEN_ROWS,
    compile_model,
    measure,
    train_language_model,
)
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.training import reset_session

WITH_NETWORK = ("plga", "plga-epsilon")  # at the end of their trainings
AUDITED_ROWS = 16  # as many runs as tokens in a row
PROMPT, NEW_TOKENS, REPETITIONS = 16, 96, 5  # how the time of generation is measured
TRAIN_AGAIN = "Delete the run's folder to train it again"


def train_and_measure(
    options: LanguageTraining, model: str, seed: int, folder: str
) -> dict[str, Any]:
    """Trains a model, or resumes its training, and measures it.

    Returns:
        The columns of a row of results.csv, without those of `training_costs`.
    """
    corpus = read_corpus(options.config_of(model, seed))
    options = with_one_rate(options, model, corpus, Path(folder))
    config = options.config_of(model, seed)
    run = Run(Path(folder) / config.name)
    results = run.results or _train(options, model, config, run, corpus)
    trained = load_model(model_path(run.folder), TRAIN_AGAIN)
    row: dict[str, Any] = {"learning_rate": config.learning_rate}
    row["weights"] = trained.count_params()
    row["bits_per_byte"] = results["test"]["bits_per_byte"]
    if model in WITH_NETWORK:
        row |= _audited(trained, config, corpus)
        row["live_bits_per_byte"] = row["bits_per_byte"]
        trained = with_mean_metric(trained, config, corpus)
        row["bits_per_byte"] = _bits_per_byte(trained, config, corpus)
    row["milliseconds_per_token"] = 1000 * _seconds_per_token(trained, corpus)
    if model in WITH_NETWORK:
        size = config.model_dim // config.num_heads
        for decoder in trained.decoders:
            decoder.self_attention.set_metric(np.tile(np.eye(size), (config.num_heads, 1, 1)))
        row["identity_bits_per_byte"] = _bits_per_byte(trained, config, corpus)
    spreads = [value for name, value in run.read_metrics()[-1].items() if "spread" in name]
    return row | ({"metric_spread": max(spreads)} if spreads else {})


def _audited(model: keras.Model, config: LanguageConfig, corpus: Corpus) -> dict[str, float]:
    """Returns what the metric reads ahead, on the first rows of the test part."""
    inputs, labels = PackedBatches(corpus.parts["test"], config.length, AUDITED_ROWS)[0]
    found = losses(model, inputs, labels)
    return {
        "window_bits": found.windows,
        "prefix_bits": found.prefixes,
        "order_parameter": order_parameter(metric_spreads(model, inputs, batch_size=4)),
    }


def with_one_rate(
    options: LanguageTraining, model: str, corpus: Corpus, folder: Path
) -> LanguageTraining:
    """Returns the options with the learning rate that serves the validation part best."""
    if len(options.learning_rates) == 1:
        return options
    losses = {}
    for rate in options.learning_rates:
        tried = options.short(rate)
        name = f"{model}-rate-{rate}"
        config = tried.config_of(model, 0).model_copy(update={"name": name})
        run = Run(folder / name)
        try:
            results = run.results or _train(tried, model, config, run, corpus)
            losses[rate] = results["validation"]["bits_per_byte"]
        except InputError as error:
            if not isinstance(error.__cause__, FloatingPointError):
                raise
            losses[rate] = math.inf  # it diverged
    best = min(losses, key=losses.__getitem__)
    return options.model_copy(update={"learning_rates": (best,)})


def _train(
    options: LanguageTraining, model: str, config: LanguageConfig, run: Run, corpus: Corpus
) -> dict[str, Any]:
    if model == "lstm":
        reset_session(config.seed)
        lstm = lstm_language_model(corpus.tokens.vocabulary_size, **LSTM)
        return train_language_model(config, run, corpus, lstm)
    if model != "plga-frozen":
        return train_language_model(config, run, corpus)
    live = config.model_copy(
        update={"epochs": options.frozen_after, "name": f"{config.name}-before"}
    )
    first = Run(run.folder.with_name(live.name))
    if not first.results:
        train_language_model(live, first, corpus)
    reset_session(config.seed)
    frozen = with_mean_metric(load_model(model_path(first.folder), TRAIN_AGAIN), config, corpus)
    rest = {"epochs": options.epochs - options.frozen_after}
    return train_language_model(config.model_copy(update=rest), run, corpus, frozen)


@functools.lru_cache(maxsize=1)
def count_ngrams(options: LanguageTraining, seed: int) -> list[float]:
    """Returns the bits per byte of n-grams of all orders, counted on what the models see.

    A row that several epochs repeat counts once for each.
    """
    config = options.config_of("sdpa", seed)
    corpus = read_corpus(config)
    train = PackedBatches(
        corpus.parts["train"],
        config.length,
        config.batch_size,
        seed,
        options.batches_per_epoch,
    )
    rows = []
    for epoch in range(options.epochs):
        train.set_epoch(epoch)
        rows += [whole_rows(train[index]) for index in range(len(train))]
    test = PackedBatches(corpus.parts["test"], config.length, config.batch_size)
    tested = np.concatenate([whole_rows(test[index]) for index in range(len(test))])
    bits = ngram_bits(np.concatenate(rows), tested, range(len(NGRAMS)))
    return [number / corpus.parts["test"].num_bytes for number in bits]


def whole_rows(batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns the rows of a batch with their last label."""
    inputs, labels = batch
    return np.concatenate([inputs, labels[:, -1:]], axis=1)


def with_mean_metric(model: keras.Model, config: LanguageConfig, corpus: Corpus) -> keras.Model:
    """Returns the model with the mean metric of validation rows, whatever its spread."""
    validation = PackedBatches(corpus.parts["validation"], config.length, config.batch_size)
    number = min(-(-FROZEN_ROWS // config.batch_size), len(validation))
    return freeze_metric(model, [validation[i] for i in range(number)], bound=math.inf).model


def _bits_per_byte(model: keras.Model, config: LanguageConfig, corpus: Corpus) -> float:
    """Returns the bits per byte of the test part."""
    part = measure(model, corpus.parts["test"], config.length, config.batch_size)
    return part["bits_per_byte"]


def _seconds_per_token(model: keras.Model, corpus: Corpus) -> float:
    """Returns the processor's median time of a token in the continuation of one prompt."""
    steps = model if isinstance(model, LanguageModel) else LSTMSteps(model)
    prompt = corpus.parts["validation"].ids[None, :PROMPT]
    generate = Generator(steps, max_new_tokens=NEW_TOKENS)
    generate(prompt)  # compiles
    seconds = []
    for _ in range(REPETITIONS):
        began = time.process_time()
        generate(prompt)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds) / NEW_TOKENS


def training_costs(
    options: LanguageTraining, model: str, seed: int, folder: str
) -> dict[str, float]:
    """Trains a finished model further for some steps, in a process that has done nothing else.

    Returns:
        Tokens per second of the processor, and the memory for compilation and training.
    """
    config = options.config_of(model, seed)
    corpus = read_corpus(config)
    trained = load_model(model_path(Path(folder) / config.name), TRAIN_AGAIN)
    before = restart_peak()
    compile_model(trained, config, REPETITIONS)
    batches = PackedBatches(corpus.parts["train"], config.length, config.batch_size, config.seed)
    seconds = []
    for index in range(REPETITIONS + 1):
        began = time.process_time()
        trained.train_on_batch(*batches[index])
        seconds.append(time.process_time() - began)
    tokens = config.batch_size * config.length
    return {
        "tokens_per_second": tokens / statistics.median(seconds[1:]),
        "mebibytes": peak_memory() - before,
    }
