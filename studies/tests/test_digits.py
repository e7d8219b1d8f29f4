import csv

import numpy as np
import pytest
from slow_cases import slow_but

from keras_tnattn_studies import digits, digits_baselines
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.data.images import LabeledImages


def row(accuracy, weights=10):
    return {
        "weights": weights,
        "train_accuracy": 1.0,
        "test_accuracy": accuracy,
        "seconds": 2.0,
    }


def bright_images(seed):
    """Images whose class is how bright they are."""
    rng = np.random.default_rng(seed)
    labels = np.arange(90) % 3
    images = (rng.random((90, 4, 4)) * 0.3 + 0.33 * labels[:, None, None]).astype("float32")
    return LabeledImages(images[:60], labels[:60], images[60:], labels[60:], ("a", "b", "c"))


def test_the_table_pairs_the_splits():
    rows = {("tn-rows", seed): row(0.9 + seed / 100) for seed in range(3)}
    rows |= {("svm", seed): row(0.92 + seed / 100, weights=20) for seed in range(3)}
    rows |= {("cnn", 7): row(0.5)}
    header, _, *lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in digits.table(rows, shared=1 / 3).splitlines()
    ]
    assert header[-1] == "points above tn-rows"
    interval = f"± {4.302653 / 3**0.5:.2f}"
    first = ["tn-rows", "10", "3", f"91.00 {interval}", "90.00", "92.00", "2.0", "-"]
    second = ["svm", "20", "3", f"93.00 {interval}", "92.00", "94.00", "2.0", "2.00 ± 0.00"]
    assert lines == [first, second, ["cnn", "10", "1", *["50.00"] * 3, "2.0", "-"]]


@pytest.mark.parametrize(
    "classifiers",
    [["svm", "logistic-regression"], *slow_but([], [["tn-rows", "cnn"]])],
)
def test_finished_splits_are_not_trained_again(classifiers, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digits, "load_images", lambda dataset, seed: bright_images(seed))
    monkeypatch.setattr(digits, "NETWORKS", {"tn-rows": {"batch_size": 10, "epochs": 20}})
    monkeypatch.setattr(digits_baselines, "EPOCHS", 20)
    monkeypatch.setattr(digits_baselines, "BATCH_SIZE", 10)
    command = ["digits", "--run-dir", str(tmp_path), "--classifiers", *classifiers, "--seeds"]
    assert main([*command, "0"]) == 0
    with (tmp_path / "splits.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["classifier"]: row for row in csv.DictReader(file)}
    assert list(rows) == classifiers
    assert min(float(row["test_accuracy"]) for row in rows.values()) > 0.9
    assert (tmp_path / "tn-rows-0").exists() == ("tn-rows" in classifiers)
    first = (tmp_path / "splits.csv").read_text(encoding="utf-8")
    assert (tmp_path / "table.md").read_text(encoding="utf-8") in capsys.readouterr().out

    assert main([*command, "0", "1"]) == 0
    again = (tmp_path / "splits.csv").read_text(encoding="utf-8").splitlines()
    # The measured seconds would differ.
    assert set(first.splitlines()) < set(again)
    assert len(again) == 1 + 2 * len(classifiers)
    assert "split 0" not in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [["-1"], [str(2**32)], ["0", "0"]])
def test_seeds_out_of_range_are_refused(seeds, tmp_path, capsys):
    studies = ("digits", "grokking", "long-texts", "power-law-data", "rules", "tensorized")
    for study in (*studies, "whole-texts"):
        assert main([study, "--run-dir", str(tmp_path / "study"), "--seeds", *seeds]) == 2
        assert f"seeds={' '.join(seeds)}" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("name", ["svm", "logistic-regression"])
def test_the_seconds_end_with_the_fit(name, monkeypatch):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(digits_baselines.time, "perf_counter", lambda: next(clock))
    scored = digits_baselines.GridSearchCV.score

    def score(self, *arguments):
        assert not list(clock)
        return scored(self, *arguments)

    monkeypatch.setattr(digits_baselines.GridSearchCV, "score", score)
    assert digits_baselines.BASELINES[name](bright_images(0), 0)["seconds"] == 2.0
