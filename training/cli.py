"""The command line of `training/train.py`, built from the commands of the tasks."""

from collections.abc import Sequence

from training.classify.command import COMMAND as CLASSIFY
from training.classify.compare import COMMAND as COMPARE
from training.engine.commands import run_commands
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
    text = "Trains models of keras_tnattn."
    return run_commands("python training/train.py", text, COMMANDS, arguments)
