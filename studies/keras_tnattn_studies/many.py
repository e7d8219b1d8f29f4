"""Trains many runs, in one process or several."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.runs.run import Run


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
