"""SavedModels, computed by TensorFlow. Only this module imports it, and only once it is needed."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_tnattn_runtime import saved_model
from keras_tnattn_serving.errors import RequestError


class SavedModel:
    """A SavedModel in memory.

    Raises:
        ImportError: If it needs TensorFlow Text, which is not installed.
        ValueError: If it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._model = saved_model.load(path)
        self.metadata = saved_model.read_metadata(path)

    def __call__(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes a signature on one batch.

        Raises:
            RequestError: With 400 for values that an operation refuses, 503 without memory.
        """
        function = self._model.signatures[name]
        specs = function.structured_input_signature[1]
        try:
            inputs = {key: tf.cast(array, specs[key].dtype) for key, array in arrays.items()}
            return {key: output.numpy() for key, output in function(**inputs).items()}
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise RequestError(_reason(error)) from error
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(_reason(error)) from error


def _reason(error: tf.errors.OpError) -> str:
    """Returns the message of a failed operation without its place in the graph."""
    return error.message.rpartition("<stack traces unavailable>\n")[2].partition("\n\t [[")[0][:300]
