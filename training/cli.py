"""The command line of `training/train.py`, built from the commands of the tasks."""

from collections.abc import Sequence

import cyclopts

from training.base.command_line import run
from training.classify.command import COMMAND as CLASSIFY
from training.classify.compare import COMMAND as COMPARE
from training.engine.commands import app_of
from training.images.command import COMMAND as IMAGES
from training.nodes.command import COMMAND as NODES
from training.nodes.compare import COMMAND as COMPARE_NODES
from training.rules.command import COMMAND as RULES
from training.translate.command import COMMAND as TRANSLATE

COMMANDS = (CLASSIFY, COMPARE, RULES, IMAGES, NODES, COMPARE_NODES, TRANSLATE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The arguments of the command line. Default: `sys.argv[1:]`.

    Returns:
        The exit status, as `training.base.errors.exit_status` returns it.
    """
    return run(train_app(), arguments)


def train_app() -> cyclopts.App:
    """Returns the program with all commands."""
    return app_of("python training/train.py", "Trains models of keras_tnattn.", COMMANDS)
