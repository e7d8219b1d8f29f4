"""Starts several processes on this machine that train one run together.

    keras-tnattn launch -n 2 -- translate --name mine

Each process is told its number by Keras' environment variables. The output of process 0 is shown;
that of another process only if it fails. If one fails, the others are ended.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Annotated

import cyclopts

from keras_tnattn_train.options.apps import new_app, run
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.devices import COORDINATOR, NUM_PROCESSES, PROCESS_ID

GRACE = 8  # seconds a process has to end by itself, and then again to end when asked to
INVALID_INPUT = 2  # the status of a command, see `keras_tnattn_train.options.errors.exit_status`
MAX_OUTPUT = 4000  # characters of a failed process's output
EXAMPLES = """\
examples:
  two processes, each of which computes half of every batch (on JAX):
    KERAS_BACKEND=jax keras-tnattn launch -n 2 -- rules --name two
"""


def launch(num_processes: int, command: Sequence[str]) -> None:
    """Runs a command in several processes, and waits for their end.

    Raises:
        InputError: If a process was killed.
        SystemExit: If a process ended with another status than 0.
    """
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        # Asked to end by a supervisor, the launcher ends its processes first.
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        stack.callback(signal.signal, signal.SIGTERM, before)
        outputs: list[IO | None] = [None]
        outputs += [stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, num_processes)]
        processes: list[subprocess.Popen] = []
        stack.callback(_end, processes)
        for number, output in enumerate(outputs):
            environment = {
                **os.environ,
                COORDINATOR: address,
                NUM_PROCESSES: str(num_processes),
                PROCESS_ID: str(number),
            }
            script = [] if command[0].endswith(".py") else ["-m", "keras_tnattn_train"]
            words = [sys.executable, *script, *command]
            processes.append(subprocess.Popen(words, env=environment, stdout=output, stderr=output))
        failed = _first_failed(processes)
        if failed is None:
            return
        status = processes[failed].returncode
        if status < 0:
            _end(processes)
            _show(failed, outputs[failed])
            raise InputError(
                f"Process {failed} was killed by {signal.Signals(-status).name}, and the others "
                "were ended. Continue the run with --resume"
            )
        # Invalid input ends all of them; then process 0 reports it.
        _wait(processes[:1], GRACE)
        if not status == processes[0].poll() == INVALID_INPUT:
            _show(failed, outputs[failed])
        sys.exit(status)


def _show(number: int, output: IO | None) -> None:
    """Prints the end of a process's output, unless it was shown already."""
    if output is not None:
        output.seek(0)
        text = output.read().decode(errors="replace")
        print(f"process {number} failed:\n{text[-MAX_OUTPUT:]}", file=sys.stderr, end="")


def _first_failed(processes: Sequence[subprocess.Popen]) -> int | None:
    """Waits for the end of all, or for the first one that fails, and returns its number."""
    while True:
        statuses = [process.poll() for process in processes]
        failed = [number for number, status in enumerate(statuses) if status]
        if failed:
            # If one was killed, others fail because of it; JAX aborts those that have lost another.
            aborted = -signal.SIGABRT
            return min(failed, key=lambda n: (statuses[n] == aborted, (statuses[n] or 0) > 0))
        if None not in statuses:
            return None
        time.sleep(0.1)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    """Ends the processes that still run."""
    for ask in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for process in processes:
            if process.poll() is None:
                ask(process)
        _wait(processes, GRACE)


def _wait(processes: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and None in [process.poll() for process in processes]:
        time.sleep(0.1)


def free_port() -> int:
    """Returns the number of a port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _start(
    *command: Annotated[
        str,
        cyclopts.Parameter(
            help="a command that trains, such as translate, or a Python script; with its arguments"
        ),
    ],
    num_processes: Annotated[
        int, cyclopts.Parameter(name=("--num-processes", "-n"), help="how many to start")
    ] = 2,
) -> Callable[[], None]:
    if not command:
        raise InputError("Expected a command or a Python script after --. Received: none")
    if num_processes < 1:
        raise InputError(f"Expected num_processes >= 1. Received: num_processes={num_processes}")
    return functools.partial(launch, num_processes, command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program, by default with `sys.argv[1:]`; returns its `exit_status`."""
    app = new_app("keras-tnattn launch", "Starts processes that train one run together.", EXAMPLES)
    app.default(_start)
    return run(app, arguments)
