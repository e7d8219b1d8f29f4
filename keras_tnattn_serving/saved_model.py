"""SavedModels, computed by TensorFlow. Only this module imports it, and only once it is needed."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.saved_model import read_metadata
from keras_tnattn_serving.errors import RequestError


class SavedModel:
    """A SavedModel in memory.

    Raises:
        ImportError: If it needs TensorFlow Text, which is not installed.
        ValueError: If it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        # Keep the whole model: its signatures alone would not keep the weights alive.
        self._model = _load(path)
        self.metadata = read_metadata(path)

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


def _load(path: Path) -> Any:
    try:
        return tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises errors of any class
        if "Op type not registered" not in str(error) or sys.modules.get("tensorflow_text"):
            raise _unloadable(path, error) from error
    # The graph contains operations of TensorFlow Text, which its import registers.
    try:
        import tensorflow_text  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"The graph of {path} needs TensorFlow Text. {installation('tensorflow_text')}"
        ) from error
    return _load(path)


def _unloadable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return ValueError(
        f"Could not load {path}, which may be damaged, or of a version of Keras or TensorFlow that "
        f"{tf.__version__} cannot read: {reason}. Export the model again"
    )
