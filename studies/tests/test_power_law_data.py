import csv

import keras
import numpy as np
import pytest
from planted_graph import write

from keras_tnattn.layers import MetricAttention, PowerLawGraphAttention
from keras_tnattn_studies import power_law_graph, power_law_tables
from keras_tnattn_studies.power_law_data import tables
from keras_tnattn_studies.power_law_graph import EdgeAttention
from keras_tnattn_studies.power_law_tables import FeatureTokens, load_table, measure_table
from keras_tnattn_studies.reproduce import main


def row(accuracy):
    return {"weights": 10, "train_accuracy": 1.0, "test_accuracy": accuracy, "seconds": 2.0}


def rows_of(folder):
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_only_the_intervals_of_tables_are_corrected_for_shared_rows():
    accuracies = {"plga": (0.9, 0.9), "sdpa": (0.9, 0.92)}
    rows = {
        (dataset, name, seed): row(accuracy)
        for dataset in ("cora", "wine")
        for name, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    }
    lines = tables(rows, shared=1 / 3).splitlines()
    assert [line for line in lines if line and not line.startswith("|")] == ["wine", "cora"]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [line[2] for line in cells if "classifier" in line] == ["splits", "seeds"]
    student, deviation = 12.7062, 2**0.5  # one degree of freedom; of the differences 0 and 2
    assert [line[-1] for line in cells if line[:1] == ["sdpa"]] == [
        f"1.00 ± {student * deviation * (1 / 2 + 1 / 3) ** 0.5:.2f}",
        f"1.00 ± {student * deviation * (1 / 2) ** 0.5:.2f}",
    ]


def test_the_training_rows_of_a_table_scale_all_rows():
    original, labels = power_law_tables.LOADERS["wine"](return_X_y=True)
    data, other = load_table("wine", 0), load_table("wine", 1)
    np.testing.assert_allclose(data.rows.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.rows.std(axis=0), 1, atol=1e-5)
    assert abs(data.test_rows.mean(axis=0)).max() > 0.01
    assert not np.array_equal(data.test_rows, other.test_rows)
    assert len(data.test_rows) == 45
    # One map for all rows, which reaches each of them once.
    scaled = np.concatenate([data.rows, data.test_rows])
    slope = scaled.std(axis=0) / original.std(axis=0)
    shift = scaled.mean(axis=0) - slope * original.mean(axis=0)
    np.testing.assert_allclose(
        np.sort(scaled, axis=0), np.sort(original * slope + shift, axis=0), atol=1e-4
    )
    assert sorted([*data.labels, *data.test_labels]) == sorted(labels)


def test_each_feature_has_a_token_of_its_own():
    layer = FeatureTokens(4)
    x = np.array([[2.0, -1.0, 3.0], [2.0, 5.0, 3.0]], "float32")
    tokens = keras.ops.convert_to_numpy(layer(x))
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in layer.weights)
    assert tokens.shape == layer.compute_output_shape(x.shape) == (2, 3, 4)
    np.testing.assert_allclose(tokens[1, 1], 5 * kernel[1] + bias[1], rtol=1e-6)
    assert np.ptp(tokens, axis=0).any(axis=-1).tolist() == [False, True, False]


@pytest.mark.parametrize(("attention", "additive"), [("none", True), ("sdpa", False)])
def test_without_attention_no_feature_meets_another(attention, additive):
    model = power_law_tables.network(attention, 3, 2)
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    crossed = x.copy()
    crossed[:, 0] = x[::-1, 0]  # the first features change places
    whole, mixed = (keras.ops.convert_to_numpy(model(rows)).sum(axis=0) for rows in (x, crossed))
    assert np.allclose(whole, mixed, atol=1e-5) == additive


