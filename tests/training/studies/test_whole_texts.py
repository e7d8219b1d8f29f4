"""The study `whole-texts`: its runs and its table."""

import sys

import numpy as np
import pytest

from training.engine.checkpoints import EpochLog
from training.engine.runs import Run
from training.studies import processes
from training.studies.command_line import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """The study of two models on a small table, in this process."""
    rng = np.random.default_rng(0)
    rows = [
        f"{' '.join(['one', 'two'][i % 2] for _ in range(rng.integers(1, 200)))}" for i in range(60)
    ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *(f"{row},{row[0]}" for row in rows)]) + "\n")
    monkeypatch.setattr(processes, "run_alone", lambda f, *some, gigabytes: f(*some))
    arguments = ["whole-texts", "--datasets", str(table), "--run-dir", str(tmp_path / "study")]
    return [*arguments, "--epochs", "3", "--learning-rate", "0.03", "--models"]


def test_an_interrupted_run_ends_as_an_uninterrupted_one(arguments, tmp_path, monkeypatch):
    finished = EpochLog.on_epoch_end

    def interrupt(self, epoch, logs=None):
        finished(self, epoch, logs)
        if epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EpochLog, "on_epoch_end", interrupt)
        assert main([*arguments, "none"]) == 130
    assert main([*arguments, "none"]) == 0
    results = Run(tmp_path / "study/table-none-0").results
    assert results["test_accuracy"] > 0.9
    assert results["epochs"] == 3
    folder = str(tmp_path / "whole")
    arguments[arguments.index("--run-dir") + 1] = folder
    assert main([*arguments, "none"]) == 0
    whole = Run(tmp_path / "whole/table-none-0")
    losses = [
        [row["loss"] for row in run.read_metrics()]
        for run in (whole, Run(tmp_path / "study/table-none-0"))
    ]
    assert losses[0] == losses[1]
    lines = (tmp_path / "whole/table.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[1] for row in cells] == ["NONE"]
    assert cells[0][3] == f"{100 * whole.results['test_accuracy']:.1f}"


@pytest.mark.parametrize("model", ["tsa", "gru", "mha"])
@pytest.mark.slow
def test_other_models_train(arguments, tmp_path, model):
    assert main([*arguments, model]) == 0
    assert Run(tmp_path / f"study/table-{model}-0").results["test_accuracy"] > 0.8


def test_too_little_memory_is_a_result(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "run_alone", lambda *some, gigabytes: None)
    assert main([*arguments, "mha"]) == 0
    assert "out of memory" in capsys.readouterr().out
    assert Run(tmp_path / "study/table-mha-0").results == {"outcome": "out of memory"}
