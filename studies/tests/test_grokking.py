import csv
import math

import keras
import numpy as np
import pytest

from keras_tnattn_studies import grokking_report, grokking_training
from keras_tnattn_studies.grokking_config import BASE, GrokkingTraining, base_of, settings_of
from keras_tnattn_studies.grokking_report import (
    by_setting,
    delays_of,
    draw_curves,
    measurements_of,
    quartiles,
    table,
)
from keras_tnattn_studies.grokking_training import (
    Trained,
    fixed_rows,
    shows_whole_rule,
    train_seeds,
)
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.rules.automata import evolve
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.rules.models import network

ON_JAX = pytest.mark.skipif(keras.backend.backend() != "jax", reason="the study needs JAX")


def row(train_epoch=None, test_epoch=None, test_accuracy=1.0):
    epochs = {"train_epoch": train_epoch, "test_epoch": test_epoch}
    accuracies = {"train_accuracy": 1.0, "test_accuracy": test_accuracy, "best_test_accuracy": 1.0}
    known = {name: epoch for name, epoch in epochs.items() if epoch is not None}
    return {"weights": 216, **known, **accuracies, "seconds": 1.0}


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def invented(options, setting, seeds):
    """Trainings whose training rows are learned at the second measurement, others at the third."""
    train = np.tile([0.5, 1.0, 1.0, 1.0], (len(seeds), 1))
    test = np.tile([0.5, 0.6, 0.99, 0.7], (len(seeds), 1))
    return Trained(10, 2.0, train, test)


def test_one_factor_differs_from_the_base():
    factors = ((2, 3, 8), (4, 6, 12), (0.0, 0.1))
    settings = settings_of(("tn", "lstm"), ("periodic", "fixed"), *factors)
    assert len(set(settings)) == len(settings) == 4 * 3 + 2 + 1
    assert BASE in settings
    for setting in settings:
        base = base_of(setting.network, setting.boundary)
        assert sum(a != b for a, b in zip(setting, base, strict=True)) <= 1
    assert {s.bond_dim for s in settings if s.network == "lstm"} == {0}
    assert {s.bond_dim for s in settings if s.boundary == "fixed"} == {0, BASE.bond_dim}


def test_rows_are_fixed_and_different():
    options = GrokkingTraining(length=8, test_rows=100)
    few, many = (fixed_rows(options, rows, seed=3) for rows in (4, 16))
    assert many.shape == (116, 8)
    assert len(np.unique(many, axis=0)) == 116
    np.testing.assert_array_equal(few[:4], many[:4])
    np.testing.assert_array_equal(few[4:], many[16:])
    assert not np.array_equal(many, fixed_rows(options, 16, seed=4))
    assert set(np.unique(many)) == {0, 1}


@pytest.mark.parametrize("boundary", ["periodic", "fixed"])
def test_the_rows_that_show_the_whole_rule(boundary):
    options = GrokkingTraining(length=8, test_rows=100)
    found = set()
    for seed in range(20):
        setting = BASE._replace(boundary=boundary, rows=2)
        seen = set()
        for bits in fixed_rows(options, 2, seed)[:2].tolist():
            ends = (bits[-1], bits[0]) if boundary == "periodic" else (0, 0)
            padded = [ends[0], *bits, ends[1]]
            seen |= {tuple(padded[i : i + 3]) for i in range(8)}
        assert shows_whole_rule(options, setting, seed) == (len(seen) == 8)
        found.add(len(seen) == 8)
    assert found == {True, False}


