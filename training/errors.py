"""Errors caused by the user's input, reported in one line."""

import os
import sys
from collections.abc import Callable


class InputError(Exception):
    """The user's input is invalid; the message says what was expected and what was received.

    It does not derive from `ValueError`, which pydantic would replace by an error of its own.
    """


def exit_status(command: Callable[[], object]) -> int:
    """Runs a command and returns its exit status.

        Returns:
    <<<<<<< HEAD
            0; 2 for invalid input, which is reported in one line on stderr; 130 if interrupted.
    =======
            0; 2 for invalid input, reported in one line on stderr; 130 if interrupted; 141 if who read
            the output closed it, as `| head` does.
    >>>>>>> 163e502 (Declare the options of predict.py, evaluate.py and explain.py as those of the tasks)
    """
    try:
        command()
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; everything finished so far is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # What is left in the buffer cannot be written when Python exits, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0
