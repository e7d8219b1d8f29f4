"""What tables of results are made of."""

import keras
import numpy as np

from keras_tnattn import MaskedAveragePooling1D, TokenEmbedding
from training.engine.tables import text_probabilities


def test_predictions_do_not_depend_on_padding_and_order():
    rng = np.random.default_rng(0)
    ids = np.zeros((300, 150), "int32")
    for row in ids:
        row[: rng.integers(0, 150)] = rng.integers(1, 9)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            TokenEmbedding(9, 4, mask_zero=True),
            MaskedAveragePooling1D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    expected = keras.ops.convert_to_numpy(model(ids))
    np.testing.assert_allclose(text_probabilities(model, ids), expected, rtol=1e-5)
