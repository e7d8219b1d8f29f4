import csv

import keras
import numpy as np
import pytest
from slow_cases import slow_but

from keras_tnattn_studies import digits, digits_classifiers
from keras_tnattn_studies.digits_data import LabeledImages, load_images
from keras_tnattn_studies.reproduce import main


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
    return LabeledImages(images[:60], labels[:60], images[60:], labels[60:])


def test_the_parts_of_a_split():
    data = load_images(0)
    assert (data.images.shape, data.test_images.shape) == ((1347, 8, 8), (450, 8, 8))
    assert (len(data.labels), len(data.test_labels)) == (1347, 450)
    assert (data.images.min(), data.images.max()) == (0, 1)
    assert min(np.bincount(data.test_labels)) >= 43
    assert np.array_equal(load_images(0).test_images, data.test_images)
    assert not np.array_equal(load_images(1).test_images, data.test_images)


@pytest.mark.parametrize("patch", [(1, 6), (3, 3)])
def test_a_site_is_a_row_or_a_patch(patch):
    images = np.arange(36, dtype="float32").reshape(1, 6, 6)
    labels = np.zeros(1, "int32")
    data = LabeledImages(images, labels, images, labels)
    model = digits_classifiers._tensor_network(data, patch)
    sites = keras.Model(model.input, model.get_layer("patches").output)
    high, wide = patch
    want = [
        images[0, i : i + high, j : j + wide].ravel()
        for i in range(0, 6, high)
        for j in range(0, 6, wide)
    ]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(sites(images))[0], want)


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
    monkeypatch.setattr(digits, "load_images", bright_images)
    monkeypatch.setattr(digits_classifiers, "EPOCHS", 20)
    monkeypatch.setattr(digits_classifiers, "BATCH_SIZE", 10)
    command = ["digits", "--run-dir", str(tmp_path), "--classifiers", *classifiers, "--seeds"]
    assert main([*command, "0"]) == 0
    with (tmp_path / "splits.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["classifier"]: row for row in csv.DictReader(file)}
    assert list(rows) == classifiers
    assert min(float(row["test_accuracy"]) for row in rows.values()) > 0.9
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
    monkeypatch.setattr(digits_classifiers.time, "perf_counter", lambda: next(clock))
    scored = digits_classifiers.GridSearchCV.score

    def score(self, *arguments):
        assert not list(clock)
        return scored(self, *arguments)

    monkeypatch.setattr(digits_classifiers.GridSearchCV, "score", score)
    assert digits_classifiers.CLASSIFIERS[name](bright_images(0), 0)["seconds"] == 2.0
