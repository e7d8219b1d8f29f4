"""The command line `keras-tnattn`, and `training/train.py`, which has its commands that train."""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from keras_tnattn_runtime.extras import EXTRAS, installation, missing_backend

# The programs around them: a function of the arguments, and the line in the list of commands.
PROGRAMS = {
    "predict": ("keras_tnattn_train.predict:main", "Predict with a run or an exported model"),
    "generate": ("keras_tnattn_train.language.generate:main", "Continue a text with a run"),
    "compress": ("keras_tnattn_train.compress:main", "Make the model of a run or a file smaller"),
    "export": (
        "keras_tnattn_train.export:main",
        "Write a run's model for other runtimes (extra onnx or litert)",
    ),
    "evaluate": ("keras_tnattn_train.programs:evaluate", "Score a classifier or a translator"),
    "explain": ("keras_tnattn_train.programs:explain", "Show what a run's attention does"),
    "serve": ("keras_tnattn_serving.__main__:run", "Serve exported models over HTTP (extra serve)"),
    "reproduce": ("keras_tnattn_train.cli:reproduce", "Run a study: many trainings"),
    "launch": ("keras_tnattn_train.processes.launching:main", "Train a run in several processes"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `keras-tnattn`."""
    return _run(arguments, PROGRAMS)


def train(arguments: Sequence[str] | None = None) -> int:
    """Runs `training/train.py`: as `main`, with the commands that train only."""
    return _run(arguments, {})


def reproduce(arguments: Sequence[str] | None = None) -> int:
    """Runs a study of the checkout that this file, or the present folder, is in."""
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    studies = [place / "studies" for place in places]
    found = next((x for x in studies if (x / "keras_tnattn_studies").is_dir()), None)
    if found is None:
        text = "the wheel has no studies: run this command in the folder of a clone"
        print(f"error: {text}. Received: {Path.cwd()}", file=sys.stderr)
        return 2
    sys.path.append(str(found))
    return importlib.import_module("keras_tnattn_studies.reproduce").main(arguments)


def _run(arguments: Sequence[str] | None, programs: Mapping[str, tuple[str, str]]) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(importlib.metadata.version("keras-tnattn"))
        return 0
    try:
        if words and words[0] in programs:
            module, _, function = programs[words[0]][0].partition(":")
            return getattr(importlib.import_module(module), function)(words[1:])
        from keras_tnattn_train.commands import run_commands
        from keras_tnattn_train.tasks import task_commands

        summaries = {name: summary for name, (_, summary) in programs.items()}
        text = "Trains models of keras_tnattn"
        text += ", and predicts, compresses and serves with them." if programs else "."
        return run_commands("keras-tnattn", text, task_commands(), words, summaries)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        text = f"{package} is not installed. {installation(package)}"
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
        if package == {"numpy": "jax"}.get(backend, backend):  # which Keras' NumPy backend imports
            text = missing_backend(package)
        print(f"error: {text}", file=sys.stderr)
        return 2
