"""The reader of portable folders, `keras_tnattn_serving.reader`, under its older name."""

from keras_tnattn_serving.reader import load

__all__ = ["load"]
