"""The adapters answer one call for every kind of attention."""

import inspect

import keras
import numpy as np
import pytest
from conformance import to_numpy, tokens

from keras_tnattn import layers
from keras_tnattn.layers.base_attention import (
    AttentionAdapter,
    KerasAttention,
    SequenceAttention,
    adapter_of,
)
from keras_tnattn.typing import Masks


def plga():
    return layers.PowerLawGraphAttention(
        2, residual_units=1, residual_dense_layers=1, residual_dim=5, causal_metric=True
    )


class Doubled(keras.layers.Layer):
    """A layer of a stranger, without masks."""

    def call(self, inputs):
        return 2 * inputs


class Weighted(Doubled):
    """One with details of its own, which registers its adapter."""

    def call(self, inputs, return_weights=False):
        return (inputs, inputs[..., 0]) if return_weights else inputs


@adapter_of.register
def _(layer: Weighted) -> AttentionAdapter:
    return SequenceAttention(layer, "weights", "return_weights")


# The layer, the name of its details, whether it takes a memory, whether it can be causal.
KINDS = {
    "keras": (lambda: keras.layers.MultiHeadAttention(2, 3), "scores", True, True),
    "grouped": (lambda: keras.layers.GroupQueryAttention(3, 4, 2), "scores", True, True),
    "plga": (plga, "E_LM", True, True),
    "tsa": (
        lambda: layers.TensorizedSpectralAttention(2, head_combination="project"),
        "scores",
        False,
        True,
    ),
    "dpa": (lambda: layers.MultiHeadDotProductAttention(2), "scores", False, True),
    "ada": (lambda: layers.MultiHeadAdditiveAttention(2), "scores", False, True),
    "tn": (lambda: layers.TNAttention(bond_dim=2), "local_weights", False, True),
    "rgtn": (lambda: layers.GraphTensorNetwork(), None, False, False),
    "rgtn_earlier": (lambda: layers.GraphTensorNetwork(receive_from="earlier"), None, False, True),
    "stranger": (Doubled, None, False, False),
    "weighted": (Weighted, "weights", False, False),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_call_for_all(name):
    make, detail, takes_memory, can_be_causal = KINDS[name]
    adapter = adapter_of(make())
    assert (adapter.takes_memory, adapter.can_be_causal) == (takes_memory, can_be_causal)
    x, memory = tokens(2, 5, 8), tokens(2, 3, 8, seed=1)
    adapter.build(x.shape, x.shape)
    outputs, details = adapter(x, x)
    assert details is None
    assert outputs.shape == x.shape
    if detail is None:
        with pytest.raises(ValueError, match="return its scores"):
            adapter(x, x, return_details=True)
    else:
        same, details = adapter(x, x, return_details=True)
        assert detail in details
        np.testing.assert_allclose(to_numpy(same), to_numpy(outputs), rtol=1e-5, atol=1e-5)
    if takes_memory:
        other = adapter_of(make())
        other.build(x.shape, memory.shape)
        assert other(x, memory)[0].shape == x.shape
    if can_be_causal:
        changed = x.copy()
        changed[:, 3:] = tokens(2, 2, 8, seed=2)
        got = [to_numpy(adapter(v, v, use_causal_mask=True)[0]) for v in (x, changed)]
        np.testing.assert_allclose(got[0][:, :3], got[1][:, :3], rtol=1e-5, atol=1e-6)
        assert np.abs(got[0] - got[1])[:, 3:].max() > 1e-3


def test_the_most_specific_class_decides():
    class Mine(keras.layers.MultiHeadAttention):
        pass

    assert isinstance(adapter_of(Mine(2, 3)), KerasAttention)
    # What a subclass computes is not known: no token by token.
    assert not adapter_of(Mine(2, 3)).can_extend
    assert adapter_of(keras.layers.MultiHeadAttention(2, 3)).can_extend
    # What a gate or a window changes is not computed token by token either.
    arguments = inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters
    options = {"use_gate": True, "sliding_window": 2}  # which older versions of Keras lack
    for name in options.keys() & arguments.keys():
        layer = keras.layers.MultiHeadAttention(2, 3, **{name: options[name]})
        assert not adapter_of(layer).can_extend
    with pytest.raises(TypeError, match="'plga'"):
        adapter_of("plga")


@pytest.mark.parametrize("named", [False, True])
def test_a_mask_reaches_a_layer_that_takes_one(named):
    masks = []

    class Named(Doubled):
        def call(self, inputs, mask=None):
            masks.append(mask)
            return inputs

    class Keywords(Doubled):
        def call(self, inputs, **options):
            masks.append(options.get("mask"))
            return inputs

    layer = (Named if named else Keywords)()
    layer.supports_masking = True
    x, mask = tokens(2, 5, 8), np.arange(5) < np.array([[3], [5]])
    adapter = adapter_of(layer)
    adapter.build(x.shape, x.shape)
    adapter(x, x, Masks(value=mask))
    np.testing.assert_array_equal(to_numpy(masks[-1]), mask)
