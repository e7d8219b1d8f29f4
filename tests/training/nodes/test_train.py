import csv
import json
import math

import keras
import numpy as np
import pytest
from planted_graph import write
from run_folders import FILES, assert_equal, assert_refused

from keras_tnattn_train.cli import train as main
from keras_tnattn_train.data.graphs import load_graph
from keras_tnattn_train.nodes import fitting
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.nodes.fitting import EarlyStopping
from keras_tnattn_train.nodes.plots import neighborhood
from keras_tnattn_train.runs.run import Run, from_json, to_json


def command(graph, folder, *more):
    options = "--epochs 60 --patience 40 --learning-rate 0.03 --dropout 0.2 --num-heads 2"
    return ["nodes", "--dataset", graph, "--run-dir", str(folder), *options.split(), *more]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "planted")


@pytest.fixture(scope="module")
def uninterrupted(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "CHECKPOINT_EPOCHS", 10)
        assert main(command(graph, folder)) == 0
    return folder


def test_the_defaults_are_those_of_the_papers():
    gat, gcn = NodesConfig(), NodesConfig(layer="gcn")
    assert (gat.hidden_dim, gat.dropout, gat.learning_rate) == (8, 0.6, 5e-3)
    assert (gcn.hidden_dim, gcn.dropout, gcn.learning_rate) == (16, 0.5, 1e-2)
    assert (gat.num_heads, gat.output_heads, gat.l2, gat.patience) == (8, 1, 5e-4, 100)
    assert gat.name == "cora-gat-0"
    assert from_json(NodesConfig, to_json(gcn)) == gcn


def test_early_stopping_is_that_of_the_published_code():
    stopping = EarlyStopping(patience=2)
    losses = [1.0, 0.9, 1.0, 0.8, 0.9, 0.8, 0.9, 0.9]
    accuracies = [0.5, 0.5, 0.6, 0.5, 0.5, 0.6, 0.5, 0.5]
    best, waited = [], []
    for epoch, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), start=1):
        assert not stopping.done
        row = {"epoch": epoch, "val_loss": loss, "val_accuracy": accuracy}
        best.append(stopping.update(row))
        waited.append(stopping.waited)
    assert best == [True, True, False, False, False, True, False, False]
    assert waited == [0, 0, 0, 0, 1, 0, 1, 2]
    assert stopping.done
    assert stopping.best_epoch == 6


