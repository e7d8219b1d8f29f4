"""The study `translators`: its options, its tables and how it continues."""

import csv
import json

import keras
import numpy as np
import pytest
from translate_commands import table
from translator_runs import make_run

from keras_tnattn.layers import MetricAttention
from keras_tnattn_studies import plots, translators, translators_metric
from keras_tnattn_studies.measuring import write_measurements
from keras_tnattn_studies.reproduce import main
from keras_tnattn_studies.translators_tables import best_epoch, main_table, metric_table
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.translate.loading import load_translator


def row(bleu, seconds=10.0):
    return {
        "weights": 1000,
        "loss": 2.0,
        "val_loss": 3.0,
        "bleu": bleu,
        "exact_match": 0.25,
        "seconds": seconds,
    }


FIXED = {
    "weights": 900,
    "val_loss": 3.125,
    "bleu": 36.0,
    "exact_match": 0.25,
    "identity_val_loss": 4.0,
    "identity_bleu": 1.0,
    "spreads": "encoder_0/attention=0.1240 decoder_0/cross_attention=0.3000",
}


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_the_table_compares_the_same_seeds():
    rows = {
        ("sdpa", 0): row(40.0),
        ("sdpa", 1): row(42.0),
        ("plga", 0): row(36.0),
        ("plga", 1): row(37.0),
        ("plga-causal", 7): row(39.0, seconds=20.0),
    }
    fixed = {("plga", 1): FIXED}
    times = {("sdpa", 1): 20.0, ("plga", 1): 50.0, ("plga, metric fixed", 1): 23.0}
    times = {
        key: {"milliseconds": time, "milliseconds_in_batches": time / 4}
        for key, time in times.items()
    }
    epochs = {("sdpa", 0): 6, ("sdpa", 1): 5, ("plga", 0): None}
    _, _, *lines = cells(main_table(translators.MODELS, rows, fixed, times, epochs))
    same, exact = ["1,000", "2.000", "3.000"], "25.0 ± 0.0"
    peer = ["6 5", "41.0 ± 1.4", "-", exact, "20.0", "-", "5.0", "-", "10", "0 1"]
    costs = ["50.0", "2.50", "12.5", "2.50", "10"]
    of_fixed = ["36.0", "-6.0", "25.0", "23.0", "1.15", "5.8", "1.15", "-"]
    after = ["900", "-", "3.125", "-"]
    assert lines == [
        ["sdpa", *same, *peer],
        ["plga", *same, "- -", "36.5 ± 0.7", "-4.5 ± 0.7", exact, *costs, "0 1"],
        ["plga, metric fixed", *after, *of_fixed, "1"],
        ["plga-causal", *same, "-", "39.0", "-", "25.0", *["-"] * 4, "20", "7"],
    ]


def test_the_table_of_the_metric_has_the_spread_of_each_attention():
    rows = {("plga", 0): row(36.0), ("plga", 1): row(38.0), ("sdpa", 0): row(40.0)}
    other = FIXED["spreads"].replace("0.1240", "0.3240")
    fixed = {("plga", 0): FIXED, ("plga", 1): {**FIXED, "spreads": other}}
    _, _, *lines = cells(metric_table(translators.MODELS, rows, fixed))
    bleu = ["37.0 ± 1.4", "36.0 ± 0.0", "1.0 ± 0.0"]
    loss = ["3.000 ± 0.000", "3.125 ± 0.000", "4.000 ± 0.000"]
    spreads = "encoder_0/attention 0.22 ± 0.14, decoder_0/cross_attention 0.30 ± 0.00"
    assert lines == [["plga", *bleu, *loss, spreads, "0 1"]]


def test_the_best_epoch_is_that_of_the_lowest_validation_loss(tmp_path):
    run = Run(tmp_path / "run")
    assert best_epoch(run.folder) is None
    run.folder.mkdir()
    losses = {1: 3.0, 2: 1.5, 3: 2.0}
    run.write_metrics([{"epoch": epoch, "val_loss": loss} for epoch, loss in losses.items()])
    assert best_epoch(run.folder) == 2


