"""Files of Keras models for other runtimes: ONNX, LiteRT, OpenVINO and SavedModels.

`keras_small.export` writes them. `file_costs` measures a file in its runtime, and `file_outputs`
runs it.
"""

from keras_small.runtimes.file_costs import file_costs, file_outputs

__all__ = ["file_costs", "file_outputs"]
