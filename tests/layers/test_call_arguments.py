"""Every public layer says what is wrong with the arguments of a call."""

import inspect

import keras
import numpy as np
import pytest

import keras_tnattn
from keras_tnattn import layers, storage

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 7, 8)).astype("float32")
TENSORS = X.reshape(3, 7, 2, 2, 2)
IDS = RNG.integers(0, 20, (3, 7))
EDGES = np.array([[0, 1], [1, 2]])
RING = np.roll(np.eye(7, dtype="float32"), 1, 0) + np.roll(np.eye(7, dtype="float32"), -1, 0)
PLGA = {"residual_units": 1, "residual_dim": 4}


def attention():
    return keras.layers.MultiHeadAttention(2, 4)


# The layer, and the arguments of a good call.
CASES = {
    "AdaptiveEmbedding": (
        lambda: storage.AdaptiveEmbedding(20, 8, (3, 9), (5, 2)),
        {"inputs": IDS},
    ),
    "GraphAttention": (lambda: layers.GraphAttention(2), {"inputs": X}),
    "GraphConvolution": (lambda: layers.GraphConvolution(4), {"inputs": X, "edges": EDGES}),
    "GraphTensorNetwork": (lambda: layers.GraphTensorNetwork(), {"inputs": TENSORS}),
    "LearnedPositionEncoding": (lambda: layers.LearnedPositionEncoding(9), {"inputs": X}),
    "LocalEmbedding": (lambda: layers.LocalEmbedding(), {"inputs": X}),
    "LowRankDense": (lambda: storage.LowRankDense(4, 2), {"inputs": X}),
    "LowRankEinsumDense": (
        lambda: storage.LowRankEinsumDense("abc,cd->abd", (None, 6), 2),
        {"inputs": X},
    ),
    "LowRankEmbedding": (lambda: storage.LowRankEmbedding(20, 8, 2), {"inputs": IDS}),
    "MPSClassifier": (lambda: layers.MPSClassifier(3, bond_dim=2), {"inputs": X}),
    "MaskedAveragePooling1D": (lambda: layers.MaskedAveragePooling1D(), {"inputs": X}),
    "MetricAttention": (
        lambda: layers.MetricAttention(2),
        {"query": X, "value": X[:, :5]},
    ),
    "MultiHeadAdditiveAttention": (lambda: layers.MultiHeadAdditiveAttention(2), {"inputs": X}),
    "MultiHeadDotProductAttention": (
        lambda: layers.MultiHeadDotProductAttention(2),
        {"inputs": X},
    ),
    "PLDRAttention": (
        lambda: layers.PLDRAttention(2, **PLGA),
        {"query": X, "value": X[:, :5]},
    ),
    "PowerLawGraphAttention": (
        lambda: layers.PowerLawGraphAttention(2, **PLGA),
        {"query": X, "value": X[:, :5]},
    ),
    "SinusoidalPositionEncoding": (lambda: layers.SinusoidalPositionEncoding(), {"inputs": X}),
    "SpectralGraphConvolution": (
        lambda: layers.SpectralGraphConvolution(RING, 4),
        {"inputs": X},
    ),
    "SwiGLU": (lambda: layers.SwiGLU(4), {"inputs": X}),
    "TNAttention": (lambda: layers.TNAttention(bond_dim=2), {"inputs": X}),
    "TTDense": (lambda: layers.TTDense(4), {"inputs": X}),
    "TTEmbedding": (lambda: storage.TTEmbedding(20, 8, tt_ranks=2), {"inputs": IDS}),
    "TensorizeTokens": (lambda: layers.TensorizeTokens(), {"inputs": X}),
    "TensorizedGraphAttention": (
        lambda: layers.TensorizedGraphAttention(2),
        {"inputs": TENSORS},
    ),
    "TensorizedSpectralAttention": (
        lambda: layers.TensorizedSpectralAttention(2),
        {"inputs": X},
    ),
    "TokenEmbedding": (lambda: layers.TokenEmbedding(20, 8), {"inputs": IDS}),
    "TransformerDecoder": (
        lambda: layers.TransformerDecoder(attention(), attention(), 4),
        {"inputs": X, "memory": X[:, :5]},
    ),
    "TransformerEncoder": (
        lambda: layers.TransformerEncoder(attention(), 4),
        {"inputs": X},
    ),
}
# Layers of any number of axes, and those that any size of the last axis suits.
ANY_RANK = {
    "AdaptiveEmbedding",
    "LowRankEmbedding",
    "TTEmbedding",
    "TokenEmbedding",
    "LowRankEinsumDense",
}
ANY_SIZE = {
    *("AdaptiveEmbedding", "LowRankEmbedding", "TTEmbedding", "TokenEmbedding"),
    *("LocalEmbedding", "MaskedAveragePooling1D", "SinusoidalPositionEncoding", "TensorizeTokens"),
}


