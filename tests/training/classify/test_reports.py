import csv

import keras
import numpy as np
from sklearn.metrics import f1_score, precision_score, recall_score

from keras_tnattn import MaskedAveragePooling1D, TokenEmbedding
from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn_train.classify import reports


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_report_has_a_row_for_each_class(tmp_path):
    labels, predictions = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 0])
    names = ["a", "b", "never, predicted", "absent"]
    reports.write_report(labels, predictions, names, tmp_path / "report.csv")
    rows = {row["class"]: row for row in read(tmp_path / "report.csv")}
    assert list(rows) == [*names, "macro avg", "weighted avg", "accuracy"]
    scores = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    for column, score in scores.items():
        expected = score(labels, predictions, labels=range(4), average=None, zero_division=0)
        np.testing.assert_allclose([float(rows[name][column]) for name in names], expected)
        assert float(rows["macro avg"][column]) == expected.mean()
        assert float(rows["accuracy"][column]) == 0.5
    assert [rows[name]["support"] for name in names] == ["3", "2", "1", "0"]


def test_the_most_confident_mistakes_come_first(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "MISTAKES", 2)
    probabilities = np.array([[0.6, 0.4], [0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    texts = ["unsure", "right", 'two\nlines, "quoted"', "sure"]
    labels = np.array([1, 1, 1, 0])
    part = ["of another part", *texts]
    path = tmp_path / "mistakes.csv"
    reports.write_mistakes(part, np.arange(1, 5), labels, probabilities, ["no", "yes"], path)
    assert read(tmp_path / "mistakes.csv") == [
        {
            "probability": "0.800000",
            "predicted": "no",
            "label": "yes",
            "probability_of_label": "0.200000",
            "text": texts[2],
        },
        {
            "probability": "0.700000",
            "predicted": "yes",
            "label": "no",
            "probability_of_label": "0.300000",
            "text": "sure",
        },
    ]


def test_predictions_do_not_depend_on_padding_and_order():
    rng = np.random.default_rng(0)
    ids = np.zeros((300, 150), "int32")
    for row in ids:
        row[: rng.integers(0, 150)] = rng.integers(1, 9)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            TokenEmbedding(9, 4, mask_zero=True),
            MaskedAveragePooling1D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    expected = keras.ops.convert_to_numpy(model(ids))
    np.testing.assert_allclose(outputs_of(model, ids), expected, rtol=1e-5)
