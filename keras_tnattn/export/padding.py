"""Finds out whether a classifier computes the same with and without padding."""

import keras
import numpy as np

from keras_tnattn.text.reserved import PAD, UNK


def ignores_padding(model: keras.Model, vocabulary_size: int) -> bool:
    """Whether a classifier computes the same without the padding at the end of texts.

    Compares the inputs of the last layer, because probabilities near 0 and 1 hardly change. Returns
    `False` for a model whose outputs are not those of one last layer, or whose last layer averages
    the tokens.
    """
    import tensorflow as tf

    inputs = getattr(model, "inputs", None)
    if inputs is None or len(inputs) != 1 or model.layers[-1].output is not model.outputs[0]:
        return False
    ids = np.random.default_rng(0).integers(UNK, max(vocabulary_size, UNK + 1), (8, 6), "int32")
    padded = np.pad(ids, ((0, 0), (0, 30)), constant_values=PAD)
    try:
        features = keras.Model(inputs[0], model.layers[-1].input)
        alone, longer = (
            keras.ops.convert_to_numpy(features(x, training=False)) for x in (ids, padded)
        )
    except (ValueError, tf.errors.InvalidArgumentError):  # a model of texts of one length
        return False
    if alone.shape != longer.shape:  # with an axis for the tokens
        return False
    return bool(np.allclose(alone, longer, rtol=1e-4, atol=1e-6))