@pytest.mark.parametrize(
    "attention",
    [
        lambda: PowerLawGraphAttention(2, residual_units=1, residual_dim=5, epsilon=0.01),
        lambda: MetricAttention(2),
    ],
)
def test_attention_on_edges_is_that_with_the_graph_as_its_mask(attention):
    x = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
    edges = np.array([[[0, 1], [1, 0], [2, 5], [3, 1]], [[4, 4], [6, 0], [0, 6], [2, 3]]])
    layer = EdgeAttention(attention())
    got = layer(x, edges)
    mask = np.stack([np.eye(7, dtype=bool)] * 2)
    for graph, (sender, receiver) in zip((0,) * 4 + (1,) * 4, edges.reshape(-1, 2), strict=True):
        mask[graph, receiver, sender] = True
    expected = keras.ops.convert_to_numpy(layer.attention(x, attention_mask=mask))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(got), expected, atol=1e-5)
    assert tuple(got.shape) == layer.compute_output_shape(x.shape, edges.shape)


def test_a_network_that_is_trained_again_forgets_its_last_training(monkeypatch):
    monkeypatch.setattr(power_law_tables, "STEPS", 5)
    kept = power_law_tables._compiled_network
    kept.cache_clear()
    outputs = {}
    try:
        for name, seed in [("first", 3), ("other", 4), ("again", 3)]:
            data = load_table("wine", seed)
            model, _ = power_law_tables._trained_network("none", data, seed)
            outputs[name] = keras.ops.convert_to_numpy(model(data.test_rows))
        assert kept.cache_info().misses == 1
    finally:
        kept.cache_clear()  # its learning rate ends after five steps
    np.testing.assert_allclose(outputs["again"], outputs["first"], atol=1e-5)
    assert abs(outputs["other"] - outputs["first"]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("attention", power_law_tables.ATTENTIONS)
def test_the_networks_learn_a_table(attention):
    assert measure_table("wine", attention, 100)["test_accuracy"] > 0.85


def test_what_is_finished_is_not_trained_again(tmp_path, capsys):
    command = ["power-law-data", "--run-dir", str(tmp_path), "--datasets", "wine", "--classifiers"]
    command += ["logistic-regression", "svm", "gradient-boosting", "--seeds"]
    assert main([*command, "100"]) == 0
    first = rows_of(tmp_path)
    assert [row["classifier"] for row in first] == command[-4:-1]
    assert min(float(row["test_accuracy"]) for row in first) > 0.9
    assert int(first[0]["weights"]) == 3 * 13 + 3
    assert (tmp_path / "table.md").read_text(encoding="utf-8") in capsys.readouterr().out

    assert main([*command, "100", "101"]) == 0
    assert "seed 100" not in capsys.readouterr().out
    again = rows_of(tmp_path)
    assert len(again) == 6
    assert [row for row in again if row["seed"] == "100"] == first


@pytest.mark.parametrize(
    "classifiers",
    [["logistic-regression"], pytest.param(["plga", "sdpa", "none"], marks=pytest.mark.slow)],
)
def test_classifiers_of_nodes(classifiers, tmp_path, monkeypatch):
    monkeypatch.setattr(power_law_graph, "L2", 0)
    write(tmp_path / "data" / "cora")
    run = tmp_path / "run"
    command = ["power-law-data", "--data-dir", str(tmp_path / "data"), "--run-dir", str(run)]
    command += ["--datasets", "cora", "--seeds", "0", "--classifiers"]
    assert main([*command, *classifiers, "svm"]) == 0
    accuracies = {row["classifier"]: float(row["test_accuracy"]) for row in rows_of(run)}
    assert list(accuracies) == classifiers  # there is no support vector machine of nodes
    if "none" in accuracies:
        # The words say little, the neighbors nearly all.
        assert min(accuracies["plga"], accuracies["sdpa"]) > accuracies["none"]


def test_a_graph_needs_its_folder(tmp_path, capsys):
    command = ["power-law-data", "--run-dir", str(tmp_path / "run"), "--datasets", "wine", "cora"]
    assert main(command) == 2
    assert "--data-dir" in capsys.readouterr().err
    assert main([*command, "--data-dir", str(tmp_path)]) == 2
    assert "cora" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
