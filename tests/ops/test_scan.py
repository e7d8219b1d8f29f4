"""The products of chains; what layers make of them is tested with the layers."""

import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn.layers import MPSClassifier, TNAttention


@pytest.mark.parametrize("make", [MPSClassifier, TNAttention])
def test_a_chain_of_unknown_length_takes_as_many_tiers_as_it_needs(make):
    layer = make(2, bond_dim=2)
    # Blocks of 32 sites: one more than three tiers of them hold.
    x = np.random.default_rng(0).normal(size=(1, 32**3 + 1, 2)).astype("float32")
    expected = to_numpy(layer(x))  # here the length is known
    model = keras.Sequential([keras.Input((None, 2)), layer])
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5)
