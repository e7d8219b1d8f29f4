"""Starts Keras and its backend without TensorFlow's messages."""

import os

from keras_tnattn_train.system.memory import keep_freed_memory
from keras_tnattn_train.system.noise import without_noise


def start_backend(keep_memory: bool = True) -> None:
    """Imports Keras and its backend, and hides TensorFlow's start-up and retracing messages.

    This takes seconds, so commands check their input first. Errors during the start are shown.

    Args:
        keep_memory: Whether the process keeps freed memory from then on, as far as it can, which
            makes trainings on a CPU faster.
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
