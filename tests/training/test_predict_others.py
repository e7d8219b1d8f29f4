"""`predict` with runs whose models read pictures or graphs."""

import csv

import keras
import numpy as np
import pytest
from PIL import Image

from keras_tnattn_train.cli import train
from keras_tnattn_train.predict import main


def test_pictures_of_other_sizes_are_resized_as_in_training(tmp_path, capsys):
    """Of training are pictures of 4 rows and 6 columns."""
    rng = np.random.default_rng(0)

    def picture(path, kind, height, width):
        pixels = rng.integers(0, 15, (height, width))
        bright = np.s_[: height // 2] if kind == "top" else np.s_[:, : width // 2]
        pixels[bright] += 200
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype("uint8")).save(path)
        return str(path)

    for i in range(32):
        kind = ("left", "top")[i % 2]
        picture(tmp_path / "pictures" / kind / f"{i}.png", kind, 4, 6)
    run = tmp_path / "run"
    arguments = ["images", "--dataset", str(tmp_path / "pictures"), "--learning-rate", "0.02"]
    tensor_network = ["--attention", "tn", "--bond-dim", "4"]
    assert train([*arguments, *tensor_network, "--epochs", "6", "--run-dir", str(run)]) == 0
    capsys.readouterr()
    sizes = [(4, 6), (12, 18), (4, 24), (16, 6), (10, 10), (2, 2)]
    kinds = ["left", "top"] * len(sizes)
    paths = [
        picture(tmp_path / "new" / f"{i}.png", kind, *sizes[i // 2]) for i, kind in enumerate(kinds)
    ]
    assert main([str(run), *paths]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["text"] for row in rows] == paths
    assert [row["label"] for row in rows] == kinds
    model = keras.models.load_model(run / "model.keras")
    for path, row in zip(paths, rows, strict=True):
        with Image.open(path) as image:
            pixels = np.asarray(image.resize((6, 4), Image.Resampling.LANCZOS), "float32") / 255
        left, top = keras.ops.convert_to_numpy(keras.ops.softmax(model(pixels[None])))[0]
        assert float(row["probability of left"]) == pytest.approx(left, abs=2e-6)
        assert float(row["probability of top"]) == pytest.approx(top, abs=2e-6)
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path", *paths]) + "\n")
    assert main([str(run), "--input", str(table), "--format", "lines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines] == kinds
    other = str(tmp_path / "none.png")
    assert main([str(run), str(table), paths[0], other, paths[1]]) == 1
    out, error = capsys.readouterr()
    assert [row["label"] for row in csv.DictReader(out.splitlines())] == kinds[:2]
    assert f"row 1: {table}: not a picture; left out" in error
    assert f"row 3: {other}: no such file or directory; left out" in error
    assert "bad rows left out: 2" in error
    assert main([str(run), other]) == 1
    assert capsys.readouterr().out == (
        "row,text,label,probability,probability of left,probability of top\n"
    )


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
