"""Models assembled from the layers."""

from keras_tnattn.models.deep_tensor_network import deep_tensor_network
from keras_tnattn.models.freezing import freeze_metric
from keras_tnattn.models.graph_classifier import graph_classifier
from keras_tnattn.models.language_model import LanguageModel, language_model
from keras_tnattn.models.pldr_checkpoint import load_pldr_checkpoint
from keras_tnattn.models.presets import LANGUAGE_MODELS, PRESETS
from keras_tnattn.models.text_classifier import text_classifier
from keras_tnattn.models.translator import Translator, translator

__all__ = [
    "LANGUAGE_MODELS",
    "PRESETS",
    "LanguageModel",
    "Translator",
    "deep_tensor_network",
    "freeze_metric",
    "graph_classifier",
    "language_model",
    "load_pldr_checkpoint",
    "text_classifier",
    "translator",
]
