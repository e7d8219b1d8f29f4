"""What a SavedModel says of itself, read with TensorFlow's messages; and one that is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tnattn_runtime import reader
from keras_tnattn_runtime.layout import SIGNATURES


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns the signatures of the SavedModel in a folder, as TensorFlow Serving shows them.

    The model is not loaded.
    """
    from google.protobuf import json_format
    from tensorflow.core.protobuf import saved_model_pb2

    proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    return {
        name: json_format.MessageToDict(
            signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, signature in sorted(proto.meta_graphs[0].signature_def.items())
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


def endpoint(path: Path) -> Callable[[Any], Any]:
    """Returns the function `serve` of a SavedModel that Keras wrote, from and to arrays."""
    import tensorflow as tf

    model = _load(path)  # its signatures alone do not keep the weights alive

    def run(inputs: Any) -> Any:
        outputs = model.serve(tf.nest.map_structure(tf.constant, inputs))
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)

    return run


def _load(path: Path) -> Any:
    import tensorflow as tf

    try:
        return tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises errors of any class
        if "Op type not registered" not in str(error):
            raise
    import tensorflow_text  # noqa: F401  registers its operations

    return tf.saved_model.load(str(path))
