"""Training on JAX and PyTorch without TensorFlow."""

import json

import keras
import pytest
from import_path import run_python

CODE = """
import json, sys
for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):
    sys.modules[name] = None
from keras_tnattn_train import cli
statuses = [
    cli.main(arguments)
    for arguments in json.loads(sys.argv[1])
]
sys.exit(statuses != json.loads(sys.argv[2]))
"""
# The backend of this process, or another one where that is TensorFlow.
BACKEND = {"tensorflow": "jax"}.get(keras.backend.backend(), keras.backend.backend())
RULES = ["--length", "8", "--batches-per-epoch", "2", "--batch-size", "4", "--bond-dim", "2"]
OPTIONS = {
    "classify": ["--embedding-dim", "8", "--max-words", "6", "--batch-size", "16"],
    "rules": RULES,
}


def run(commands, statuses):
    """Runs commands in one process, because each start takes seconds; returns its output."""
    pytest.importorskip(BACKEND)
    process = run_python("-c", CODE, *map(json.dumps, (commands, statuses)), backend=BACKEND)
    return process.stdout, process.stderr


@pytest.mark.slow
def test_trains_and_predicts_and_names_the_extra_that_exports(tmp_path):
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
    commands.append(["predict", str(tmp_path / "classify"), "good thing", "--format", "lines"])
    output, errors = run(commands, [0, 0, 0, 2, 0])
    for command in OPTIONS:
        assert json.loads((tmp_path / command / "results.json").read_text())["epochs"] == 1
    assert "pip install '.[tensorflow]'" in errors
    assert not (tmp_path / "run").exists()
    assert output.splitlines()[-1].split("\t")[0] in {"0", "1"}


@pytest.mark.slow
def test_commands_that_need_text_name_the_extra(tmp_path):
    pytest.importorskip("tensorflow_text")
    from translator_runs import make_run

    make_run(tmp_path / "run", "sdpa")
    exported = tmp_path / "exported/1"
    exported.mkdir(parents=True)
    (exported / "saved_model.pb").touch()
    commands = [
        ["evaluate", str(tmp_path / "run")],
        ["explain", str(tmp_path / "run"), "a"],
        ["predict", str(tmp_path / "run"), "a"],
        ["predict", str(exported), "a"],
        ["translate", "--run-dir", str(tmp_path / "new")],
    ]
    _, errors = run(commands, [2] * len(commands))
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(told) == len(commands)
    assert all("pip install '.[text]'" in line for line in told)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "exported"}
