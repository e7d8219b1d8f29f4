"""Errors caused by the user's input, reported in one line."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class InputError(Exception):
    """The user's input is invalid; the message says what was expected and what was received.

    Whatever reads options, files or data may raise it. It does not derive from `ValueError`, which
    pydantic would replace by an error of its own.
    """


def first_line(error: Exception) -> str:
    """Returns the first line of an error message."""
    return str(error).strip().partition("\n")[0]


def exit_status(command: Callable[[], object]) -> int:
    """Runs a command and returns its exit status.

    Returns:
        0; 2 for invalid input, which is reported in one line on stderr; 130 if interrupted; 141 if
        the reader of the output closed it, as `| head` does.
    """
    with _interrupts() as interrupts:
        try:
            command()
            sys.stdout.flush()
        except InputError as error:
            text = " ".join(str(error).split())
            print(f"error: {text}", file=sys.stderr)
            return 2
        except BrokenPipeError:
            # At its exit Python would try to write the rest of the buffer, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (Exception, KeyboardInterrupt) as error:
            # An interrupt within a call from C++, as in tracing, arrives as another error.
            if not interrupts and not isinstance(error, KeyboardInterrupt):
                raise
            print(
                "interrupted; finished files are kept. To continue a run, repeat the command with "
                "--resume; repeat any other command as it was",
                file=sys.stderr,
            )
            return 130
    return 0


@contextmanager
def input_errors(
    kinds: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> Iterator[None]:
    """Reports an error of these kinds as an `InputError` with the same message."""
    try:
        yield
    except kinds as error:
        raise InputError(str(error)) from error


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Gives a list to which each Ctrl-C adds its signal before it raises `KeyboardInterrupt`."""
    interrupts: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before is not signal.default_int_handler:
        yield interrupts
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
