"""Files of models whose numbers take as few bytes as their frequencies allow.

`write_model` writes `.tnz` files, which `keras_small.load` loads. Both need the extra `coded`.
"""

from keras_small.coding.arrays import coded_bytes
from keras_small.coding.files import write_model

__all__ = ["coded_bytes", "write_model"]
