"""Files of models whose numbers take as few bytes as their frequencies allow.

`write_model` and `load_model` are for `.tnz` files. They need the extra `coded`.
"""

from keras_small.coding.arrays import coded_bytes
from keras_small.coding.files import load_model, write_model

__all__ = ["coded_bytes", "load_model", "write_model"]
