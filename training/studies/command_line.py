"""The command line of `training/reproduce.py`, built from the studies."""

from collections.abc import Sequence

from training.engine.commands import Command, run_commands
from training.studies.digits import COMMAND as DIGITS
from training.studies.long_texts import COMMAND as LONG_TEXTS
from training.studies.paper_translators import COMMAND as PAPER_TRANSLATORS
from training.studies.rules import COMMAND as RULES
from training.studies.tensorized import COMMAND as TENSORIZED
from training.studies.translators import COMMAND as TRANSLATORS
from training.studies.whole_texts import COMMAND as WHOLE_TEXTS

STUDIES: tuple[Command, ...] = (
    TENSORIZED,
    LONG_TEXTS,
    WHOLE_TEXTS,
    TRANSLATORS,
    PAPER_TRANSLATORS,
    RULES,
    DIGITS,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a study.

    Args:
        arguments: The arguments of the command line. Default: `sys.argv[1:]`.

    Returns:
        The exit status, as `training.base.errors.exit_status` returns it.
    """
    text = (
        "Runs a study: trains many models, and writes tables and pictures; a study that was "
        "interrupted continues."
    )
    return run_commands("python training/reproduce.py", text, STUDIES, arguments)
