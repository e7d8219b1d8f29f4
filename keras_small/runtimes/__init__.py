"""Files of Keras models for other runtimes: ONNX, LiteRT, OpenVINO and SavedModels.

`keras_small.export` writes them. `file_costs` measures a file in its runtime, `file_outputs` runs
it, and `file_sizes` counts its bytes.
"""

from keras_small.runtimes.exporting import file_sizes
from keras_small.runtimes.file_costs import FileCosts, file_costs, file_outputs

__all__ = ["FileCosts", "file_costs", "file_outputs", "file_sizes"]
