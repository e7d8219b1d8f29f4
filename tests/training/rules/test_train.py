import itertools
import json
import shutil

import keras
import numpy as np
import pytest
from import_path import run_python
from run_folders import EXPORTS, FILES, assert_equal, assert_refused, interrupted_after

from keras_tnattn_train.cli import train as main
from keras_tnattn_train.demos import rules as demo_rules
from keras_tnattn_train.options.errors import InputError, exit_status
from keras_tnattn_train.rules import train as rules
from keras_tnattn_train.rules.automata import RuleBatches, evolve
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.run import Run, from_json, to_json

tensorflow_only = pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
# Rule 204 changes nothing: it is learned in a moment.
QUICK = {"length": 6, "bond_dim": 2, "epochs": 3, "batches_per_epoch": 20, "learning_rate": 0.05}


OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]


def command(folder, *more):
    options = ["--name", "same", "--boundary", "fixed", *OPTIONS]
    return ["rules", "--rule", "204", "--run-dir", str(folder), *options, *more]


@pytest.fixture(autouse=True)
def _few_cells(monkeypatch):
    monkeypatch.setattr(rules, "TEST_CELLS", 600)
    monkeypatch.setattr(rules, "TIMES", 5)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rules, "TEST_CELLS", 600)
        patched.setattr(rules, "TIMES", 5)
        assert main(command(folder)) == 0
    return folder


def cell_by_cell(row, rule, boundary):
    """One step, each cell looked up by itself."""
    n = len(row)
    after = []
    for i in range(n):
        if boundary == "periodic":
            neighbors = (row[i - 1], row[i], row[(i + 1) % n])
        else:
            neighbors = (row[i - 1] if i else 0, row[i], row[i + 1] if i + 1 < n else 0)
        after.append(int(f"{rule:08b}"[7 - int("".join(map(str, neighbors)), 2)]))
    return after


class TestEvolve:
    def test_rule_30_of_one_cell(self):
        rows = np.zeros((1, 9), int)
        rows[0, 4] = 1
        drawn = ["".join(".#"[b] for b in evolve(rows, 30, steps)[0]) for steps in range(4)]
        assert drawn == ["....#....", "...###...", "..##..#..", ".##.####."]

    @pytest.mark.parametrize("boundary", ["periodic", "fixed"])
    @pytest.mark.parametrize("length", [1, 2, 11])
    def test_every_rule_equals_the_look_up(self, boundary, length):
        rows = np.random.default_rng(0).integers(0, 2, (3, length))
        for rule in range(256):
            for steps in (1, 2):
                want = rows.tolist()
                for _ in range(steps):
                    want = [cell_by_cell(row, rule, boundary) for row in want]
                np.testing.assert_array_equal(evolve(rows, rule, steps, boundary), want)


class TestBatches:
    def test_depend_on_their_number_and_the_seed_alone(self):
        def batch(seed, epoch, index):
            batches = RuleBatches(RulesConfig(seed=seed))
            batches.set_epoch(epoch)
            return batches[index]

        rows, after = batch(3, 5, 7)
        np.testing.assert_array_equal(rows, batch(3, 5, 7)[0])
        np.testing.assert_array_equal(after, evolve(rows, 30))
        others = [batch(4, 5, 7), batch(3, 6, 7), batch(3, 5, 17)]
        assert not any(np.array_equal(rows, other) for other, _ in others)

    def test_every_trained_length_has_its_turn(self):
        config = RulesConfig(length=9, batches_per_epoch=4)
        batches = RuleBatches(config)
        lengths = []
        for epoch in range(3):
            batches.set_epoch(epoch)
            lengths += [batches[i][0].shape for i in range(len(batches))]
        assert config.trained_lengths == (4, 5, 6, 7, 8, 9)
        assert lengths == [(64, n) for n in (*config.trained_lengths, *config.trained_lengths)]


def test_lengths():
    config = RulesConfig()
    assert max(config.trained_lengths) == config.length == 32
    assert config.tested_lengths == (32, 64, 128, 512, 4096)
    assert RulesConfig(length=3).trained_lengths == (3,)
    assert [RulesConfig(steps=steps).bond_dim for steps in (1, 2, 3)] == [6, 10, 18]


def test_config_survives_json():
    config = RulesConfig(rule=110, steps=2, boundary="fixed")
    assert config.name == "rule-110-steps-2-fixed-0"
    assert from_json(RulesConfig, to_json(config)) == config
    with pytest.raises(InputError, match="boundary='open'"):
        RulesConfig(boundary="open")


