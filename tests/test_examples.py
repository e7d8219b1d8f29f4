"""The scripts of `examples/` run, and do what they say."""

import json
import os
import re
import runpy
import subprocess
import sys
import venv
from pathlib import Path

import keras
import numpy as np
import pytest
from import_path import IMPORT_PATH

from keras_tnattn_runtime.reader import load
from keras_tnattn_train.cli import main as keras_tnattn

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, **options):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**options)


@pytest.mark.slow
def test_text_classification(capsys):
    run("text_classification")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("food ")
    assert second.startswith("travel ")


def test_long_sequence(capsys):
    run("long_sequence", length=512)
    accuracy = re.search(r"512 tokens: (\d+)%", capsys.readouterr().out)
    assert int(accuracy[1]) >= 95


def test_classify_pictures(capsys):
    run("classify_pictures", epochs=20)
    accuracy = re.search(r"29,820 weights, test accuracy ([\d.]+)%", capsys.readouterr().out)
    assert float(accuracy[1]) >= 95


def test_smaller_dense_model(capsys):
    run("smaller_dense_model")
    lines = re.findall(r"([\d,]+) weights, test accuracy ([\d.]+)%", capsys.readouterr().out)
    weights = [int(count.replace(",", "")) for count, _ in lines]
    dense, converted, trained = [float(accuracy) for _, accuracy in lines]
    assert 10 * weights[1] < weights[0]
    assert weights[1] == weights[2]
    assert dense >= 95
    assert converted >= 40  # a guess is right in a quarter of the cases
    assert trained >= 95


@pytest.fixture(scope="module")
def ray_run(tmp_path_factory):
    """Runs an example, or code, in an environment that has Ray and the packages of this one."""
    folder = tmp_path_factory.mktemp("ray")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (folder / packages / "zz.pth").write_text("\n".join(path for path in sys.path if path))
    if subprocess.run([python, "-m", "pip", "install", "-q", "ray[data]"], check=False).returncode:
        pytest.skip("no package index")

    def run(name, *words):
        script = ["-c", name] if "import" in name else [EXAMPLES / f"{name}.py"]
        environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [python, *script, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


FILES = """
import sys, pandas
for number in range(3):
    texts = ["Returns the sum of an axis", "Trains a layer", "A split of the rows"]
    pandas.DataFrame({"text": texts[number:]}).to_parquet(f"{sys.argv[1]}/{number}.parquet")
    rows = {f"c{j}": [float(i % (j + 2) + number) for i in range(200)] for j in range(8)}
    pandas.DataFrame(rows).to_parquet(f"{sys.argv[2]}/{number}.parquet")
"""
ANSWERS = """
import sys, pandas
pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient="records")
"""


@pytest.mark.slow
def test_ray_reads_many_files(ray_run, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "rows").mkdir()
    ray_run(FILES, tmp_path / "texts", tmp_path / "rows")
    assert keras_tnattn(["export", "docstrings", "--onnx", str(tmp_path / "portable")]) == 0
    ray_run("ray_predict", tmp_path / "portable", tmp_path / "texts", tmp_path / "answers")
    ray_run(ANSWERS, tmp_path / "answers", tmp_path / "answers.json")
    answers = json.loads((tmp_path / "answers.json").read_text())
    classify = load(tmp_path / "portable")
    assert len(answers) == 3 + 2 + 1
    assert all(answer["label"] == classify(answer["text"]) for answer in answers)

    wide = [keras.layers.Dense(64, "relu"), keras.layers.Dense(4)]
    keras.Sequential([keras.Input((8,)), *wide]).save(tmp_path / "model.keras")
    words = [tmp_path / name for name in ("model.keras", "rows", "small.keras")]
    assert "error of the outputs on 300 rows" in ray_run("ray_compress", *words, 4, 2)
    small = keras.models.load_model(tmp_path / "small.keras")
    assert small(np.zeros((1, 8), "float32")).shape == (1, 4)


@pytest.mark.slow
def test_ray_trains_in_two_processes(ray_run, tmp_path):
    small = "--length 6 --batches-per-epoch 3 --batch-size 8 --bond-dim 2 --epochs 2"
    words = ["rules", *small.split(), "--run-dir", tmp_path / "run"]
    output = ray_run("ray_train", 2, 0, *words)
    assert "epoch 2 of 2" in output
    assert (tmp_path / "run/model.keras").exists()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_run_here_or_in_readme(path):
    code = path.read_text(encoding="utf-8")
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert f'run("{path.stem}"' in Path(__file__).read_text(encoding="utf-8") or code in readme
