"""Run folders. If the process is killed at any moment, no finished epoch is lost.

A run's folder is created together with its `config.json` and `data.json`. Each epoch adds a row to
`metrics.csv` and replaces the checkpoint. Pictures and model are written at the end, and
`results.json` is written last.
"""

import contextlib
import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import Options, SomeOptions, from_json, to_json
from keras_tnattn_train.processes.devices import process_id, wait_for_all
from keras_tnattn_train.system.files import read_object, reason, replacing, write_table
from keras_tnattn_train.system.locks import locked

TRAIN_AGAIN = "Delete its checkpoints/ to train the run from the beginning"
RESUME = "Solve this, then continue the run with --resume"


class Run:
    """One run's folder. If several processes train the run, process 0 alone writes to it.

    Args:
        folder: The folder; it need not exist yet.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)

    def locked(self, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
        """Locks the run, so that no other process that locks it can train it.

        Args:
            wait: Whether to wait until no other process has it locked. Default `False`.

        Returns:
            A context manager that yields `False` if another process has the run locked.
        """
        if process_id() > 0:  # process 0 locks it for all
            return contextlib.nullcontext(True)
        return locked(self.folder, wait)

    @contextlib.contextmanager
    def waited_for(self, why: str = "in which another process is working") -> Iterator[bool]:
        """Locks the run; if another process has it locked, prints the reason and waits.

        Args:
            why: The reason: what the other process does.

        Yields:
            `True`, as `locked` does.
        """
        with self.locked() as free:
            if free:
                yield True
                return
        print(f"waiting for {self.folder}, {why}", flush=True)
        with self.locked(wait=True):
            yield True

    @property
    def exists(self) -> bool:
        """Whether the folder exists and is not empty.

        Raises:
            InputError: If the folder cannot be read.
        """
        try:
            return self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        except OSError as error:
            raise InputError(
                f"Could not use the run folder {self.folder}: {reason(error)}"
            ) from error

    def start(self, config: Any, data: dict[str, Any]) -> None:
        """Creates the folder with the config and a description of the data.

        Raises:
            InputError: If the folder exists and is not empty, or cannot be created.
        """
        with self.starting() as partial:
            self.describe(partial, config, data)

    @contextlib.contextmanager
    def starting(self) -> Iterator[Path]:
        """Yields a temporary folder to fill, with `describe` among others; then renames it.

        Raises:
            InputError: If the run's folder exists and is not empty, or cannot be created.
        """
        partial = self.folder.with_name(f".partial-{self.folder.name}")
        if process_id() > 0:
            yield partial
            return
        self.check_new()
        # A killed attempt may have left this folder behind.
        shutil.rmtree(partial, ignore_errors=True)
        new_parents = [parent for parent in partial.parents if not parent.exists()]
        try:
            with self._creating():
                partial.mkdir(parents=True)
            yield partial
            with self._creating():
                partial.rename(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            for parent in new_parents:
                with contextlib.suppress(OSError):  # it holds the run
                    parent.rmdir()

    def describe(self, folder: Path, config: Any, data: dict[str, Any]) -> None:
        """Writes `config.json` and `data.json` into the folder that `starting` yields."""
        if process_id() > 0:
            return
        with self._creating():
            (folder / "config.json").write_text(to_json(config), encoding="utf-8")
            (folder / "data.json").write_text(json.dumps(data, indent=1), encoding="utf-8")

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"Could not create the run folder {self.folder}: {reason(error)}"
            ) from error

    def start_or_check(self, config: Any, data: dict[str, Any]) -> None:
        """Starts the run or, if it exists, checks that it was started with the same data."""
        if process_id() == 0 and not self.exists:
            self.start(config, data)
        wait_for_all("the run folder")
        self.check_data(data)

    def start_study(self, config: Options, data: dict[str, Any]) -> None:
        """Starts a study or, if it exists, checks that it has the same options and data.

        Raises:
            InputError: If the folder holds something else, or cannot be created.
        """
        self.check_same(config, data)
        with self.waited_for():
            self.check_same(config, data)  # another process may have started it
            self.start_or_check(config, data)

    def check_same(self, config: Options, data: dict[str, Any]) -> None:
        """Raises `InputError` if the run exists with other options or other data."""
        if self.exists:
            self.read_config(type(config), dict(config))
            self.check_data(data)

    def check_new(self) -> None:
        """Raises `InputError` if the folder exists and is not empty."""
        if self.exists:
            raise InputError(
                f"Expected a new run folder. Received: {self.folder}, which exists. "
                "Continue that run with --resume, or choose another --run-dir or --name"
            )

    def read_config(
        self,
        kind: type[SomeOptions],
        typed: dict[str, Any],
        hint: str = "Choose another folder",
    ) -> SomeOptions:
        """Reads the run's config, and checks that the options that the user typed agree with it.

        Args:
            kind: The class of the config.
            typed: The options that the user typed.
            hint: A sentence for the error message: what to do if there is no run.

        Raises:
            InputError: If there is no run, or an option differs from the config.
        """
        path = self.folder / "config.json"
        try:
            config = from_json(kind, path.read_text(encoding="utf-8"))
        except InputError as error:
            raise InputError(f"{path} is not usable. {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"Expected a folder with the config.json of a run or a study. Received: {error}. "
                f"{hint}"
            ) from error
        for name, value in typed.items():
            if value != getattr(config, name):
                raise InputError(
                    f"Expected the options of the run in {self.folder}, where {name}="
                    f"{getattr(config, name)!r}. Received: {name}={value!r}. Give the same "
                    "value, or choose another folder"
                )
        return config

    def check_data(self, data: dict[str, Any]) -> None:
        """Raises `InputError` unless the run's data description has the entries of `data`."""
        started_with = read_object(self.folder / "data.json", "Start another run")
        if any(started_with.get(name) != value for name, value in data.items()):
            raise InputError(
                f"Expected the data with which the run in {self.folder} was started. "
                "Received: other texts, images, labels or vocabulary. Start another run"
            )

    @property
    def results(self) -> dict[str, Any] | None:
        """The results of the run; `None` if it is not finished."""
        path = self.folder / "results.json"
        if not path.exists():
            return None
        return read_object(path, "Delete it, then finish the run with --resume")

    def finish(self, results: dict[str, Any]) -> None:
        """Writes the results, which marks the run as finished."""
        with replacing(self.folder / "results.json") as path:
            path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")

    @property
    def export_note(self) -> dict[str, Any] | None:
        """The options and version of the last export that was started, and whether it is complete;
        `None` if there is none."""
        path = self.folder / "export.json"
        if not path.exists():
            return None
        return read_object(path, "Delete it, then continue with --resume")

    def write_export_note(self, note: dict[str, Any]) -> None:
        """Writes the options and version of an export, and whether it is complete."""
        with replacing(self.folder / "export.json") as path:
            path.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    def read_metrics(self) -> list[dict[str, float]]:
        """Returns the metrics of each epoch."""
        path = self.folder / "metrics.csv"
        if not path.exists():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
            # As integers, so that a resumed run writes the same file.
            return [row | {"epoch": int(row["epoch"])} for row in rows]
        except (OSError, TypeError, ValueError, OverflowError, KeyError, csv.Error) as error:
            raise InputError(
                f"Expected the metrics of each epoch. Received: {path} ({error}). {TRAIN_AGAIN}"
            ) from error

    def write_metrics(self, rows: list[dict[str, float]]) -> None:
        """Writes the metrics, one row per epoch."""
        if process_id() > 0:
            return
        write_table(self.folder / "metrics.csv", rows)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def exported_folder(results: dict[str, Any], runs: Path) -> Path:
    """Returns the folder of a finished run's exported model.

    Args:
        results: The results of the run.
        runs: The folder of the runs, for the error message.

    Raises:
        InputError: If the exported model is gone.
    """
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
    """Trains each config in `folder/NAME/`; finished runs are not trained again.

    Several processes may do this in one folder at the same time: each run is trained by one of
    them, and those that others train are waited for at the end.

    Args:
        configs: The configs, one for each run.
        folder: The folder that holds the runs.
        train: A function that trains one run to its end, starting or resuming it.
        data: Entries that the data descriptions of existing runs must contain.

    Returns:
        The results of each run.

    Raises:
        InputError: If a run exists with other options or other data.
    """
    runs = [Run(folder / config.name) for config in configs]
    for config, run in zip(configs, runs, strict=True):
        run.check_same(config, data or {})
    for wait in (False, True):  # those that other processes train come last
        for i, (config, run) in enumerate(zip(configs, runs, strict=True)):
            if run.results:
                continue
            why = "which another process is training"
            with run.waited_for(why) if wait else run.locked() as free:
                if not free:
                    continue
                run.check_same(config, data or {})  # another process may have started it
                if not run.results:
                    print(f"run {i + 1} of {len(configs)}: {config.name}", flush=True)
                    train(config, run)
    return [run.results or {} for run in runs]
