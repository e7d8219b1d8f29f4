import keras
import numpy as np
import pytest
from conformance import to_numpy, tokens

from keras_tnattn import layers


def test_learned_positions_are_rows_of_a_table():
    layer = layers.LearnedPositionEncoding(4)
    x = tokens(2, 6, 3)
    got = to_numpy(layer(x))
    table = to_numpy(layer.embeddings)
    assert table.shape == (4, 3)
    for p in range(6):  # beyond the last: the last
        np.testing.assert_allclose(got[:, p], x[:, p] + table[min(p, 3)], rtol=1e-6)
    later = to_numpy(layer(x[:, :1], start_index=2))
    np.testing.assert_allclose(later[:, 0], x[:, 0] + table[2], rtol=1e-6)
    scaled = layers.LearnedPositionEncoding(4, scale=True, embeddings_initializer="zeros")
    np.testing.assert_allclose(to_numpy(scaled(x)), x * 3**0.5, rtol=1e-6)
    with pytest.raises(ValueError, match=r"max_length=2\.0"):
        layers.LearnedPositionEncoding(2.0)


def test_sinusoids_are_those_of_the_paper():
    got = to_numpy(layers.SinusoidalPositionEncoding()(np.zeros((1, 2, 4), "float32")))
    # sin and cos of the position, then of its hundredth
    expected = [[0, 1, 0, 1], [0.8414710, 0.5403023, 0.0099998, 0.9999500]]
    np.testing.assert_allclose(got[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make", [layers.SinusoidalPositionEncoding, lambda: layers.LearnedPositionEncoding(4)]
)
def test_positions_belong_to_sequences_of_vectors(make):
    with pytest.raises(
        ValueError, match=r"Expected inputs \(B, L, d\). Received: inputs.shape=\(2, 3\)"
    ):
        make()(keras.ops.ones((2, 3)))
