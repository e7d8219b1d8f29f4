"""`predict` with runs whose models read graphs."""

import csv

import numpy as np
import pytest

from keras_tnattn_train.cli import train
from keras_tnattn_train.predict import main

pytestmark = pytest.mark.usefixtures("eagerly")


def test_nodes_in_the_order_asked_for(tmp_path, capsys):
    folder, run = tmp_path / "graph", tmp_path / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    # Names of several lengths, not in the order of their numbers; weights that count.
    names = [f"{'n' * (1 + i % 4)}{(7 * i) % 30}" for i in range(30)]
    nodes = [f"{name},{'xyz'[i % 3]},{rng.random()},{rng.random()}" for i, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,a,b", *nodes]) + "\n")
    edges = [f"{names[i]},{names[(i + j) % 30]},{1 + 9 * j}" for i in range(30) for j in (1, 2)]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")
    arguments = ["nodes", "--dataset", str(folder), "--layer", "gcn", "--learning-rate", "0.1"]
    assert train([*arguments, "--epochs", "3", "--run-dir", str(run)]) == 0
    with (run / "predictions.csv").open(newline="") as file:
        known = {row["node"]: row for row in csv.DictReader(file)}
    assert len({row["probability"] for row in known.values()}) == 30
    asked = [names[i] for i in (5, 29, 0, 14, 5, 3, 22, 7)]
    capsys.readouterr()
    for more in ([], ["--batch-size", "3"]):
        assert main([str(run), *asked, *more]) == 0
        rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
        assert [row["text"] for row in rows] == asked
        assert [row["label"] for row in rows] == [known[name]["predicted"] for name in asked]
        probabilities = [float(row["probability"]) for row in rows]
        want = [float(known[name]["probability"]) for name in asked]
        assert probabilities == pytest.approx(want, abs=2e-6)
    assert main([str(run), names[3], "n99", names[4]]) == 1
    out, error = capsys.readouterr()
    rows = list(csv.DictReader(out.splitlines()))
    assert [(row["row"], row["text"]) for row in rows] == [("1", names[3]), ("3", names[4])]
    assert [row["label"] for row in rows] == [known[name]["predicted"] for name in names[3:5]]
    assert "row 2: 'n99', which is no node of the graph" in error
    assert f"called {names[0]}" in error
