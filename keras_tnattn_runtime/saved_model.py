"""What a SavedModel says of itself, read with TensorFlow's messages; and one that is run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


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