@pytest.mark.slow
def test_the_accuracy_on_trained_lengths_is_the_worst(tmp_path):
    # Rule 30 is not learned in so short a time, and edges count more in short rows.
    options = {**QUICK, "epochs": 1, "batches_per_epoch": 3}
    folder = tmp_path / "run"
    results = rules.train_rule(RulesConfig(rule=30, boundary="fixed", **options), Run(folder))
    trained = [results["accuracies"][str(length)] for length in results["trained_lengths"]]
    assert min(trained) < max(trained)
    assert results["trained_accuracy"] == min(trained)


def test_a_run_folder_holds_it_all(uninterrupted, capsys):
    assert {path.name for path in uninterrupted.iterdir()} == FILES - {"export.json"} | {
        "space_time.png"
    }
    results = Run(uninterrupted).results
    assert list(results["accuracies"]) == ["4", "5", "6", "12", "24", "96", "768"]
    assert set(results["accuracies"].values()) == {1.0}
    assert results["trained_accuracy"] == results["test_accuracy"] == 1.0
    assert results["trained_lengths"] == [4, 5, 6]
    assert len(Run(uninterrupted).read_metrics()) == QUICK["epochs"]
    model = keras.models.load_model(uninterrupted / "model.keras")
    assert results["parameters"] == {"all": model.count_params()}
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")}
    assert main(["rules", "--run-dir", str(uninterrupted), "--resume"]) == 0
    assert "finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")} == before


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path, monkeypatch):
    interrupted_after(1, command(tmp_path / "run"), monkeypatch)
    assert Run(tmp_path / "run").results is None
    assert main(["rules", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
    assert_equal(tmp_path / "run", uninterrupted)


class Knows(keras.Model):
    """Knows a rule of one step, but has the last cell of every row wrong."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def predict(self, rows, **kwargs):
        after = evolve(np.asarray(rows), self.rule)
        after[:, -1] ^= 1
        return np.stack([1 - after, after], -1)

    predict_on_batch = predict


def test_accuracies_are_shares_of_cells():
    config = RulesConfig(rule=30)
    assert rules.accuracies(Knows(30), config, [4, 10]) == {4: 0.75, 10: 0.9}
    assert rules.percent(1.0) == "100"
    assert rules.percent(1 - 1 / 65_536) == "99.998"


def test_the_network_goes_on_from_its_own_outputs():
    truth, predicted = rules.space_time(Knows(30), RulesConfig(rule=30))
    assert truth.shape == predicted.shape == (5, rules.WIDTH)
    np.testing.assert_array_equal(truth[0], predicted[0])
    for before, after in itertools.pairwise(truth):
        np.testing.assert_array_equal(evolve(before[None], 30)[0], after)
    for before, after in itertools.pairwise(predicted):
        np.testing.assert_array_equal(Knows(30).predict(before[None])[0].argmax(-1), after)
    assert not np.array_equal(truth[2:, :-1], predicted[2:, :-1])  # the error has spread


def test_the_picture_counts_the_errors(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(
        rules, "save", lambda figure, path: titles.extend(a.get_title() for a in figure.axes)
    )
    rules.draw_space_time(np.zeros((3, 4)), np.eye(3, 4), 1, tmp_path / "picture.png")
    assert titles[2] == "errors: 3 cells"


@tensorflow_only
@pytest.mark.slow
def test_exported_and_loaded_with_tensorflow_alone(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    resumed = ["rules", "--run-dir", str(tmp_path / "run"), "--resume"]
    assert main([*resumed, "--export", "--saved-models", str(tmp_path / "saved")]) == 0
    exported = Run(tmp_path / "run").results["exported"]
    assert exported == str(tmp_path / "saved/same/1")
    code = f"""
import json, sys
import tensorflow as tf
model = tf.saved_model.load({exported!r})
rows = tf.random.stateless_uniform([3, 40], (1, 2), 0, 2, tf.int32)
for name in ("ids", "serving_default"):
    got = model.signatures[name](bits=rows)
    assert got["bits"].dtype == tf.int32 and (got["bits"] == rows).numpy().all()
    model.signatures[name](bits=rows[:1, :4])
assert not any(name.startswith("keras_tnattn") for name in sys.modules)
print(json.dumps([rows.numpy().tolist(), got["probabilities"].numpy().tolist()]))
"""
    out = run_python("-c", code)
    rows, probabilities = map(np.array, json.loads(out.stdout))
    model = keras.models.load_model(uninterrupted / "model.keras")
    want = keras.ops.softmax(model.predict(rows, verbose=0))
    np.testing.assert_allclose(probabilities, want, atol=1e-5)


@tensorflow_only
@pytest.mark.slow
def test_the_demo_trains_exports_and_shows_one_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_rules, "RULES", (204,))
    monkeypatch.setattr(demo_rules, "COMMAND", " ".join(["rules --rule {rule} --export", *OPTIONS]))
    assert exit_status(demo_rules.run) == 0
    first = capsys.readouterr().out
    table = (tmp_path / "runs/demo-rules/table.md").read_text(encoding="utf-8")
    assert table in first
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert cells[0][:4] == ["rule", "all trained lengths", "6 cells", "12 cells"]
    weights = str(Run(tmp_path / "runs/demo-rules/rule-204").results["parameters"]["all"])
    assert cells[2][:-1] == ["204", *["100"] * 6, weights]
    assert (tmp_path / "runs/demo-rules/rule-204/space_time.png").is_file()
    assert (tmp_path / "saved_models/rule-204/1/saved_model.pb").is_file()

    assert exit_status(demo_rules.run) == 0
    again = capsys.readouterr().out
    assert "epoch 1 of" not in again
    assert table in again


def test_the_table_and_the_summary_show_the_worst_trained_length():
    accuracies = {"4": 0.5, "5": 1.0, "10": 0.75, "20": 1.0, "80": 0.9, "640": 0.5}
    result = {"accuracies": accuracies, "parameters": {"all": 1216}, "seconds": 29.6}
    result |= {"trained_lengths": [4, 5], "trained_accuracy": 0.5}
    _, first, line = demo_rules.lines_of({30: result, 90: result})
    assert first[0] == "30"
    assert line == ("90", "50.000", "100", "75.000", "100", "90.000", "50.000", "1,216", "30")
    assert rules.summary(result).splitlines() == [
        "trained on rows of 4, 5 cells",
        "accuracy on new rows: 50.000 % at the worst of these lengths, 100 % at 5, 75.000 % at 10, "
        "100 % at 20, 90.000 % at 80, 50.000 % at 640 cells",
        "parameters: 1,216; training: 30 s",
    ]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--rule", "256"], "rule=256"),
            (["--rule", "-1"], "rule=-1"),
            (["--length", "0"], "length=0"),
            (["--steps", "0"], "steps=0"),
            (["--bond-dim", "0"], "bond_dim=0"),
            (["--num-layers", "0"], "num_layers=0"),
            (["--batches-per-epoch", "0"], "batches_per_epoch=0"),
            (["--initial-deviation", "nan"], "initial_deviation=nan"),
            (["--learning-rate", "nan"], "learning_rate=nan"),
        ],
    )
    def test_bad_options_leave_no_folder(self, tmp_path, capsys, options, part):
        assert_refused(capsys, command(tmp_path / "run", *options), part)
        assert list(tmp_path.iterdir()) == []

    def test_steps_that_need_a_bond_dim(self, tmp_path, capsys):
        arguments = ["rules", "--steps", "40", "--run-dir", str(tmp_path / "run")]
        assert_refused(capsys, arguments, "steps=40", "bond_dim")

    def test_a_run_of_another_command(self, uninterrupted, capsys):
        arguments = ["nodes", "--run-dir", str(uninterrupted), "--resume"]
        assert_refused(capsys, arguments, "Expected a run of nodes. Received: one of rules")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [30, 90, 110, 184])
def test_learns_the_rules_exactly(rule, tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "TEST_CELLS", 65_536)
    assert main(["rules", "--rule", str(rule), "--run-dir", str(tmp_path / "run")]) == 0
    results = Run(tmp_path / "run").results
    result = {int(length): accuracy for length, accuracy in results["accuracies"].items()}
    assert all(result[length] == 1 for length in results["trained_lengths"])
    assert min(result[64], result[128], result[512]) >= 0.999


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["periodic", "fixed"])
def test_learns_two_steps_at_once(boundary, tmp_path):
    options = ["--rule", "110", "--steps", "2", "--boundary", boundary]
    assert main(["rules", *options, "--run-dir", str(tmp_path / "run")]) == 0
    assert min(Run(tmp_path / "run").results["accuracies"].values()) >= 0.999
