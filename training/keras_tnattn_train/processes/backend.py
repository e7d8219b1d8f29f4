"""Starts Keras and its backend without TensorFlow's messages."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from keras_tnattn_train.system.memory import keep_freed_memory

# What TensorFlow logs to stderr before its log level takes effect: information, missing GPUs, and
# a warning about early log messages; LiteRT has no level.
NOISE = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|To enable the following instructions"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IW] |.*cuInit|.*Unable to register cu|.*Could not find cuda"
    rb"|INFO: Created TensorFlow Lite"
)


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


def start_backend(keep_memory: bool = True) -> None:
    """Imports Keras and its backend, and hides TensorFlow's start-up and retracing messages.

    This takes seconds, so commands check their input first. Errors during the start are shown.
    """
    if keep_memory:
        keep_freed_memory()
    # TensorFlow raises real errors; those that it only logs are about missing hardware.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with without_noise():
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for GPUs
            tf.get_logger().setLevel("ERROR")  # retracing is a warning
