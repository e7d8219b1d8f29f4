"""Starting Keras and its backend without the messages that TensorFlow prints."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# TensorFlow logs these to stderr before its own log level has any effect: information, that there
# is no GPU, and that log messages come too early.
NOISE = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl|To enable the following instructions"
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IW] |.*cuInit|.*Unable to register cu|.*Could not find cuda"
)


def start_backend() -> None:
    """Imports Keras and its backend, and hides TensorFlow's start-up and retracing messages.

    This takes seconds: commands check their input before. Errors of the start-up are shown.
    """
    # TensorFlow raises its errors; what it logs as errors is about missing hardware.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _without_noise():
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for GPUs
            tf.get_logger().setLevel("ERROR")  # retracing is a warning


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Holds back what is written to the file descriptor of stderr; shows it but for the noise."""
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
