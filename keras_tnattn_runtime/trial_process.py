"""Starts the process of `trials.py`, and asks it: a runtime that crashes ends no other process.

The process starts with the first trial and serves all later ones, since a start takes a second.
"""

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import keras_tnattn_runtime

_COMMAND = (sys.executable, "-m", "keras_tnattn_runtime.trials")
_LAST_BYTES = 2000  # of the output of a process before its end


class TrialProcess:
    """A process that answers one request at a time, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen | None = None
        self._printed: IO[bytes] | None = None

    def ask(self, function: str, *arguments: Any) -> Any:
        """Returns the result of a function of `keras_tnattn_runtime.trials`.

        Raises:
            RuntimeError: If the function raises an error, or its process ends.
        """
        with self._lock:
            process = self._running()
            try:
                pickle.dump((function, arguments), process.stdin)
                process.stdin.flush()
                is_answer, answer = pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                raise RuntimeError(self.end()) from error
            except BaseException:  # an interrupted exchange would mix up the answers
                self.end()
                raise
        if not is_answer:
            raise RuntimeError(answer)
        return answer

    def _running(self) -> Any:
        # A forked process must not share the pipes of the one that it comes from.
        if self._owner == os.getpid() and self._process and self._process.poll() is None:
            return self._process
        root = str(Path(keras_tnattn_runtime.__file__).parents[1])
        paths = [root, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # this process has most of the memory
        }
        self._owner = os.getpid()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=environment,
        )
        return self._process

    def end(self) -> str:
        """Ends the process, if it was started by this one, and says how it ended."""
        process = self._process
        printed = self._printed
        self._process = self._printed = None
        if process is None or printed is None or self._owner != os.getpid():
            return "the runtime's process could not be started"
        for pipe in filter(None, (process.stdin, process.stdout)):
            with contextlib.suppress(OSError):  # of what was never read
                pipe.close()
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with printed:
            size = printed.seek(0, os.SEEK_END)
            printed.seek(max(0, size - _LAST_BYTES))
            lines = printed.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"the runtime crashed while it ran the new file ({_name_of(code)}){last}"


def _name_of(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit status {code}"


trial_process = TrialProcess()
atexit.register(trial_process.end)
