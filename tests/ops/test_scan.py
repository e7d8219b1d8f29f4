"""The products of chains; what layers make of them is tested with the layers."""

import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn.layers import MPSClassifier, TNAttention


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a length is always known")
@pytest.mark.parametrize("make", [MPSClassifier, TNAttention])
def test_a_chain_of_unknown_length_takes_as_many_tiers_as_it_needs(make):
    import tensorflow as tf

    layer = make(2, bond_dim=2)
    # Blocks of 32 sites: one more than three tiers of them hold.
    x = np.random.default_rng(0).normal(size=(1, 32**3 + 1, 2)).astype("float32")
    expected = to_numpy(layer(x))  # here the length is known
    traced = tf.function(layer, input_signature=[tf.TensorSpec((1, None, 2))])
    np.testing.assert_allclose(to_numpy(traced(x)), expected, rtol=1e-3, atol=2e-4)