@ON_JAX
@pytest.mark.parametrize("name", ["tn", pytest.param("lstm", marks=pytest.mark.slow)])
def test_seeds_trained_at_once_are_those_trained_by_keras(name):
    options = GrokkingTraining(length=8, test_rows=20, epochs=24, epochs_between=6)
    setting = base_of(name, "fixed")._replace(rows=3, weight_decay=0.5)
    trained = train_seeds(options, setting, (5, 9))
    assert trained.train.shape == trained.test.shape == (2, 4)
    for i, seed in enumerate((5, 9)):
        rows = fixed_rows(options, 3, seed)
        truth = evolve(rows, 30, boundary="fixed")
        keras.utils.set_random_seed(seed)
        model = network(RulesConfig(model=name, boundary="fixed"))
        assert model.count_params() == trained.weights
        model.compile(
            keras.optimizers.AdamW(options.rate_of(name), weight_decay=0.5, clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        for n in range(4):
            for _ in range(6):
                model.train_on_batch(rows[:3], truth[:3])
            right = model.predict_on_batch(rows).argmax(-1) == truth
            assert trained.train[i, n] == pytest.approx(right[:3].mean(), abs=1e-6)
            assert trained.test[i, n] == pytest.approx(right[3:].mean(), abs=1e-6)


def test_the_first_epochs_with_99_percent(tmp_path):
    options = GrokkingTraining(epochs=40)
    setting = base_of("lstm", "fixed")
    rows = measurements_of(options, setting, (3, 7), invented(options, setting, (3, 7)), tmp_path)
    assert list(rows) == [(*setting, 3), (*setting, 7)]
    found = rows[(*setting, 7)]
    assert (found["train_epoch"], found["test_epoch"]) == (20, 30)
    assert (found["train_accuracy"], found["test_accuracy"]) == (1.0, 0.7)
    assert found["best_test_accuracy"] == 0.99
    assert len(list((tmp_path / "curves").iterdir())) == 2

    never = Trained(10, 2.0, np.full((1, 4), 0.98), np.full((1, 4), 0.5))
    (found,) = measurements_of(options, setting, (3,), never, tmp_path).values()
    assert found.keys().isdisjoint({"train_epoch", "test_epoch"})


def test_delays_without_an_end_count_as_infinite():
    group = {0: row(20, 30), 1: row(40), 2: row(), 3: row(50, 10), 4: row(10, 120)}
    assert delays_of(group) == [-40, 10, 110, math.inf]
    assert quartiles([-40, 10, 110, math.inf]) == (-40, 60, 110)
    assert quartiles([1.0, math.inf, math.inf, math.inf]) == (1, math.inf, math.inf)


def test_the_table_counts_the_seeds():
    few = BASE._replace(rows=2)
    lstm = base_of("lstm", "periodic")
    rows = {(*few, 0): row(1000, 2500), (*few, 1): row(2000, test_accuracy=0.75)}
    rows |= {(*lstm, 0): row(test_accuracy=0.5)}
    header, _, *lines = cells(table(by_setting(rows), GrokkingTraining()))
    named = [dict(zip(header, line, strict=True)) for line in lines]
    assert lines[0][:6] == ["periodic", "tn", "216", "6", f"{BASE.weight_decay:g}", "2"]
    assert [line["99 % training"] for line in named] == ["2 of 2", "0 of 1"]
    assert [line["99 % test"] for line in named] == ["1 of 2", "0 of 1"]
    assert [line["at the end"] for line in named] == ["1 of 2", "0 of 1"]
    assert [line["training epoch"] for line in named] == ["1,500", "never"]
    assert [line["test epoch"] for line in named] == ["never", "never"]
    assert [line["delay"] for line in named] == ["never (1,500 to never)", "-"]
    assert [line["test %, end"] for line in named] == ["87.5", "50.0"]
    assert lines[1][3] == "-"


def test_the_curves_are_medians_over_the_seeds(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(grokking_report, "save", lambda figure, path: figures.append(figure))
    options = GrokkingTraining(epochs=30)
    rows = {}
    for setting in (BASE, BASE._replace(rows=9), base_of("lstm", "periodic")):
        train, test = np.array([[[0.5, 1, 1]] * 3, [[0, 0.25, 1], [0, 0.5, 0.5], [0.25, 1, 0]]])
        trained = Trained(10, 2.0, train, test)
        rows |= measurements_of(options, setting, (0, 1, 2), trained, tmp_path)
    draw_curves(by_setting(rows), options, tmp_path, tmp_path / "curves.png")
    panels = figures[0].axes
    titles = [axes.get_title() for axes in panels]
    assert titles == [f"tn, {BASE.rows} rows", "tn, 9 rows", f"lstm, {BASE.rows} rows", ""]
    for axes in panels[:3]:
        for line, expected in zip(axes.lines, ([50, 100, 100], [0, 50, 50]), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), [10, 20, 30])
            np.testing.assert_array_equal(line.get_ydata(), expected)
    assert not panels[3].axison


def test_finished_seeds_are_not_trained_again(tmp_path, monkeypatch, capsys):
    trained = []

    def train(options, setting, seeds):
        trained.append((setting, list(seeds)))
        return invented(options, setting, seeds)

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(grokking_training, "train_seeds", train)
    command = ["grokking", "--run-dir", str(tmp_path / "study"), "--networks", "lstm"]
    command += ["--epochs", "40", "--boundaries", "periodic", "--rows", "3", "9", "--seeds"]
    assert main([*command, "0"]) == 0
    assert [(s.rows, seeds) for s, seeds in trained] == [(3, [0]), (9, [0])]
    files = {path.name for path in (tmp_path / "study").iterdir()}
    pictures = {"delays.png", "curves_periodic.png"}
    assert files >= {"results.csv", "table.md", "curves", "config.json"} | pictures
    capsys.readouterr()

    trained.clear()
    assert main([*command, "0", "1", "2"]) == 0
    assert [seeds for _, seeds in trained] == [[1, 2]] * 2
    with (tmp_path / "study/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {(row["train_epoch"], row["test_epoch"]) for row in rows} == {("20", "30")}
    text = (tmp_path / "study/table.md").read_text()
    assert text in capsys.readouterr().out
    assert "3 of 3" in text

    trained.clear()
    assert main([*command, "0", "2"]) == 0
    assert not trained
    assert main([*command, "0", "--rule", "90"]) == 2
    assert "rule=90" in capsys.readouterr().err


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX trains the study")
def test_other_backends_are_refused(tmp_path, capsys):
    assert main(["grokking", "--run-dir", str(tmp_path / "study")]) == 2
    error = capsys.readouterr().err
    assert "KERAS_BACKEND=jax" in error
    assert f"Received: {keras.backend.backend()}" in error
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ("--rows 0", "rows=0"),
        ("--rows 4 129", "rows=4 129"),
        ("--bond-dims 6 0", "bond_dims=6 0"),
        ("--weight-decays -0.5", "weight_decays=-0.5"),
        ("--epochs 25", "epochs=25, epochs_between=10"),
    ],
)
def test_values_out_of_range(options, received, tmp_path, capsys):
    assert main(["grokking", "--run-dir", str(tmp_path / "study"), *options.split()]) == 2
    assert received in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
