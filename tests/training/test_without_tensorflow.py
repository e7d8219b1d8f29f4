"""Training on JAX and PyTorch without TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import json, sys
for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):
    sys.modules[name] = None
from training.train import main
sys.exit([main(arguments) for arguments in json.loads(sys.argv[1])] != json.loads(sys.argv[2]))
"""
# The backend of this process, or another one where that is TensorFlow.
BACKEND = {"tensorflow": "jax"}.get(keras.backend.backend(), keras.backend.backend())
RULES = ["--length", "8", "--batches-per-epoch", "2", "--batch-size", "4", "--bond-dim", "2"]
OPTIONS = {
    "classify": ["--embedding-dim", "8", "--max-words", "6", "--batch-size", "16"],
    "rules": RULES,
    "images": ["--bond-dim", "2", "--batch-size", "512"],
}


@pytest.mark.slow
def test_trains_and_names_the_extra_that_exports(tmp_path):
    pytest.importorskip(BACKEND)
    table = tmp_path / "table.csv"
    rows = [f"{'good fine' if n % 2 else 'bad poor'} thing {n},{n % 2}" for n in range(40)]
    table.write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    commands = [
        [command, "--epochs", "1", "--run-dir", str(tmp_path / command), *options]
        for command, options in OPTIONS.items()
    ]
    commands[0] += ["--dataset", str(table)]
    exporting = ["--export", "--saved-models", str(tmp_path), "--run-dir", str(tmp_path / "run")]
    commands.append(["rules", *exporting, *RULES])
    # One process: each start takes seconds.
    process = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands), json.dumps([0, 0, 0, 2])],
        env={**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    for command in OPTIONS:
        assert json.loads((tmp_path / command / "results.json").read_text())["epochs"] == 1
    assert "keras-tnattn[tensorflow]" in process.stderr
    assert not (tmp_path / "run").exists()
