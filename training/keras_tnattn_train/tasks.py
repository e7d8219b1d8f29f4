"""The commands that train, and which of them trained a run."""

import importlib
from pathlib import Path

from keras_tnattn_train.commands import Command
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import read_object

# Each module has a `COMMAND`.
TASKS = {
    "classify": "keras_tnattn_train.classify.command",
    "rules": "keras_tnattn_train.rules.command",
    "nodes": "keras_tnattn_train.nodes.command",
    "translate": "keras_tnattn_train.translate.command",
    "language": "keras_tnattn_train.language.command",
}


def task_commands() -> list[Command]:
    """Returns the command of each entry of `TASKS`."""
    return [_command(name) for name in TASKS]


def command_of(folder: Path) -> Command | None:
    """Returns the command that trained a run; `None` if it is none of `TASKS`."""
    name = read_object(folder / "config.json", "Choose the folder of a run").get("command")
    return _command(name) if name in TASKS else None


def command_of_texts(folder: Path) -> Command:
    """As `command_of`, for a run whose model reads texts."""
    command = command_of(folder)
    if command is None or command.loading is None:
        names = [command.name for command in task_commands() if command.loading is not None]
        raise InputError(
            f"Expected a run of {' or '.join(names)}, which read text. Received: {folder}, another "
            "run"
        )
    return command


def _command(name: str) -> Command:
    return importlib.import_module(TASKS[name]).COMMAND
