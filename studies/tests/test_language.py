"""The study `language`: its models, its table and a small run of it."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn.layers import MetricAttention
from keras_tnattn.models import language_model
from keras_tnattn.models.freezing import MetricSpread
from keras_tnattn.search import Generator
from keras_tnattn_studies import alone, language, language_training
from keras_tnattn_studies.language_audits import losses, order_parameter
from keras_tnattn_studies.language_config import LSTM, MODELS, LanguageTraining
from keras_tnattn_studies.language_lstm import LSTMSteps, lstm_language_model
from keras_tnattn_studies.ngrams import ngram_bits
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.language.train import new_model
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run, from_json, to_json

MEASURED = {
    "weights": 1000,
    "bits_per_byte": 2.0,
    "tokens_per_second": 5000.4,
    "milliseconds_per_token": 1.25,
    "mebibytes": 300.0,
}


def test_all_models_have_the_same_size():
    sizes = {"lstm": lstm_language_model(259, **LSTM).count_params()}
    for model in MODELS:
        if model != "lstm":
            config = LanguageTraining(corpus=("a",)).config_of(model, 3)
            assert (config.name, config.seed, config.corpus) == (f"{model}-3", 3, ("a",))
            sizes[model] = new_model(config, 259).count_params()
    assert min(sizes.values()) > 1_040_000
    assert max(sizes.values()) < 1_050_000


def test_the_table():
    plga = {"live_bits_per_byte": 1.5, "identity_bits_per_byte": 4.0, "metric_spread": 0.0625}
    plga |= {"window_bits": 1.25, "prefix_bits": 1.75, "order_parameter": 0.25}
    rows = {
        ("sdpa", 0): MEASURED,
        ("sdpa", 2): {**MEASURED, "bits_per_byte": 3.0},
        ("plga", 0): {**MEASURED, **plga},
    }
    _, _, *lines = language.table(rows).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    costs = ["5,000", "1.25", "300"]
    assert cells == [
        [
            "sdpa",
            "1,000",
            "2.500 ± 0.707",
            *["-"] * 6,
            *(f"{cost} ± {zero}" for cost, zero in zip(costs, ("0", "0.00", "0"), strict=True)),
            "-",
            "0 2",
        ],
        [
            *("plga", "1,000", "2.000", "1.500", "4.000", "0.062", "1.250", "1.750", "0.250"),
            *costs,
            "-",
            "0",
        ],
    ]


class LooksAhead(keras.layers.Layer):
    """Tells each token the next one of the row, and of the last one nothing."""

    def call(self, ids):
        following = keras.ops.pad(ids[:, 1:], [[0, 0], [0, 1]])
        return (
            50.0
            * keras.ops.one_hot(following, 4)
            * keras.ops.cast(following > 0, "float32")[..., None]
        )


def test_prefixes_show_that_a_model_reads_ahead():
    ids = np.random.default_rng(0).integers(1, 4, (3, 6))
    model = keras.Sequential([LooksAhead()])
    found = losses(model, ids[:, :-1], ids[:, 1:])
    assert found.prefixes == pytest.approx(2.0)  # of four ids that are equally likely
    assert found.windows == pytest.approx(2.0 / 5)  # only the last one of a row is not told


def test_a_causal_model_has_equal_losses_and_padding_does_not_count():
    options = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 8, "attention": "sdpa"}
    model = language_model(20, **options)
    ids = np.random.default_rng(0).integers(1, 20, (3, 7))
    labels = ids[:, 1:].copy()
    labels[1, 3:] = 0
    found = losses(model, ids[:, :-1], labels)
    assert found.prefixes == pytest.approx(found.windows, rel=1e-5)
    logits = keras.ops.convert_to_numpy(model(ids[:, :-1]))
    bits = [
        np.log2(np.exp(logits[n, t]).sum() / np.exp(logits[n, t, labels[n, t]]))
        for n, t in zip(*np.nonzero(labels), strict=True)
    ]
    assert found.windows == pytest.approx(np.mean(bits), rel=1e-5)


def test_the_order_parameter_is_a_mean_over_all_heads():
    mean = np.ones((2, 4, 4))
    spreads = [MetricSpread("a", (0.1, 0.7), mean, True), MetricSpread("b", (0.5, 0.5), mean, True)]
    assert order_parameter(spreads) == pytest.approx(0.5)


def slow_ngram_bits(train, test, order):
    """Counts with dictionaries, one id at a time."""
    known = {x for row in train for x in row if x}

    def probability(context, x):
        follow = [
            row[j]
            for row in train
            for j in range(max(len(context), 1), len(row))
            if row[j] and tuple(row[j - len(context) : j]) == context
        ]
        shorter = probability(context[1:], x) if context else 1 / len(known)
        kinds = len(set(follow))
        return (follow.count(x) + kinds * shorter) / (len(follow) + kinds) if follow else shorter

    bits = 0.0
    for row in test:
        for j in range(1, len(row)):
            if row[j]:
                bits -= np.log2(probability(tuple(row[max(0, j - order) : j]), row[j]))
    return bits


def test_ngrams_are_interpolated_counts():
    rng = np.random.default_rng(0)
    train, test = rng.integers(1, 5, (6, 9)), rng.integers(1, 5, (4, 7))
    train[-1, 5:] = test[-1, 4:] = 0
    bits = ngram_bits(train, test, (0, 2, 3))
    expected = [slow_ngram_bits(train.tolist(), test.tolist(), order) for order in (0, 2, 3)]
    np.testing.assert_allclose(bits, expected)


def test_ngrams_refuse_what_they_cannot_count():
    rows = np.ones((2, 5), int)
    with pytest.raises(ValueError, match=r"orders=\(7,\)"):
        ngram_bits(rows, rows, (7,))
    with pytest.raises(ValueError, match="an id of 512"):
        ngram_bits(rows, 512 * rows, (1,))


def test_options_of_trainings_fit_together():
    with pytest.raises(InputError, match=r"learning_rates=\(0.0,\)"):
        LanguageTraining(learning_rates=(0.0,))
    with pytest.raises(InputError, match="frozen_after=6, epochs=6"):
        LanguageTraining(frozen_after=6)


def test_the_recurrent_steps_compute_the_model():
    model = lstm_language_model(11, 2, 8)
    prompts = np.random.default_rng(0).integers(1, 11, (3, 4))
    ids = prompts
    for _ in range(5):
        logits = keras.ops.convert_to_numpy(model(ids))[:, -1]
        logits[:, 0] = -np.inf  # padding is never chosen
        ids = np.concatenate([ids, logits.argmax(-1)[:, None]], axis=1)
    generated = Generator(LSTMSteps(model), max_new_tokens=5)(prompts).ids
    np.testing.assert_array_equal(generated, ids[:, 4:])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_study(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{i} and {i + 1} make {2 * i + 1}." for i in range(900)))
    monkeypatch.setattr(alone, "run_alone", lambda f, *some, gigabytes: f(*some))
    folder = tmp_path / "study"
    arguments = ["language", "--corpus", str(corpus), "--run-dir", str(folder), "--held-out", "0.1"]
    arguments += ["--epochs", "3", "--frozen-after", "2", "--batches-per-epoch", "10", "--seeds"]
    assert main([*arguments, "0", "--models", "sdpa", "plga", "plga-frozen", "lstm", "2-gram"]) == 0
    lines = (folder / "table.md").read_text().splitlines()
    cells = {row[1].strip(): row for row in (line.split("|") for line in lines[2:])}
    assert set(cells) == {"sdpa", "plga", "plga-frozen", "lstm", "2-gram"}
    assert 1 < float(cells["2-gram"][3]) < 3
    spreads = [
        [value for name, value in row.items() if name.startswith("metric_spread")]
        for row in Run(folder / "plga-0").read_metrics()
    ]
    assert np.shape(spreads) == (3, 4)
    assert float(cells["plga"][6]) == pytest.approx(max(spreads[-1]), abs=5e-4)
    frozen, live, identity = (float(cells["plga"][i]) for i in (3, 4, 5))
    windows, prefixes, order = (float(cells["plga"][i]) for i in (7, 8, 9))
    assert 0 < order <= max(spreads[-1]) + 0.1
    assert prefixes == pytest.approx(windows, rel=0.2)
    assert frozen == pytest.approx(live, rel=0.2)
    assert frozen != identity
    assert Run(folder / "plga-frozen-0").results["epochs"] == 1
    trained = keras.models.load_model(folder / "plga-frozen-0" / "model.keras")
    assert all(isinstance(d.self_attention, MetricAttention) for d in trained.decoders)


def test_the_best_learning_rate_is_chosen(monkeypatch, tmp_path):
    def train(tried, model, config, run, corpus):
        assert (tried.epochs, tried.frozen_after, config.epochs) == (30, 10, 30)
        assert run.folder.name == f"plga-frozen-rate-{config.learning_rate}"
        if config.learning_rate == 1:
            raise InputError from FloatingPointError()
        return {"validation": {"bits_per_byte": abs(config.learning_rate - 0.01)}}

    monkeypatch.setattr(language_training, "_train", train)
    rates = (1.0, 1e-3, 1e-2, 0.0100000001, 1e-1)
    options = LanguageTraining(epochs=60, frozen_after=20, tried_epochs=30, learning_rates=rates)
    with_one = language_training.with_one_rate(options, "plga-frozen", None, tmp_path)
    assert with_one == options.model_copy(update={"learning_rates": (1e-2,)})
    assert from_json(LanguageTraining, to_json(options)) == options  # to continue the study
    assert with_one.config_of("plga-frozen", 2).learning_rate == 1e-2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_networks_trained_together_are_those_of_the_command(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{i} and {i + 1} make {2 * i + 1}." for i in range(900)))
    common = ["--corpus", str(corpus), "--models", "sdpa", "--seeds", "0", "1", "--epochs", "3"]
    common += ["--tried-epochs", "2", "--batches-per-epoch", "4"]
    rates = ["0.001", "0.003"]
    script = Path(__file__).parents[1] / "benchmarks" / "language_together.py"
    study = script.parents[2] / "training" / "reproduce.py"

    def run(*arguments):
        environment = {**os.environ, "KERAS_BACKEND": "jax"}
        subprocess.run([sys.executable, *arguments], check=True, env=environment)

    together = [*common, "--rates", *rates, "--output", str(tmp_path / "together")]
    run(script, "train", *together)
    run(script, "finish", *together, "--run-dir", str(tmp_path / "finished"))
    run(
        study,
        "language",
        *common,
        "--learning-rates",
        *rates,
        "--frozen-after",
        "1",
        "--run-dir",
        str(tmp_path / "own"),
    )
    for seed in (0, 1):
        finished, own = (
            Run(folder / f"sdpa-{seed}").results["test"]["bits_per_byte"]
            for folder in (tmp_path / "finished", tmp_path / "own")
        )
        assert finished == pytest.approx(own, abs=1e-3)