def test_a_run_folder_holds_it_all(uninterrupted, graph):
    names = {path.name for path in uninterrupted.iterdir()}
    assert names == FILES - {"export.json"} | {
        *("confusion_matrix.png", "attention.png", "predictions.csv")
    }
    results, rows = Run(uninterrupted).results, Run(uninterrupted).read_metrics()
    assert results["test_accuracy"] >= 0.75  # of three classes; the words alone say less
    assert results["epochs"] == len(rows) <= 60
    best = rows[results["best_epoch"] - 1]
    before = rows[: results["best_epoch"]]
    assert best["val_loss"] == min(row["val_loss"] for row in before)
    assert best["val_accuracy"] == max(row["val_accuracy"] for row in before)

    # The kept model is the best one, and the loss is a cross-entropy without the penalty.
    data, model = load_graph(graph), keras.models.load_model(uninterrupted / "model.keras")
    logits = model.predict_on_batch({"features": data.features[None], "edges": data.edges[None]})[0]
    likelihoods = np.asarray(keras.ops.log_softmax(logits))[np.arange(60), data.labels]
    validation = data.parts["validation"]
    assert -likelihoods[validation].mean() == pytest.approx(best["val_loss"], rel=1e-4)
    right = logits.argmax(-1) == data.labels
    assert right[validation].mean() == pytest.approx(best["val_accuracy"])
    assert right[data.parts["test"]].mean() == pytest.approx(results["test_accuracy"])

    with (uninterrupted / "predictions.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    assert [row["node"] for row in predictions] == [str(i) for i in range(60)]
    assert [row["predicted"] == row["label"] for row in predictions] == right.tolist()
    assert [row["split"] == "test" for row in predictions] == data.parts["test"].tolist()
    assert all(1 / 3 < float(row["probability"]) <= 1 for row in predictions)


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    uninterrupted, graph, tmp_path, monkeypatch
):
    monkeypatch.setattr(fitting, "CHECKPOINT_EPOCHS", 10)
    step, calls = fitting.GraphTrainer.step, []

    def interrupt(self):
        calls.append(self)
        if len(calls) == 18:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(fitting.GraphTrainer, "step", interrupt)
        assert main(command(graph, tmp_path / "run")) == 130
    assert len(Run(tmp_path / "run").read_metrics()) == 10
    assert main(["nodes", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
    assert_equal(tmp_path / "run", uninterrupted)
    results = [Run(folder).results for folder in (tmp_path / "run", uninterrupted)]
    assert results[0]["best_epoch"] == results[1]["best_epoch"]


def test_the_picture_shows_edges_around_a_test_node(graph):
    data = load_graph(graph)
    places, edges = neighborhood(data)
    middle = next(iter(places))
    assert places[middle] == (0, 0)
    assert data.parts["test"][middle]
    assert set(edges) <= set(map(tuple, data.edges.tolist()))
    rings = {node: round(math.hypot(*place)) for node, place in places.items()}
    assert all(rings[outer] == rings[inner] + 1 for outer, inner in edges)
    around = {sender for sender, receiver in data.edges.tolist() if receiver == middle}
    assert {node for node, ring in rings.items() if ring == 1} == around


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--layer", "gin"], "gin"),
            (["--layer", "gcn"], "num_heads=2"),
            (["--filter-order", "2"], "filter_order=2"),
            (["--patience", "0"], "patience=0"),
            (["--dropout", "1"], "dropout=1"),
            (["--export"], "Unknown option: --export"),
            (["--saved-models", "models"], "Unknown option: --saved-models"),
            (["--tensorboard"], "Unknown option: --tensorboard"),
            (["--devices", "2"], "Unknown option: --devices"),
        ],
    )
    def test_bad_options_leave_no_folder(self, graph, tmp_path, capsys, options, part):
        assert_refused(capsys, command(graph, tmp_path / "run", *options), part)
        assert list(tmp_path.iterdir()) == []

    def test_another_graph(self, uninterrupted, tmp_path, capsys):
        changed = write(tmp_path / "planted", extra_edges=[(0, 1), (0, 4)])
        config = json.loads((uninterrupted / "config.json").read_text())
        run = tmp_path / "run"
        run.mkdir()
        (run / "data.json").write_bytes((uninterrupted / "data.json").read_bytes())
        (run / "config.json").write_text(json.dumps(config | {"dataset": changed}))
        assert_refused(capsys, ["nodes", "--run-dir", str(run), "--resume"], "Start another run")


@pytest.mark.parametrize("layer", ["gcn", "gat"])
def test_a_graph_of_names_weights_and_no_split(layer, tmp_path, capsys):
    rng, folder = np.random.default_rng(0), tmp_path / "own"
    folder.mkdir()
    # Heavy edges join nodes of one class, light ones any; the features say nothing.
    rows = [f"n{i},{'xy'[i % 2] if i < 38 else ''},{rng.random():.3f}" for i in range(40)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,feature", *rows]) + "\n")
    edges = [f"n{i},n{(i + 2) % 40},9" for i in range(40)]
    edges += [f"n{i},n{(i + 1) % 40},0.01" for i in range(40)]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")
    run = tmp_path / "run"
    arguments = ["nodes", "--dataset", str(folder), "--layer", layer, "--epochs", "3"]
    assert main([*arguments, "--test-fraction", "0.25", "--run-dir", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "no column split: the labeled nodes are split by seed 0" in printed
    assert "2 nodes without a label" in printed
    assert ("weights of the edges are not used" in printed) == (layer == "gat")
    model = keras.models.load_model(run / "model.keras")
    assert ("edge_weights" in {tensor.name for tensor in model.inputs}) == (layer == "gcn")
    with (run / "predictions.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    assert [(row["node"], row["split"], row["label"]) for row in predictions[38:]] == [
        ("n38", "none", ""),
        ("n39", "none", ""),
    ]
    assert sum(row["split"] == "test" for row in predictions) == 10