def parameters(name):
    return inspect.signature(CASES[name][0]().call).parameters


def call(layer, arguments):
    first, *others = arguments
    return layer(arguments[first], **{name: arguments[name] for name in others})


def test_every_public_layer_is_here():
    assert set(CASES) == {*layers.__all__, *storage.__all__} <= set(keras_tnattn.__all__)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"TokenEmbedding"}))  # one of Keras'
def test_the_signature_names_each_argument_of_the_config(name):
    layer = CASES[name][0]()
    names = inspect.signature(type(layer)).parameters
    assert set(layer.get_config()) - {"name", "trainable", "dtype", "autocast"} <= set(names)
    assert "kwargs" in names


@pytest.mark.parametrize("name", sorted(set(CASES) - ANY_RANK))
@pytest.mark.parametrize("built", [False, True])
def test_a_wrong_number_of_axes(name, built):
    make, arguments = CASES[name]
    layer, first = make(), next(iter(arguments))
    if built:
        call(layer, arguments)
    wrong = arguments[first].ravel()[0 if name == "LowRankDense" else slice(8)]
    with pytest.raises(ValueError, match=rf"Expected {first} \(.*Received: {first}.shape=\("):
        call(layer, {**arguments, first: wrong})


@pytest.mark.parametrize("name", sorted(set(CASES) - ANY_SIZE))
def test_another_last_axis_than_that_of_the_build(name):
    make, arguments = CASES[name]
    layer, first = make(), next(iter(arguments))
    call(layer, arguments)
    wrong = np.concatenate([arguments[first]] * 2, axis=-1)
    with pytest.raises(ValueError, match=r"[Ee]xpected .*(8|J=2|I=2)"):
        call(layer, {**arguments, first: wrong})


@pytest.mark.parametrize("make", [lambda: layers.SwiGLU(4), lambda: layers.TTDense(6)])
def test_axes_before_the_last_may_change_from_call_to_call(make):
    layer = make()
    assert layer(np.ones((2, 3, 8), "float32")).shape[:-1] == (2, 3)
    assert layer(np.ones((2, 5, 8), "float32")).shape[:-1] == (2, 5)
    assert layer(np.ones((4, 8), "float32")).shape[:-1] == (4,)


MASKS = [
    (name, mask)
    for name in sorted(CASES)
    for mask in parameters(name)
    if mask.endswith("mask") and mask not in ("use_causal_mask",)
]


@pytest.mark.parametrize(("name", "mask"), MASKS)
def test_a_mask_of_another_shape(name, mask):
    make, arguments = CASES[name]
    length = 5 if mask.startswith(("value", "key", "memory")) else 7
    good, layer = np.ones((3, 7, 5) if mask == "attention_mask" else (3, length), bool), make()
    call(layer, {**arguments, mask: good})
    call(layer, {**arguments, mask: good[:1]})  # the same for the whole batch
    for wrong in (good[:, :-1], good[:2], good[..., None], good[0]):
        with pytest.raises(ValueError, match=rf"Expected {mask} \(B, .*Received: {mask}.shape"):
            call(layer, {**arguments, mask: wrong})


@pytest.mark.parametrize("name", sorted(CASES))
def test_texts_instead_of_numbers(name):
    make, arguments = CASES[name]
    first = next(iter(arguments))
    texts = np.full(arguments[first].shape, "a")
    with pytest.raises(TypeError, match=f"Expected numbers. Received: {first} of dtype"):
        call(make(), {**arguments, first: texts})


GRAPHS = [name for name in sorted(CASES) if "adjacency" in parameters(name)]


@pytest.mark.parametrize("name", GRAPHS)
def test_an_adjacency_of_another_shape(name):
    make, arguments = CASES[name]
    inputs, layer = arguments["inputs"], make()
    for good in (RING, RING[None], np.stack([RING] * 3)):
        assert call(layer, {"inputs": inputs, "adjacency": good}) is not None
    for wrong in (RING[:6], RING[:6, :6], RING[0], np.stack([RING] * 2), X):
        with pytest.raises(ValueError, match=r"Expected adjacency \(L, L\) or \(B, L, L\).*L=7"):
            call(layer, {"inputs": inputs, "adjacency": wrong})


@pytest.mark.parametrize("name", GRAPHS)
def test_inputs_are_no_graph(name):
    # As in `layer(x, x)`, with as many features as tokens.
    inputs = RNG.normal(size=(3, 7, 7)).astype("float32")
    with pytest.raises(ValueError, match=r"Expected a graph\. Received: adjacency=inputs"):
        call(CASES[name][0](), {"inputs": inputs, "adjacency": inputs})


