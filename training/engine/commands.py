"""What a command of `training/train.py` is, and how one that trains a run starts it."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from training.engine.runs import Run
from training.options import EXPORTING, RUN, Options, RunConfig, option


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Args:
        name: What the user types.
        summary: What the list of commands says about it.
        description: What its own `--help` says about it.
        options: Its options by name, fields of `Options` classes.
        start: Runs it, given the options that the user typed.
        examples: Command lines, shown at the end of `--help`.
    """

    name: str
    summary: str
    description: str
    options: Mapping[str, FieldInfo]
    start: Callable[[dict[str, Any]], None]
    examples: str


class RunOptions(Options):
    """The options that say which run a command trains; they are no part of the run's config."""

    run_dir: str | None = option(None, RUN, "the run's folder (default: runs/NAME)", metavar="DIR")
    resume: bool = option(
        False,
        RUN,
        "continue the run in that folder with the options in its config.json; the export options "
        "may be given again, for a finished run too",
    )


def training_command(
    name: str,
    config: type[RunConfig],
    train: Callable[[Any, Run], None],
    summary: str,
    description: str,
    examples: str,
) -> Command:
    """Returns a command that trains one run.

    Args:
        name: What the user types.
        config: The class of its options, which make up the run's `config.json`.
        train: Trains, or continues, a run with such a config, and prints what was measured.
        summary: What the list of commands says about it.
        description: What its own `--help` says about it.
        examples: Command lines, shown at the end of `--help`.
    """

    def start(given: dict[str, Any]) -> None:
        typed = {name: given.pop(name) for name in RunOptions.model_fields if name in given}
        chosen = run_to_train(config, given, RunOptions(**typed))
        if chosen is None:
            return
        options, run = chosen
        train(options, run)
        print(f"run folder: {run.folder}")
        results = run.results or {}
        if "exported" in results:
            print(f"exported to {results['exported']}")

    fields = {**RunOptions.model_fields, **config.model_fields}
    return Command(name, summary, description, fields, start, examples)


def run_to_train(
    kind: type[RunConfig], given: dict[str, Any], which: RunOptions
) -> tuple[Any, Run] | None:
    """Returns the config and the folder of a new run, or of one to continue.

    Args:
        kind: The class of the config.
        given: The options of it that the user typed.
        which: The folder, and whether to continue the run in it.

    Returns:
        `None`, and says so, if the run is finished and no other export is asked for.
    """
    if not which.resume:
        config = kind(**given)
        run = Run(which.run_dir or Path("runs", config.name))
        run.check_new()
        return config, run
    # Continued, a run has the options of its start: those given need not fit together.
    run = Run(which.run_dir or Path("runs", given.get("name") or kind(**given).name))
    exporting = {name: given[name] for name in EXPORTING if name in given}
    others = {name: value for name, value in given.items() if name not in EXPORTING}
    config = run.read_config(kind, others).changed(**exporting)
    if run.results:
        note = run.export_note or {}
        # To export again, a finished run is finished once more; nothing is left to train.
        if not (exporting and config.export and note.get("options") != config.export_options):
            print(f"The run in {run.folder} is finished; there is nothing to do.")
            return None
    return config, run
