"""A small language model of characters whose texts differ."""

import dataclasses
import functools

import keras
import numpy as np

from keras_tnattn.models import language_model
from keras_tnattn_train.exports import LanguageModel, Version, export
from keras_tnattn_train.language.tokens import Tokens

TOKENS = Tokens("characters", " abcdefghi")


@functools.cache
def small_language_model(attention="sdpa", **options):
    """Returns an untrained language model that reads 40 characters of `TOKENS`."""
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 2, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16}
    model = language_model(TOKENS.vocabulary_size, attention, max_length=40, **sizes, **options)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:  # else a token is followed by itself
        variable.assign_add(rng.normal(size=variable.shape))
    return model


def exported_language_model(folder, card):
    """Exports the small language model as a version in a folder, and returns its path."""
    task = LanguageModel(small_language_model(), dataclasses.asdict(TOKENS), card)
    return export(task, folder, Version(engines=("onnxruntime",)))