@pytest.mark.parametrize("name", ["GraphAttention", "GraphConvolution"])
def test_edges_of_another_shape(name):
    make = CASES[name][0]
    for wrong in (EDGES[0], np.ones((2, 3), int), np.stack([EDGES] * 2), EDGES[None, None]):
        with pytest.raises(ValueError, match=r"Expected edges \(E, 2\) or \(B, E, 2\).*Received"):
            make()(X, edges=wrong)
    for wrong in (np.ones(3), np.ones((2, 2)), np.ones((3, 4))):
        with pytest.raises(ValueError, match=r"Expected edge_weights \(E\) or \(B, E\).*E=2"):
            make()(X, edges=EDGES, edge_weights=wrong)


def test_a_self_attention_called_like_a_cross_attention():
    layer = layers.TensorizedSpectralAttention(2)
    takes = r"TensorizedSpectralAttention takes \(inputs, adjacency=None, mask=None, "
    with pytest.raises(ValueError, match=rf"Expected adjacency .*\(3, 7, 8\)\. {takes}"):
        layer(X, X)
    square = keras.ops.ones((2, 8, 8))
    with pytest.raises(ValueError, match=f"Expected a graph. Received: adjacency=inputs. {takes}"):
        layer(square, square)
    mask = np.ones((3, 7, 7), bool)
    received = r"Received: attention_mask=tensor of shape \(3, 7, 7\)\. "
    with pytest.raises(TypeError, match=f"Expected other call arguments. {received}{takes}"):
        layer(X, attention_mask=mask)
    with pytest.raises(TypeError, match="missing a required argument: 'inputs'"):
        layer()


def test_a_reversed_embedding_of_another_size():
    for name in ("AdaptiveEmbedding", "LowRankEmbedding", "TTEmbedding"):
        layer = CASES[name][0]()
        layer(IDS)
        with pytest.raises(ValueError, match=r"Expected inputs \(\.\.\., 8\).*\(3, 7, 4\)"):
            layer(X[..., :4], reverse=True)


def test_symbolic_calls_are_checked():
    with pytest.raises(ValueError, match=r"Expected mask \(B, L\), L=7"):
        layers.TensorizedSpectralAttention(2)(
            keras.Input((7, 8)), mask=keras.Input((6,), dtype="bool")
        )
    # Sizes that are not known fit.
    layers.TensorizedSpectralAttention(2)(
        keras.Input((None, 8)), mask=keras.Input((6,), dtype="bool")
    )


def test_a_layer_that_does_not_take_training_may_get_it():
    assert tuple(layers.TTDense(4)(X, training=False).shape) == (3, 7, 4)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("axis", [0, 1])
def test_an_empty_batch_and_empty_texts(name, axis):
    make, arguments = CASES[name]
    if axis == 1 and name in ("SpectralGraphConvolution", "GraphConvolution"):
        pytest.skip("the nodes are given")
    if name == "GraphConvolution" and keras.backend.backend() == "torch":
        pytest.skip("Keras' segment_sum needs an edge on PyTorch")
    first = next(iter(arguments))
    size = [slice(None)] * axis + [slice(0)]
    empty = {
        n: x if n == "edges" or (axis and n != first) else x[tuple(size)]
        for n, x in arguments.items()
    }
    full, outputs = call(make(), arguments), call(make(), empty)
    assert len(outputs.shape) == len(full.shape)
    assert tuple(outputs.shape)[-1:] == tuple(full.shape)[-1:]
    assert outputs.shape[0] == (0 if axis == 0 else 3)


# With I = J = 8 features; H heads, bond dimension D, as the docstrings count.
COUNTS = {
    "MultiHeadDotProductAttention": 4 * 2 * 8 * 8,
    "MultiHeadAdditiveAttention": 4 * 2 * 8 * 8 + 2 * 8,
    "TensorizedSpectralAttention": 2 * 2 * 16 * (3 - 1),
    "TensorizedGraphAttention": 2 * 2 * 16 * (3 - 1),
    "GraphAttention": 2 * (8 * 8 + 2 * 8) + 2 * 8,
    "GraphConvolution": 8 * 4 + 4,
    "GraphTensorNetwork": 0,
    "TNAttention": 2**2 * 8 * (1 + 8),
    "MPSClassifier": 2 * 2 * 8 + 2 * 2 * 3 + 2 * 2,
    "LearnedPositionEncoding": 9 * 8,
    "LowRankDense": 8 * 2 + 2 * 4 + 4,
    "LowRankEmbedding": 20 * 2 + 2 * 8,
    "AdaptiveEmbedding": 3 * 5 + 9 * 2 + 5 * 8,
    "TokenEmbedding": 20 * 8,
    "SinusoidalPositionEncoding": 0,
    "MaskedAveragePooling1D": 0,
    "TensorizeTokens": 0,
    "LocalEmbedding": 0,
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_number_of_weights(name):
    make, arguments = CASES[name]
    layer = make()
    call(layer, arguments)
    assert layer.count_params() == COUNTS[name]