def test_the_curves_are_those_of_the_runs_that_are_left(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append((figure, path)))
    rows = {(name, seed): row(40.0) for name in ("sdpa", "plga") for seed in (0, 1)}
    keys, columns = translators.KEYS, translators.MEASUREMENTS
    write_measurements(tmp_path / "results.csv", rows, keys, columns)
    translators.write_tables(tmp_path)
    assert not figures
    losses = {"sdpa-0": (3.0, 2.0, 2.5), "sdpa-1": (4.0, 3.0, 2.75), "plga-1": (5.0, 4.0, 4.5)}
    for name, values in losses.items():
        run = Run(tmp_path / name)
        run.folder.mkdir()
        measured = [
            {"epoch": epoch, "loss": loss / 2, "val_loss": loss}
            | {"accuracy": epoch / 4, "val_accuracy": epoch / 8}
            for epoch, loss in enumerate(values, 1)
        ]
        run.write_metrics(measured)
    translators.write_tables(tmp_path)
    ((figure, path),) = figures
    assert path == tmp_path / "curves.png"
    lines = figure.axes[0].get_lines()
    assert set(losses.values()) < {tuple(line.get_ydata()) for line in lines}
    best = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines[2::3]]
    assert best == [(2, 2.0), (3, 2.75), (2, 4.0)]


@pytest.mark.parametrize("model", translators.MODELS)
def test_each_model_is_a_valid_run(model):
    config = translators.TranslatorsTraining(corpus="cldr:pt-en").config_of(model, 3)
    assert (config.name, config.seed) == (f"{model}-3", 3)
    assert config.attention == ("plga" if model.startswith("plga") else "sdpa")
    assert translators.has_metric(config) == ("plga" in model)
    assert config.causal_metric == ("causal" in model)
    both = model in ("tsa", "rgtn")
    assert (config.encoder_attention is not None) == (both or "encoder" in model)
    assert (config.decoder_attention is not None) == (both or "decoder" in model)


def test_one_learning_rate_replaces_those_of_the_models():
    for rate, expected in ((None, [8e-4, 5e-3]), (2e-3, [2e-3, 2e-3])):
        common = translators.TranslatorsTraining(corpus="cldr:pt-en", learning_rate=rate)
        assert [common.config_of(model, 0).learning_rate for model in ("tsa", "rnn")] == expected


@pytest.fixture
def trained(monkeypatch):
    """Stands in for trainings and measurements; lists those that were run."""
    run = []

    def train_and_measure(model, config, folder):
        run.append(config.name)
        assert config.name.startswith(model)
        # CLDR's pairs depend on the seed.
        assert config.prepared == str(folder / ("prepared-1" if config.seed else "prepared"))
        return row(40.0 if config.attention == "sdpa" else 36.0)

    def measure_fixed_metric(folder, seed):
        run.append(f"{folder.name} fixed")
        return FIXED

    def times_of_sentences(loaded):
        assert all(name[0].partition(",")[0] in path.name for name, (path, _) in loaded.items())
        run.append([path.name for path, _ in loaded.values()])
        return dict.fromkeys(loaded, dict.fromkeys(translators.TIMES, 20.0))

    monkeypatch.setattr(translators, "train_and_measure", train_and_measure)
    monkeypatch.setattr(translators_metric, "measure_fixed_metric", measure_fixed_metric)
    monkeypatch.setattr(translators_metric, "times_of_sentences", times_of_sentences)
    return run


def test_finished_trainings_are_kept(trained, tmp_path, capsys):
    command = ["translators", "--corpus", "cldr:pt-en", "--run-dir", str(tmp_path / "study")]
    assert main([*command, "--models", "plga", "sdpa", "--seeds", "0"]) == 0
    first = ["plga-0", "sdpa-0", "plga-0 fixed", ["sdpa-0", "plga-0", "plga-0-fixed"]]
    assert trained == first
    assert main([*command, "--models", "plga", "sdpa", "--seeds", "0", "1"]) == 0
    second = ["plga-1", "sdpa-1", "plga-1 fixed", ["sdpa-1", "plga-1", "plga-1-fixed"]]
    assert trained == [*first, *second]
    text = (tmp_path / "study/table.md").read_text()
    assert text.strip() in capsys.readouterr().out
    models = [line[0] for line in cells(text.partition("\n\n")[0])[2:]]
    assert models == ["sdpa", "plga", "plga, metric fixed"]
    assert main([*command, "--epochs", "3"]) == 2
    assert "epochs" in capsys.readouterr().err
    assert len(trained) == 8
    # A study whose trainings are finished measures what is missing only; all models of a seed are
    # timed together.
    (tmp_path / "study/metric.csv").unlink()
    assert main([*command, "--models", "plga", "--seeds", "1"]) == 0
    assert trained[8:] == ["plga-1 fixed"]
    (tmp_path / "study/times.csv").unlink()
    assert main([*command, "--models", "plga", "--seeds", "1"]) == 0
    assert trained[9:] == [["sdpa-1", "plga-1", "plga-1-fixed"]]


