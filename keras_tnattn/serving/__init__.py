"""The server of exported models, `keras_tnattn_serving`, under its older name."""

from keras_tnattn_serving.app import create_app
from keras_tnattn_serving.settings import Settings

__all__ = ["Settings", "create_app"]
