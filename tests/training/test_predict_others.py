"""`predict` with runs whose models read pictures or graphs."""

import csv

import numpy as np
from PIL import Image

from keras_tnattn_train.cli import train
from keras_tnattn_train.predict import main


def test_pictures(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for i in range(24):
        pixels = np.full((6, 6), 240 * (i % 2), "uint8") + rng.integers(0, 15, (6, 6), "uint8")
        path = tmp_path / "pictures" / ("dark", "light")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype("uint8")).save(path)
    run = tmp_path / "run"
    arguments = ["images", "--dataset", str(tmp_path / "pictures"), "--image-size", "4"]
    assert train([*arguments, "--epochs", "8", "--run-dir", str(run)]) == 0
    paths = [str(tmp_path / "pictures" / name) for name in ("light/1.png", "dark/0.png")]
    capsys.readouterr()
    assert main([str(run), *paths]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["text"] for row in rows] == paths
    assert [row["label"] for row in rows] == ["light", "dark"]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path", *paths]) + "\n")
    assert main([str(run), "--input", str(table), "--format", "lines"]) == 0
    assert [line[:4] for line in capsys.readouterr().out.splitlines()] == ["ligh", "dark"]
    assert main([str(run), str(table)]) == 2
    assert "no picture" in capsys.readouterr().err


def test_nodes(tmp_path, capsys):
    folder, run = tmp_path / "graph", tmp_path / "run"
    folder.mkdir()
    nodes = [f"n{i},{'xy'[i % 2]},{i % 2},{1 - i % 2}" for i in range(30)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,a,b", *nodes]) + "\n")
    edges = [f"n{i},n{(i + 2) % 30}" for i in range(30)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    arguments = ["nodes", "--dataset", str(folder), "--layer", "gcn", "--learning-rate", "0.1"]
    assert train([*arguments, "--epochs", "20", "--run-dir", str(run)]) == 0
    capsys.readouterr()
    assert main([str(run), "n3", "n4"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["text"], row["label"]) for row in rows] == [("n3", "y"), ("n4", "x")]
    assert main([str(run), "n99"]) == 2
    assert "such as n0. Received: n99" in capsys.readouterr().err
