"""What a SavedModel says of itself, read with TensorFlow's messages and without loading it."""

from pathlib import Path
from typing import Any


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns the signatures of the SavedModel in a folder, as TensorFlow Serving shows them."""
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
