"""Starts Keras and its backend without TensorFlow's messages."""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from keras_tnattn_train.system.memory import keep_freed_memory

# What TensorFlow logs to stderr before its log level takes effect: information, missing GPUs, and
# a warning about early log messages; LiteRT has no level.
NOISE = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|To enable the following instructions"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IW] |.*cuInit|.*Unable to register cu|.*Could not find cuda"
    rb"|INFO: Created TensorFlow Lite"
)
# What Keras imports for wrappers and pictures that no command uses takes two seconds.
_SPARED = ("IPython", "matplotlib", "sklearn")


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Captures what is written to the file descriptor of stderr, and shows all but the noise."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not NOISE.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def _without_modules(*names: str) -> Iterator[None]:
    """Makes imports of packages fail, if they are not imported yet, as if they were missing."""
    hidden: dict[str, Any] = {name: None for name in names if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def start_backend(keep_memory: bool = True, compiles: bool = True) -> None:
    """Imports Keras and its backend, and hides TensorFlow's start-up and retracing messages.

    This takes seconds, so commands check their input first. Errors during the start are shown.

    Args:
        keep_memory: Whether the process keeps the memory that it frees.
        compiles: Whether there is enough to compute that compiling pays. If not, Keras computes
            with NumPy in place of JAX, or if no backend is chosen and JAX is installed, which
            Keras' NumPy backend imports.
    """
    has_jax = "keras" not in sys.modules and importlib.util.find_spec("jax") is not None
    if not compiles and has_jax and os.environ.get("KERAS_BACKEND", "jax") == "jax":
        os.environ["KERAS_BACKEND"] = "numpy"
    if keep_memory:
        keep_freed_memory()
    # TensorFlow raises real errors; those that it only logs are about missing hardware.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with without_noise():
        # TensorFlow imports JAX where it is installed, for a converter that no command uses.
        jax = ("jax",) if os.environ.get("KERAS_BACKEND") == "tensorflow" else ()
        with _without_modules(*_SPARED, *jax):
            import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for GPUs
            tf.get_logger().setLevel("ERROR")  # retracing is a warning
