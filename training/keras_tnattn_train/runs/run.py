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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import Options, SomeOptions
from keras_tnattn_train.processes.devices import process_id, wait_for_all
from keras_tnattn_train.system.files import read_object, reason, write_json, write_table
from keras_tnattn_train.system.locks import folder_lock

TRAIN_AGAIN_HINT = "Delete its checkpoints/ to train the run from the beginning"
RESUME_HINT = "Solve this, then continue the run with --resume"


def to_json(options: Options) -> str:
    """Returns the options and their command, if any, as JSON, which `from_json` reads."""
    command = {"command": options.command} if options.command else {}
    values = command | options.model_dump(mode="json")
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def from_json(kind: type[SomeOptions], text: str) -> SomeOptions:
    """Creates options of class `kind` from JSON."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"Expected the options of a run as JSON. Received: {error}") from error
    if not isinstance(values, dict):
        raise InputError(
            f"Expected the options of a run as a JSON object. Received: {str(values)[:40]}"
        )
    command = values.pop("command", None)
    if command != kind.command:
        raise InputError(f"Expected a run of {kind.command}. Received: one of {command}")
    return kind(**values)


class Run:
    """One run's folder."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)

    def lock(self, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
        """Locks the run; yields `False` if another process, which trains it, has it locked."""
        return folder_lock(self.folder, wait)

    @contextlib.contextmanager
    def waited_for(self, why: str = "in which another process is working") -> Iterator[bool]:
        """Locks the run; if another process has it locked, prints the reason and waits."""
        with self.lock() as free:
            if free:
                yield True
                return
        print(f"waiting for {self.folder}, {why}", flush=True)
        with self.lock(wait=True):
            yield True

    @property
    def exists(self) -> bool:
        """Whether the folder exists and is not empty."""
        try:
            return self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        except OSError as error:
            raise InputError(
                f"Could not use the run folder {self.folder}: {reason(error)}"
            ) from error

    def start_or_check(self, config: Any, data: dict[str, Any]) -> None:
        """Starts the run or, if it exists, checks that it was started with the same data."""
        with self.starting() as folder:
            self.describe(folder, config, data)

    @contextlib.contextmanager
    def starting(self) -> Iterator[Path]:
        """Yields the folder to fill, with `describe` among others.

        The folder of a new run is a temporary one, which is renamed at the end; that of a run which
        exists is its own.
        """
        exists = self.exists
        wait_for_all("the start of the run")  # no process may start it before all have looked
        if exists:
            yield self.folder
            return
        with self._new_folder(self.folder.with_name(f".partial-{self.folder.name}")) as partial:
            yield partial
        wait_for_all("the run folder")

    @contextlib.contextmanager
    def _new_folder(self, partial: Path) -> Iterator[Path]:
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

    def describe(self, folder: Path, config: Any, data: dict[str, Any], *checked: str) -> None:
        """Writes `config.json` and `data.json` into the folder of a new run; checks another."""
        if folder == self.folder:
            self.check_data({name: data[name] for name in checked or data})
        else:
            self._write_description(folder, config, data)

    def _write_description(self, folder: Path, config: Any, data: dict[str, Any]) -> None:
        with self._creating():
            (folder / "config.json").write_text(to_json(config), encoding="utf-8")
            (folder / "data.json").write_text(json.dumps(data, indent=1), encoding="utf-8")

    def lead(self, work: Callable[[], Any]) -> Any:
        """Works while the other processes of the run wait."""
        result = work()
        wait_for_all("the work of process 0")
        return result

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"Could not create the run folder {self.folder}: {reason(error)}"
            ) from error

    def start_study(self, config: Options, data: dict[str, Any]) -> None:
        """Starts a study or, if it exists, checks that it has the same options and data."""
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
        self, kind: type[SomeOptions], expected: dict[str, Any], hint: str = "Choose another folder"
    ) -> SomeOptions:
        """Reads the run's config, and checks that the options that the user typed agree with it."""
        path = self.folder / "config.json"
        try:
            config = from_json(kind, path.read_text(encoding="utf-8"))
        except InputError as error:
            raise InputError(f"{path} is not usable. {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            received = self.folder if isinstance(error, FileNotFoundError) else error
            raise InputError(
                "Expected a folder with the config.json of a run or a study. "
                f"Received: {received}. {hint}"
            ) from error
        for name, value in expected.items():
            if value != getattr(config, name):
                raise InputError(
                    f"Expected the options of the run in {self.folder}, where {name}="
                    f"{getattr(config, name)!r}. Received: {name}={value!r}. Give the same "
                    "value, or choose another folder with --run-dir"
                )
        return config

    def check_data(self, data: dict[str, Any]) -> None:
        """Raises `InputError` unless the run's data description has the entries of `data`."""
        started_with = read_object(self.folder / "data.json", "Start another run")
        if any(started_with.get(name) != value for name, value in data.items()):
            raise InputError(
                f"Expected the data with which the run in {self.folder} was started. "
                "Received: other texts, labels or vocabulary. Start another run"
            )

    @property
    def last_checkpoint(self) -> Path:
        """The state after the last finished epoch, from which the training continues."""
        return self.folder / "checkpoints" / "last.npz"

    @property
    def results(self) -> dict[str, Any] | None:
        """The results of the run; `None` if it is not finished."""
        path = self.folder / "results.json"
        if not path.exists():
            return None
        return read_object(path, "Delete it, then finish the run with --resume")

    def finish(self, results: dict[str, Any]) -> None:
        """Writes the results, which marks the run as finished."""
        write_json(self.folder / "results.json", results)

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
                f"Expected the metrics of each epoch. Received: {path} ({error}). "
                f"{TRAIN_AGAIN_HINT}"
            ) from error

    def write_metrics(self, rows: list[dict[str, float]]) -> None:
        """Writes the metrics, one row per epoch."""
        write_table(self.folder / "metrics.csv", rows)

    def tensorboard(self) -> list[Any]:
        """Returns the callback that writes logs for TensorBoard."""
        import keras

        return [keras.callbacks.TensorBoard(self.folder / "tensorboard")]


class FollowedRun(Run):
    """The run of process 0 in another process, which writes nothing and waits for the start."""

    def lock(self, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)

    def check_new(self) -> None:
        pass  # process 0 may have started it already

    @contextlib.contextmanager
    def _new_folder(self, partial: Path) -> Iterator[Path]:
        yield partial

    def _write_description(self, folder: Path, config: Any, data: dict[str, Any]) -> None:
        pass

    def lead(self, work: Callable[[], Any]) -> Any:
        wait_for_all("the work of process 0")
        return None

    def write_metrics(self, rows: list[dict[str, float]]) -> None:
        pass

    def tensorboard(self) -> list[Any]:
        return []


def open_run(folder: str | os.PathLike) -> Run:
    """Returns the run in a folder, which several processes may train; process 0 writes it."""
    return FollowedRun(folder) if process_id() > 0 else Run(folder)
