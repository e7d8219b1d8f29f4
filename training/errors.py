"""Errors caused by the user's input, reported in one line."""

import sys
from collections.abc import Callable


class InputError(Exception):
    """The user's input is invalid; the message says what was expected and what was received.

    Not a `ValueError`: pydantic passes it on as it is.
    """


def exit_status(command: Callable[[], object]) -> int:
    """Runs a command of the command line.

    Returns:
        0, or 2 for invalid input, reported in one line on stderr, or 130 if interrupted.
    """
    try:
        command()
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything finished so far is kept", file=sys.stderr)
        return 130
    return 0
