"""The products of chains; what layers make of them is tested with the layers."""

import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn.layers import MPSClassifier, TNAttention
from keras_tnattn.ops import scan


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a length is always known")
@pytest.mark.parametrize("make", [MPSClassifier, TNAttention])
def test_a_chain_of_unknown_length_takes_as_many_tiers_as_it_needs(make):
    import tensorflow as tf

    # In float64, because a site whose terms cancel may lose all digits of float32.
    layer = make(2, bond_dim=2, dtype="float64")
    # Blocks of 32 sites: one more than three tiers of them hold.
    x = np.random.default_rng(0).normal(size=(1, 32**3 + 1, 2))
    expected = to_numpy(layer(x))  # here the length is known
    traced = tf.function(layer, input_signature=[tf.TensorSpec((1, None, 2), tf.float64)])
    np.testing.assert_allclose(to_numpy(traced(x)), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1e5])
@pytest.mark.parametrize("length", [3, 40])
def test_contexts_do_not_depend_on_the_scale_of_the_features(scale, length):
    layer = TNAttention(2, bond_dim=3, attention_order=2)
    x = np.random.default_rng(0).normal(size=(2, length, 2)).astype("float32")
    expected = to_numpy(layer(x))
    assert np.abs(expected).max() > 0.01
    scaled = to_numpy(layer(np.float32(scale) * x)) / np.float32(scale)
    np.testing.assert_allclose(scaled, expected, rtol=1e-3, atol=1e-4)


def test_the_product_of_a_chain_of_large_matrices_is_finite():
    matrices = np.random.default_rng(0).uniform(0.5, 1, size=(4, 1, 2, 3, 3)).astype("float32")
    order = scan._bit_reversal(4)
    expected, scales = np.linalg.multi_dot, []
    for factor in (1.0, 1e15):
        product, log_scale = map(to_numpy, scan.chain_product(np.float32(factor) * matrices))
        scales.append(log_scale)
        whole = [expected([matrices[i, 0, b] for i in np.argsort(order)]) for b in range(2)]
        reached = np.exp(log_scale - 4 * np.log(factor))[:, None, None] * product
        np.testing.assert_allclose(reached, whole, rtol=1e-3)
    assert (scales[1] > scales[0]).all()
