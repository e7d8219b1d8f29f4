"""What a SavedModel says of itself, read with TensorFlow's messages; and one that is loaded."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tnattn_runtime import reader
from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.layout import SIGNATURES


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns the signatures of the SavedModel in a folder, as TensorFlow Serving shows them.

    The model is not loaded.

    Raises:
        ValueError: If `saved_model.pb` is damaged.
    """
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    try:
        graph = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs[0]
    except (DecodeError, IndexError) as error:
        raise ValueError(
            f"Could not read {file}, which is damaged. Export the model again"
        ) from error
    return {
        name: json_format.MessageToDict(
            signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, signature in sorted(graph.signature_def.items())
        if not name.startswith("__")
    }


def read_description(path: Path) -> dict[str, Any] | None:
    """Returns what a version's own file says of it, once the files that it lists are checked.

    Args:
        path: The folder of the version.

    Returns:
        A dict of `signatures` and `files`, or `None` if the version has no such file, as those that
        others wrote.

    Raises:
        ValueError: If the file or one that it lists is damaged, or it is of an earlier version.
    """
    try:
        content = reader.read_sealed(path / SIGNATURES)
        files = {path / name: dict(file) for name, file in content["files"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Could not load {path}: {path / SIGNATURES} is damaged or of an earlier version. "
            "Export the model again"
        ) from error
    for file, description in files.items():
        try:
            reader.check_file(file, description)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Could not load {path}, which may be damaged: {error}. Export the model again"
            ) from error
    return content


def load(path: Path) -> Any:
    """Loads a SavedModel, with the operations of TensorFlow Text if its graph has them.

    Keep the whole model: its signatures alone do not keep the weights alive.

    Raises:
        ImportError: If it needs TensorFlow Text, which is not installed.
        ValueError: If it cannot be loaded.
    """
    import tensorflow as tf

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
    return load(path)


def _unloadable(path: Path, error: Exception) -> ValueError:
    import tensorflow as tf

    reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return ValueError(
        f"Could not load {path}, which may be damaged, or of a version of Keras or TensorFlow that "
        f"{tf.__version__} cannot read: {reason}. Export the model again"
    )


def endpoint(path: Path) -> Callable[[Any], Any]:
    """Returns the function `serve` of a SavedModel that Keras wrote, from and to arrays."""
    import tensorflow as tf

    model = load(path)

    def run(inputs: Any) -> Any:
        outputs = model.serve(tf.nest.map_structure(tf.constant, inputs))
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)

    return run
