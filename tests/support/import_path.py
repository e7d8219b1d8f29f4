"""The `PYTHONPATH` with which a process imports this checkout, and such a process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_PATH = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "training"))


def run_python(*arguments, status=0, backend=None, **options):
    """Runs Python, which has to end with a status, or with any if it is `None`."""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    options = {"env": environment, "capture_output": True, "text": True, **options}
    done = subprocess.run([sys.executable, *map(str, arguments)], **options)
    assert status in (None, done.returncode), done.stderr
    return done
