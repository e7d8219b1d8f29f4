"""Wrong arguments of a constructor get an error that lists the right ones and guesses."""

import copy
import inspect
import pickle

import keras
import pytest
from conformance import tokens

import keras_tnattn
from keras_small import storage
from keras_tnattn import layers
from keras_tnattn.layers.base_layer import BaseLayer

PUBLIC = [getattr(keras_tnattn, name) for name in keras_tnattn.__all__]
LAYERS = [c for c in PUBLIC if isinstance(c, type) and issubclass(c, BaseLayer)]
CASES = {
    "rank": (lambda: layers.TTDense(4, rank=4), "rank=4. Did you mean tt_ranks instead of rank?"),
    "ranks": (lambda: storage.LowRankDense(8, ranks=2), "ranks=2; missing a required argument"),
    "dropout": (
        lambda: layers.TensorizedSpectralAttention(2, dropout=0.1),
        "dropout=0.1. TensorizedSpectralAttention has no dropout.",
    ),
    "dropout_rate": (
        lambda: layers.GraphAttention(2, dropout_rate=0.1),
        "Did you mean dropout instead of",
    ),
    "no heads": (lambda: layers.TNAttention(num_heads=2), "TNAttention has no num_heads."),
    "heads": (lambda: layers.PLDRAttention(heads=2), "Did you mean num_heads instead of heads?"),
    "n_heads": (
        lambda: layers.MetricAttention(n_heads=2),
        "Did you mean num_heads instead of n_heads?",
    ),
    "head_dim": (
        lambda: layers.MetricAttention(2, head_dim=2),
        "Did you mean key_dim instead of head_dim",
    ),
    "head_dim of a shape": (
        lambda: layers.TensorizedGraphAttention(2, head_dim=4),
        "Did you mean key_shape instead of head_dim? It is a shape, whose product is the size of",
    ),
    "value_dim": (
        lambda: layers.MetricAttention(2, value_dim=2),
        "value_dim=2. MetricAttention has no value_dim.",
    ),
    "units": (lambda: layers.TNAttention(units=3), "Did you mean output_dim instead of units?"),
    "output_dim": (
        lambda: layers.TTDense(output_dim=3),
        "Did you mean units instead of output_dim?",
    ),
    "hidden_size": (
        lambda: layers.TTDense(hidden_size=3),
        "Did you mean units instead of hidden_size?",
    ),
    "embed_dim": (
        lambda: layers.PowerLawGraphAttention(2, embed_dim=8),
        "The size of the tokens is that of the inputs, so `embed_dim` is not needed.",
    ),
    "typo": (lambda: layers.SwiGLU(8, kernel_initialiser="zeros"), "Did you mean kernel_initial"),
    "a typo of Keras' own": (
        lambda: layers.SwiGLU(8, trainble=False),
        "Did you mean trainable instead of",
    ),
    "of the call": (
        lambda: layers.MultiHeadDotProductAttention(2, is_causal=True),
        "Pass use_causal_mask in the call, layer(inputs, use_causal_mask=...).",
    ),
    "of the call, by another name": (
        lambda: layers.PLDRAttention(2, attn_mask=None),
        "Pass attention_mask in the call, layer(inputs, attention_mask=...).",
    ),
    "attn_drop": (
        lambda: layers.GraphAttention(2, attn_drop=0.1),
        "Did you mean dropout instead of attn_drop?",
    ),
    "of Keras' base": (
        lambda: layers.TokenEmbedding(9, embed_dim=4),
        "Did you mean output_dim instead of",
    ),
    "missing": (lambda: layers.TTDense(), "Received: missing a required argument: 'units'."),
    "too many": (lambda: layers.SwiGLU(1, "zeros", 2), "too many positional arguments"),
    "not one": (lambda: layers.MaskedAveragePooling1D(3), "too many positional arguments"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_says_what_was_meant(name):
    make, text = CASES[name]
    with pytest.raises(TypeError) as error:
        make()
    assert text in str(error.value)
    assert "Expected other arguments for " in str(error.value)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_error_lists_the_arguments(kind):
    with pytest.raises(TypeError) as error:
        kind(nonsense=1)
    text = str(error.value)
    assert "Received: nonsense=1" in text
    parameters = inspect.signature(kind).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    listed = text.rpartition(f"{kind.__name__} takes (")[2]
    assert all(p.name in listed for p in named)


def test_subclasses_have_arguments_of_their_own():
    class Doubled(layers.TTDense):
        def __init__(self, factor, **kwargs):
            self.offset = kwargs.pop("offset", 0)
            super().__init__(8, **kwargs)
            self.factor = factor

    layer = Doubled(2, offset=1, tt_ranks=3, name="doubled")
    assert (layer.factor, layer.offset, layer.tt_ranks) == (2, 1, 3)
    with pytest.raises(TypeError, match=r"Did you mean factor instead of facto\?"):
        Doubled(facto=2)


def test_layers_are_still_copied():
    layer = layers.TTDense(8)
    layer.build((None, 8))
    x = keras.ops.convert_to_tensor(tokens(2, 8))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert keras.ops.all(other(x) == layer(x))
