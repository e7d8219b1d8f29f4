"""Regenerates the published tables: `python training/reproduce.py STUDY ...`."""

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    # Run as a script: put the project's folder first on the import path instead of training/.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from training.base.command_line import run
from training.engine.commands import Command, app_of
from training.studies.digits import COMMAND as DIGITS
from training.studies.long_texts import COMMAND as LONG_TEXTS
from training.studies.rules import COMMAND as RULES
from training.studies.tensorized import COMMAND as TENSORIZED
from training.studies.whole_texts import COMMAND as WHOLE_TEXTS

STUDIES: tuple[Command, ...] = (TENSORIZED, LONG_TEXTS, WHOLE_TEXTS, RULES, DIGITS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a study.

    Args:
        arguments: The arguments of the command line. Default: `sys.argv[1:]`.

    Returns:
        The exit status, as `training.base.errors.exit_status` returns it.
    """
    text = "Regenerates the published tables; a study that was interrupted continues."
    return run(app_of("python training/reproduce.py", text, STUDIES), arguments)


if __name__ == "__main__":
    sys.exit(main())
