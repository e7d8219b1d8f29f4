"""What tests of several commands ask of a run's folder and of the command line."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
from conformance import assert_same_arrays

from keras_tnattn_train.cli import train
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog

ROOT = Path(__file__).resolve().parents[2]
EXPORTS = keras.backend.backend() == "tensorflow"
# What every exported run leaves behind.
FILES = {"config.json", "data.json", "metrics.csv", "results.json", "learning_curves.png"}
FILES |= {"model.keras", "checkpoints"} | ({"export.json"} if EXPORTS else set())


def exporting(saved_models):
    """The options to export with, where that can be done."""
    return ["--export", "--saved-models", str(saved_models)] if EXPORTS else []


def state(folder):
    """Every weight, and what was measured in each epoch but for the times."""
    model = keras.models.load_model(folder / "model.keras")
    weights = [keras.ops.convert_to_numpy(w) for w in model.weights]
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("seconds", "tokens_per_second"))}
        for row in Run(folder).read_metrics()
    ]
    return weights, rows


def assert_equal(folder, other):
    (weights, rows), (other_weights, other_rows) = state(folder), state(other)
    assert rows == other_rows
    assert_same_arrays(weights, other_weights)


def assert_refused(capsys, arguments, *parts, main=train):
    """The command ends with status 2 and one line on stderr that holds all parts; gives stdout."""
    assert main(arguments) == 2
    output, error = capsys.readouterr()
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert all(part in error for part in parts), error
    return output


def interrupted_after(epochs, arguments, monkeypatch):
    """Runs the command, interrupted as by Ctrl-C once so many epochs are written."""
    finished = EpochLog.on_epoch_end

    def interrupt(self, epoch, logs=None):
        finished(self, epoch, logs)
        if epoch + 1 == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EpochLog, "on_epoch_end", interrupt)
        assert train(arguments) == 130


def killed_after(epochs, arguments, folder):
    """Runs the command in a process of its own; kills it when so many epochs are written."""
    script = [sys.executable, str(ROOT / "training/train.py"), *arguments]
    deadline = time.monotonic() + 180
    with subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(Run(folder).read_metrics()) < epochs:
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert len(Run(folder).read_metrics()) >= epochs
    assert process.returncode == -signal.SIGKILL


def predicted(arguments):
    """The table that `predict` writes in a new process, and the packages that it has imported."""
    code = (
        "import sys; from keras_tnattn_train.predict import main; status = main(sys.argv[1:]); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules})); sys.exit(status)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    *answer, modules = process.stdout.splitlines()
    return list(csv.DictReader(answer)), set(modules.split())
