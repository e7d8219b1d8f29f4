"""Commands that train or run a study, and how a command starts or resumes a run."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cyclopts
from pydantic.fields import FieldInfo

from keras_tnattn_train.options.apps import HELP_ALL, Program, epilogue, function_of, new_app, run
from keras_tnattn_train.options.errors import InputError, exit_status
from keras_tnattn_train.options.options import (
    EXPORTING,
    RUN,
    DeviceOptions,
    ExportConfig,
    Options,
    RunConfig,
    option,
)
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.processes.devices import Layouts, check_one_process, join, use_devices
from keras_tnattn_train.runs.finishing import export_note
from keras_tnattn_train.runs.run import Run, open_run
from keras_tnattn_train.runs.trained import PredictingRun, TrainedRun


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Args:
        name: What the user types.
        summary: Its line in the list of commands.
        description: The text in its own `--help`.
        options: Its options by name, fields of `Options` classes.
        start: Runs the command with the options that the user typed. Call `run` instead.
        examples: Command lines, shown at the end of `--help`.
        loading: Loads the finished run in a folder, for `predict` and `compress`. Default: the
            models of the command do not read texts.
        searches: Whether its predictions are those of a search with beams.
        several_processes: Whether several processes may run it together.
        predicting: Loads a finished run to predict only: for names instead of texts, or without
            what else `loading` imports. Default: as `loading`.
        columns: Usual names of the column of a table with what it predicts for. Default: those of
            texts.
        evaluating: What `evaluate` does with its runs. Default: refuses them.
        explaining: What `explain` does with its runs. Default: refuses them.
        first: The options that `--help` shows; `--help-all` shows the others, too. Default: all.
        runs_on_numpy: Whether its models run on Keras' NumPy backend, which answers a few texts
            before another one has started.
    """

    name: str
    summary: str
    description: str
    options: Mapping[str, FieldInfo]
    start: Callable[[dict[str, Any]], None]
    examples: str
    loading: Callable[[Path], TrainedRun] | None = None
    searches: bool = False
    several_processes: bool = False
    predicting: Callable[[Path], PredictingRun] | None = None
    columns: tuple[str, ...] = ()
    evaluating: Program | None = None
    explaining: Program | None = None
    first: tuple[str, ...] = ()
    runs_on_numpy: bool = False

    def run(self, values: dict[str, Any]) -> None:
        """Runs the command with the options that the user typed."""
        if not self.several_processes:
            check_one_process(self.name)
        self.start(values)

    def load_to_predict(self, folder: Path, few: bool) -> PredictingRun:
        """Starts the backend, and loads a finished run to predict, perhaps only for a `few`."""
        if self.predicting is None:
            return self.load(folder, few)
        start_backend(compiles=not (few and self.runs_on_numpy))
        return self.predicting(folder)

    def load(self, folder: Path, few: bool = False) -> TrainedRun:
        """Starts the backend, and loads a finished run of this command."""
        if self.loading is None:
            raise InputError(
                f"Expected a run of a command that reads texts. Received: {folder}, of {self.name}"
            )
        start_backend(compiles=not (few and self.runs_on_numpy))
        return self.loading(folder)


def loader(module: str, name: str) -> Callable[[Path], Any]:
    """Returns a function that loads a finished run by a class; its module is imported only then."""
    return lambda folder: getattr(importlib.import_module(module), name)(folder)


def app_of(
    words: str,
    text: str,
    commands: Sequence[Command],
    others: Mapping[str, str] | None = None,
    shows_all: bool = False,
) -> cyclopts.App:
    """Returns a program with commands, which the user calls with `words` and their names."""
    app = new_app(words, text)
    for command in commands:
        first = () if shows_all else command.first
        app.command(
            function_of(command.options, command.run, first),
            name=command.name,
            help=f"{command.summary}.\n\n{command.description}",
            help_epilogue=epilogue(f"{words} {command.name}", command.examples, first),
        )
    for name, summary in (others or {}).items():
        app.command(lambda: None, name=name, help=f"{summary}.")
    return app


def run_commands(
    words: str,
    text: str,
    commands: Sequence[Command],
    arguments: Sequence[str] | None,
    others: Mapping[str, str] | None = None,
) -> int:
    """Runs a program with commands."""
    shows_all = HELP_ALL in (sys.argv[1:] if arguments is None else arguments)
    return run(app_of(words, text, commands, others, shows_all), arguments)


