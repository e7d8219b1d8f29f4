"""Models assembled from the layers."""

from keras_tnattn.models.attentions import ATTENTIONS
from keras_tnattn.models.deep_tensor_network import deep_tensor_network
from keras_tnattn.models.graph_classifier import graph_classifier
from keras_tnattn.models.presets import PRESETS
from keras_tnattn.models.text_classifier import text_classifier
from keras_tnattn.models.translator import Translator, translator

__all__ = [
    "ATTENTIONS",
    "PRESETS",
    "Translator",
    "deep_tensor_network",
    "graph_classifier",
    "text_classifier",
    "translator",
]
