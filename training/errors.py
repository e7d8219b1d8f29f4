"""What goes wrong by the user's input, told in a line."""

import sys
from collections.abc import Callable


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was expected instead."""


def exit_status(command: Callable[[], None]) -> int:
    """Runs a command for the command line.

    Returns:
        0, or 2 after an `InputError`, told in one line on stderr, or 130 if interrupted.
    """
    try:
        command()
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        return 130
    return 0
