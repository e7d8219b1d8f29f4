"""Functional models assembled from the layers."""

from keras_tnattn.models.text_classifier import text_classifier

__all__ = ["text_classifier"]
