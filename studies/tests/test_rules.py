import contextlib
import csv
import itertools

import pytest

from keras_tnattn_studies import rules as study
from keras_tnattn_studies import rules_report
from keras_tnattn_studies.reproduce import main
from keras_tnattn_studies.rules_report import Finished, accuracy_table, exact_table
from keras_tnattn_train.rules import train as rules
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.runs.run import Run

# Rule 204 changes nothing: it is learned in a moment.
QUICK = "--rules 204 --steps 1 --boundaries fixed --length 6 --epochs 3 --batches-per-epoch 20"
QUICK += " --learning-rate 0.05"
WRITTEN = {"runs.csv", "table.md", "accuracy_by_length.png", "exact_by_steps.png"}
WRITTEN |= {"config.json", "data.json"}


def finished(lowest, **options):
    config = RulesConfig(**options)
    shares = {str(length): 1.0 for length in config.trained_lengths}
    shares |= {str(length): 1.0 for length in config.tested_lengths} | {"4096": lowest}
    results = {"accuracies": shares, "trained_accuracy": 1.0, "seconds": 10.0}
    return Finished(config, results | {"parameters": {"all": 216}})


def cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_tables_count_exact_runs():
    runs = [
        finished(1.0, seed=0),
        finished(0.5, seed=1),
        finished(1.0, rule=90, boundary="fixed"),
        finished(1 - 1e-5, model="lstm"),
    ]
    header, _, *lines = cells(exact_table(runs))
    assert header == ["steps", "network", "30 periodic", "90 fixed", "all"]
    assert lines == [
        ["1", "tn", "1 of 2", "1 of 1", "2 of 3"],
        ["1", "lstm", "0 of 1", "-", "0 of 1"],
    ]
    header, _, *lines = cells(accuracy_table(runs))
    assert header[4:] == [
        "worst trained length",
        *("32 cells", "64 cells", "128 cells", "512 cells", "4,096 cells", "lowest", "seconds"),
    ]
    assert lines[0] == ["1", "tn", "216", "3", *["100"] * 5, "83.333", "50.000", "10"]
    assert lines[1] == ["1", "lstm", "216", "1", *["100"] * 5, "99.999", "99.999", "10"]


def test_a_network_is_trained_for_every_boundary_rule_and_seed(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(study, "finish_all", lambda configs, *_: trained.extend(configs))
    monkeypatch.setattr(study, "replaced_process", contextlib.nullcontext)
    monkeypatch.setattr(rules_report, "report", lambda folder: "")
    options = "--models tn --rules 30 90 --steps 1 2 --seeds 0 3 --boundaries periodic fixed"
    assert main(["rules", *options.split(), "--run-dir", str(tmp_path / "study")]) == 0
    found = {(c.boundary, c.rule, c.steps, c.seed) for c in trained}
    assert found == set(itertools.product(("periodic", "fixed"), (30, 90), (1, 2), (0, 3)))
    assert len(trained) == 16


@pytest.mark.slow
def test_finished_runs_are_not_trained_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rules, "TEST_CELLS", 600)
    monkeypatch.setattr(rules, "TIMES", 2)
    command = ["rules", *QUICK.split(), "--run-dir", str(tmp_path / "study")]
    assert main([*command, "--seeds", "0", "--models", "tn", "convolution"]) == 0
    names = {path.name for path in (tmp_path / "study").iterdir()}
    assert names == WRITTEN | {"rule-204-steps-1-fixed-0", "convolution-rule-204-steps-1-fixed-0"}
    with (tmp_path / "study/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["tn", "convolution"]
    assert [row["exact"] for row in rows] == ["1", "1"]
    assert {row["at_768"] for row in rows} == {"1.0"}
    assert float(rows[0]["learning_rate"]) == 0.05
    capsys.readouterr()

    assert main([*command, "--seeds", "1", "--models", "convolution"]) == 0
    out = capsys.readouterr().out
    assert out.count("epoch 3 of 3") == 1
    assert "2 of 2" in out
    assert main([*command, "--seeds", "0", "1", "--models", "convolution"]) == 0
    assert "epoch" not in capsys.readouterr().out


def test_bad_options_leave_no_folder(tmp_path, capsys):
    assert main(["rules", "--models", "perceptron", "--run-dir", str(tmp_path / "study")]) == 2
    assert "perceptron" in capsys.readouterr().err
    assert main(["rules", "--steps", "6", "--run-dir", str(tmp_path / "study")]) == 2
    error = capsys.readouterr().err
    assert "6" in error
    assert "--steps" in error
    assert "bond_dim" not in error
    assert not (tmp_path / "study").exists()


def test_the_runs_of_a_study_share_their_options(tmp_path, monkeypatch, capsys):
    trained = []

    def finish(configs, folder, train):
        trained.append(configs)
        for config in configs:
            run = Run(folder / config.name)
            if not run.exists:
                run.start_or_check(config, {})
                run.finish(finished(1.0, length=config.length).results)

    def report(folder, written=rules_report.report):
        with Run(folder).lock() as free:
            assert not free  # no other process writes its table at the same time
        return written(folder)

    monkeypatch.setattr(study, "finish_all", finish)
    monkeypatch.setattr(rules_report, "report", report)
    command = ["rules", "--models", "tn", "--run-dir", str(tmp_path / "study"), "--seeds"]
    assert main([*command, "0"]) == 0
    assert main([*command, "1", "--batch-size", "8"]) == 2
    error = capsys.readouterr().err
    assert "Received: batch_size=8" in error
    assert "--resume" not in error
    assert len(trained) == 1
    assert main([*command, "1"]) == 0
    assert "2 of 2" in capsys.readouterr().out


def test_a_folder_without_a_study_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["rules", "--run-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "Choose another folder" in error
    assert "--resume" not in error
