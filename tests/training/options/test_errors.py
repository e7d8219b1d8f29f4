"""How commands end."""

import os
import signal
import subprocess
import sys
import time

import pytest
from import_path import IMPORT_PATH

from keras_tnattn_train.options.errors import InputError, exit_status


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("Expected\n  one line"), 2, "error: Expected one line\n"),
        (
            KeyboardInterrupt(),
            130,
            "interrupted; finished files are kept. To continue a run, repeat the command with "
            "--resume; repeat any other command as it was\n",
        ),
    ],
)
def test_expected_errors_are_told_in_a_line(error, status, message, capsys):
    def command():
        raise error

    assert exit_status(command) == status
    assert capsys.readouterr() == ("", message)


def test_success_and_unexpected_errors(capsys):
    assert exit_status(lambda: None) == 0
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 / 0)
    assert capsys.readouterr() == ("", "")


def test_an_output_that_nobody_reads_ends_a_command_quietly():
    code = "import sys; from keras_tnattn_train.options.errors import exit_status; "
    code += "sys.exit(exit_status(lambda: print('a line')))"
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    environment.pop("PYTHONUNBUFFERED", None)  # the line is written at the end
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, env=environment
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_that_arrives_as_another_error_is_one(capsys):
    """As TensorFlow reports an interrupt while it traces."""

    def command():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise TypeError("in user code") from None

    before = signal.getsignal(signal.SIGINT)
    assert exit_status(command) == 130
    assert capsys.readouterr().err.startswith("interrupted; ")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError):  # the next one is an error again
        exit_status(lambda: 1 / 0)


def test_an_interrupt_that_the_caller_ignores_stays_ignored():
    """As in a process that a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert exit_status(lambda: os.kill(os.getpid(), signal.SIGINT)) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