def run_demo(demo: Callable[[], None]) -> int:
    """Starts the backend and runs a demo; returns its `exit_status`."""

    def start() -> None:
        start_backend()
        demo()

    return exit_status(start)


class RunOptions(Options):
    """The options that choose the run; they are not part of its config."""

    run_dir: str | None = option(None, RUN, "the run's folder (default: runs/NAME)", metavar="DIR")
    resume: bool = option(
        False,
        RUN,
        "continue the run in this folder with the options in its config.json; only options of an "
        "export may change, also for a finished run",
        brief="continue the run of this --name, or --run-dir",
    )


def training_command(
    config: type[RunConfig],
    train: Callable[..., None],
    summary: str,
    description: str,
    several_devices: bool = True,
    layouts: Callable[[Any, int], Layouts] | None = None,
    others: type[Options] | None = None,
    **facts: Any,
) -> Command:
    """Returns a command that trains one run.

    `train` takes a `config`, whose `command` is what the user types, a `Run` and, if there are such
    options, `others`, which do not affect what is trained and are no part of the config. `layouts`
    returns the weights that the devices of `--model-parallel` split, of a config and their number.
    `facts` are further arguments of `Command`, `examples` among them.
    """

    def start(values: dict[str, Any]) -> None:
        which = RunOptions(**pop_options(values, RunOptions))
        devices = DeviceOptions(**pop_options(values, DeviceOptions))
        more = () if others is None else (others(**pop_options(values, others)),)
        join(devices)
        start_of_run = run_to_train(config, values, which)
        if start_of_run is None:
            return
        options, run = start_of_run
        with run.lock() as free:
            if not free:
                raise InputError(
                    f"Expected a run that no other process is training. Received: {run.folder}. "
                    "Wait until that process ends, or choose another --run-dir or --name"
                )
            if run_to_train(config, values, which) is None:  # another process has finished it
                return
            if several_devices:
                use_devices(devices, options.batch_size, layouts and partial(layouts, options))
            train(options, run, *more)
        print(f"run folder: {run.folder}")
        if exported := (run.results or {}).get("exported"):
            print(f"exported to {exported}")

    fields = {**RunOptions.model_fields, **config.model_fields}
    fields |= {} if others is None else others.model_fields
    fields |= DeviceOptions.model_fields if several_devices else {}
    if layouts is None:
        fields.pop("model_parallel", None)
    return Command(
        name=str(config.command),
        summary=summary,
        description=description,
        options=fields,
        start=start,
        several_processes=several_devices,
        **facts,
    )


def pop_options(values: dict[str, Any], kind: type[Options]) -> dict[str, Any]:
    """Removes the options of a class from `values`, and returns them."""
    return {name: values.pop(name) for name in kind.model_fields if name in values}


def run_to_train(
    kind: type[RunConfig], values: dict[str, Any], which: RunOptions
) -> tuple[Any, Run] | None:
    """Returns the config and the run to start or to continue.

    `None`, with a message, if the run is finished and no new export is requested.
    """
    if not which.resume:
        config = kind(**values)
        run = open_run(which.run_dir or Path("runs", config.name))
        run.check_new()
        return config, run
    # A resumed run keeps its options, so those that the user typed need not be complete.
    run = open_run(which.run_dir or Path("runs", values.get("name") or kind(**values).name))
    exporting = {name: values[name] for name in EXPORTING if name in values}
    named = {name: values[name] for name in ("name",) if name in values}
    others = {name: value for name, value in values.items() if name not in {*EXPORTING, "name"}}
    hint = "Leave out --resume to start a new run, or name the folder of the run with --run-dir"
    # A folder that was renamed is found by its new name.
    config = run.read_config(kind, others, hint).replace(**exporting, **named)
    # To export a finished run, finish it once more; nothing is left to train.
    if run.results and not (exporting and _lacks_export(config, run)):
        print(f"The run in {run.folder} is finished; there is nothing to do.")
        return None
    return config, run


def _lacks_export(config: RunConfig, run: Run) -> bool:
    """Returns whether the options ask for an export that a finished run does not have."""
    if not isinstance(config, ExportConfig) or not config.export:
        return False
    exported = (run.results or {}).get("exported")
    other_options = export_note(run).get("options") != config.export_options
    return not exported or not Path(exported).is_dir() or other_options
