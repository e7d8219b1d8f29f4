"""The programs `evaluate` and `explain`: what they do is up to the command that trained the run."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_tnattn_train.commands import Command
from keras_tnattn_train.options.apps import HELP_ALL, Program
from keras_tnattn_train.options.errors import InputError, exit_status
from keras_tnattn_train.options.options import Options, argument
from keras_tnattn_train.runs.packaged import packaged_models
from keras_tnattn_train.tasks import command_of, task_commands


class RunOptions(Options):
    """The argument that these programs share."""

    run: str = argument("the folder of a run; with --help after it, its options are listed")


def evaluate(arguments: Sequence[str] | None = None) -> int:
    """Measures a finished run; by default with `sys.argv[1:]`; returns its `exit_status`."""
    return _run("evaluate", lambda command: command.evaluating, arguments)


def explain(arguments: Sequence[str] | None = None) -> int:
    """Shows what the attention of a finished run computes; arguments and status as `evaluate`."""
    return _run("explain", lambda command: command.explaining, arguments)


def _run(
    name: str, hook: Callable[[Command], Program | None], arguments: Sequence[str] | None
) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    run = next((Path(word) for word in words if Path(word, "config.json").is_file()), None)
    programs = {c.name: p for c in task_commands() if (p := hook(c)) is not None}
    if run is None and HELP_ALL in words:
        for command_name, each in programs.items():
            print(f"Of a run of {command_name}:\n")
            each([HELP_ALL])
        return 0
    if run is None:
        if words and "--help" not in words:
            # The first word is the run, unless it is an option; others may be a text.
            words = ["--", " ".join(words) if words[0].startswith("-") else words[0]]
        return _without_run(name, programs)(words)
    chosen: list[Program] = []

    def choose() -> None:
        command = command_of(run)
        if command is None or command.name not in programs:
            received = f"a run of {command.name}" if command else "another folder"
            raise InputError(
                f"Expected a run of {' or '.join(programs)} for {name}. Received: {run}, "
                f"{received}. The scores of other runs are in their results.json"
            )
        chosen.append(programs[command.name])

    return exit_status(choose) or chosen[0](words)


def _without_run(name: str, programs: dict[str, Program]) -> Program:
    """Returns the program that lists what can be done, and asks for a run."""
    texts = "\n\n".join(f"Of {command}: {each.text}" for command, each in programs.items())
    examples = "".join(each.examples.removeprefix("examples:\n") for each in programs.values())
    words = f"keras-tnattn {name}"
    text = (
        f"The options depend on the run: see {words} RUN --help or {words} {HELP_ALL}.\n\n{texts}"
    )
    refuse = functools.partial(_refuse, name, " or ".join(programs))
    return Program(name, text, f"examples:\n{examples}", RunOptions, refuse)


def _refuse(name: str, names: str, options: RunOptions) -> None:
    if Path(options.run).exists():
        problem = "which has no config.json"
    elif options.run in packaged_models():
        problem = f"a model that comes with the package, without a run to {name}"
    else:
        problem = "which does not exist"
    raise InputError(f"Expected the folder of a run of {names}. Received: {options.run}, {problem}")
