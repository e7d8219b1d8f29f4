"""Trains many runs, and writes what they have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import replacing


def save_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def exported_folder(results: dict[str, Any], runs: Path) -> Path:
    """Returns the folder of a finished run's exported model."""
    folder = Path(results["exported"])
    if not folder.is_dir():
        raise InputError(f"There is no {folder}. Delete {runs} to train and export again")
    return folder


def finish_all(
    configs: Sequence[Any],
    folder: Path,
    train: Callable[[Any, Run], object],
    data: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Trains each config in `folder/NAME/` unless it is finished; returns the results of all.

    Several processes may do this in one folder at the same time: each run is trained by one of
    them, and those that others train are waited for at the end.
    """
    runs = [Run(folder / config.name) for config in configs]
    for config, run in zip(configs, runs, strict=True):
        run.check_same(config, data or {})
    for wait in (False, True):  # those that other processes train come last
        for i, (config, run) in enumerate(zip(configs, runs, strict=True)):
            if run.results:
                continue
            why = "which another process is training"
            with run.waited_for(why) if wait else run.lock() as free:
                if not free:
                    continue
                run.check_same(config, data or {})  # another process may have started it
                if not run.results:
                    print(f"run {i + 1} of {len(configs)}: {config.name}", flush=True)
                    train(config, run)
    return [run.results or {} for run in runs]
