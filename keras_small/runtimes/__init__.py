"""Files of Keras models for other runtimes: ONNX, LiteRT, OpenVINO and SavedModels."""

from keras_small.runtimes.file_costs import FileCosts, file_costs, file_outputs
from keras_small.runtimes.files import (
    export_file,
    export_litert,
    export_onnx,
    export_openvino,
    export_saved_model,
    file_sizes,
)

__all__ = [
    "FileCosts",
    "export_file",
    "export_litert",
    "export_onnx",
    "export_openvino",
    "export_saved_model",
    "file_costs",
    "file_outputs",
    "file_sizes",
]