@pytest.mark.slow
def test_the_metric_of_a_run_is_fixed_beside_it(tmp_path):
    _, corpus = make_run(tmp_path / "run")
    before = (tmp_path / "run/model.keras").read_bytes()
    row = translators_metric.measure_fixed_metric(tmp_path / "run", seed=3)
    assert (tmp_path / "run/model.keras").read_bytes() == before
    assert set(row) == set(translators.METRICS)
    validation = BucketedBatches(corpus.parts["validation"], 64)
    losses = {}
    for name in ("fixed", "identity"):
        translator = load_translator(tmp_path / f"run-{name}").model
        (encoder,), (decoder,) = translator.encoders, translator.decoders
        layers = (encoder.attention, decoder.self_attention, decoder.cross_attention)
        assert all(isinstance(layer, MetricAttention) for layer in layers)
        metrics = np.stack([layer.metric_weight for layer in layers])
        assert (metrics == np.eye(4)).all() == (name == "identity")
        assert (tmp_path / f"run-{name}/hypotheses-validation-beam1.txt").exists()
        # The mean over the tokens of a batch.
        inputs, labels = validation[0]
        probable = np.log(keras.ops.softmax(translator(inputs)))
        of_labels = np.take_along_axis(probable, labels[..., None], -1)[..., 0]
        losses[name] = -of_labels[labels != 0].mean()
    assert row["val_loss"] == pytest.approx(losses["fixed"], rel=1e-4)
    assert row["identity_val_loss"] == pytest.approx(losses["identity"], rel=1e-4)
    assert row["weights"] == load_translator(tmp_path / "run-fixed").model.count_params()
    assert row["spreads"].count("=") == 3
    assert json.loads((tmp_path / "run-fixed/data.json").read_text())["prepared"]


def test_models_are_timed_in_turn(tmp_path):
    _, corpus = make_run(tmp_path / "run")
    order = []

    class Translator:
        def __init__(self, name, work):
            self.name, self.work, self.corpus = name, work, corpus

        def with_beam(self, beam):
            assert beam == 1
            return self

        def search(self, ids, batch_size):
            order.append((self.name, len(ids)))
            sum(range(self.work))

    works = {"fast": 10_000, "slow": 1_000_000}
    loaded = {name: Translator(name, work) for name, work in works.items()}
    times = translators_metric.times_of_sentences(
        {name: (tmp_path / name, lambda path, _: loaded[path.name]) for name in works}
    )
    for column in translators.TIMES:
        assert times["slow"][column] > 10 * times["fast"][column] > 0
    once = [(name, rows) for name in works for rows in (1, 1, 2)]  # of two sentences
    assert order == once * (translators_metric.PASSES + 1)


def read_table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_a_training_is_measured_on_the_validation_part(tmp_path, monkeypatch):
    corpus = table(tmp_path / "pairs.tsv")
    small = {"model_dim": 16, "num_heads": 2, "feedforward_dim": 16, "vocabulary_size": 60}
    monkeypatch.setattr(translators, "COMMON", {**translators.COMMON, **small})
    command = ["translators", "--corpus", corpus, "--epochs", "2"]
    command += ["--cooldown-epochs", "1", "--models", "plga", "sdpa", "rnn", "--seeds", "0"]
    assert main([*command, "--run-dir", str(tmp_path / "study")]) == 0
    rows = read_table(tmp_path / "study/results.csv")
    assert [row["model"] for row in rows] == ["sdpa", "rnn", "plga"]
    (fixed,) = read_table(tmp_path / "study/metric.csv")
    # The metric of an untrained model hardly depends on the input.
    assert float(fixed["val_loss"]) == pytest.approx(float(rows[2]["val_loss"]), rel=0.01)
    times = read_table(tmp_path / "study/times.csv")
    assert [row["model"] for row in times] == ["sdpa", "rnn", "plga", "plga, metric fixed"]
    assert all(float(row[column]) > 0 for row in times for column in translators.TIMES)
    for row in rows:
        assert 0 <= float(row["bleu"]) <= 100
        last = read_table(tmp_path / f"study/{row['model']}-0/metrics.csv")[-1]
        assert float(row["val_loss"]) == pytest.approx(float(last["val_loss"]))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--epochs", "2"], "cooldown_epochs"),
        (["--corpus", "multi30k_pt_en"], "--data-dir"),
        (["--models", "lstm"], "lstm"),
    ],
)
def test_bad_options_are_refused_before_a_training(arguments, part, trained, tmp_path, capsys):
    command = ["translators", "--corpus", "cldr:pt-en", "--run-dir", str(tmp_path / "study")]
    assert main([*command, *arguments]) != 0
    assert part in capsys.readouterr().err
    assert not trained
    assert not (tmp_path / "study").exists()
