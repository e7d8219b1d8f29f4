"""Runs of the demos, which the commands train that a user would type."""

import shlex
from pathlib import Path
from typing import Any

from keras_tnattn_train.cli import train
from keras_tnattn_train.runs.run import Run


def finished(folder: Path, command: str) -> dict[str, Any]:
    """Trains a run, or continues an interrupted one; returns its results, also of a finished run.

    Args:
        folder: The folder of the run.
        command: What the user would type after `keras-tnattn`, without the folder.

    Raises:
        SystemExit: If the command fails, with its status.
    """
    run = Run(folder)
    words = [*shlex.split(command), "--run-dir", str(folder)]
    if run.exists:
        words.append("--resume")
    if status := train(words):
        raise SystemExit(status)
    return run.results or {}
