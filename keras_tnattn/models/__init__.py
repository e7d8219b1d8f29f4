"""Functional models assembled from the layers."""

from keras_tnattn.models.deep_tensor_network import deep_tensor_network
from keras_tnattn.models.text_classifier import text_classifier

__all__ = ["deep_tensor_network", "text_classifier"]
