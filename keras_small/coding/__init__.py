"""Files of models whose numbers take as few bytes as their frequencies allow.

`encode_model` makes the content of a `.tnz` file, which `keras_small.load` loads. Both need the
extra `coded`.
"""

from keras_small.coding.arrays import coded_bytes
from keras_small.coding.files import check_model, encode_model

__all__ = ["check_model", "coded_bytes", "encode_model"]
