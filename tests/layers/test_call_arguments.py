"""Every public layer says what is wrong with its arguments and with those of a call."""

import inspect

import keras
import numpy as np
import pytest

import keras_small
import keras_tnattn
from keras_small import storage
from keras_tnattn import layers
from keras_tnattn.models import graph_classifier
from keras_tnattn.ops.time_graph import Geometric

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 7, 8)).astype("float32")
TENSORS = X.reshape(3, 7, 2, 2, 2)
IDS = RNG.integers(0, 20, (3, 7))
EDGES = np.array([[0, 1], [1, 2]])
RING = np.roll(np.eye(7, dtype="float32"), 1, 0) + np.roll(np.eye(7, dtype="float32"), -1, 0)
PLGA = {"residual_units": 1, "residual_dim": 4}


def built_dense():
    dense = keras.layers.Dense(3)
    dense.build((None, 4))
    return dense


def attention():
    return keras.layers.MultiHeadAttention(2, 4)


def on(arguments, *makers):
    """Returns by its name how each layer is made, and the arguments of a good call."""
    return {type(make()).__name__: (make, arguments) for make in makers}


CASES = {
    **on(
        {"inputs": IDS},
        lambda: storage.AdaptiveEmbedding(20, 8, (3, 9), (5, 2)),
        lambda: layers.LowRankEmbedding(20, 8, 2),
        lambda: layers.TTEmbedding(20, 8, tt_ranks=2),
        lambda: layers.TokenEmbedding(20, 8),
    ),
    **on(
        {"inputs": X},
        lambda: layers.GraphAttention(2),
        lambda: layers.LearnedPositionEncoding(9),
        layers.LocalEmbedding,
        lambda: storage.LowRankDense(4, 2),
        lambda: storage.LowRankEinsumDense("abc,cd->abd", (None, 6), 2),
        lambda: layers.MPSClassifier(3, bond_dim=2),
        layers.MaskedAveragePooling1D,
        lambda: layers.MultiHeadAdditiveAttention(2),
        lambda: layers.MultiHeadDotProductAttention(2),
        layers.SinusoidalPositionEncoding,
        lambda: layers.SpectralGraphConvolution(RING, 4),
        lambda: layers.SwiGLU(4),
        lambda: layers.TNAttention(bond_dim=2),
        lambda: layers.TTDense(4),
        layers.TensorizeTokens,
        lambda: layers.TensorizedSpectralAttention(2),
        lambda: layers.TransformerEncoder(attention(), 4),
    ),
    **on({"inputs": X, "edges": EDGES}, lambda: layers.GraphConvolution(4)),
    **on(
        {"inputs": TENSORS}, layers.GraphTensorNetwork, lambda: layers.TensorizedGraphAttention(2)
    ),
    **on(
        {"query": X, "value": X[:, :5]},
        lambda: layers.MetricAttention(2),
        lambda: layers.PLDRAttention(2, **PLGA),
        lambda: layers.PowerLawGraphAttention(2, **PLGA),
    ),
    **on(
        {"inputs": X, "memory": X[:, :5]},
        lambda: layers.TransformerDecoder(attention(), attention(), 4),
    ),
}
# Layers of any number of axes, and those that any size of the last axis suits.
EMBEDDINGS = {"AdaptiveEmbedding", "LowRankEmbedding", "TTEmbedding", "TokenEmbedding"}
ANY_RANK = EMBEDDINGS | {"LowRankEinsumDense"}
ANY_SIZE = EMBEDDINGS | {
    *("LocalEmbedding", "MaskedAveragePooling1D", "SinusoidalPositionEncoding", "TensorizeTokens")
}


def parameters(name):
    return inspect.signature(CASES[name][0]().call).parameters


def call(layer, arguments):
    first, *others = arguments
    return layer(arguments[first], **{name: arguments[name] for name in others})


def test_every_public_layer_is_here():
    # Layers of integers are made of trained ones and are called as these.
    stored = {name for name in storage.__all__ if not name.startswith("Quantized")}
    assert set(CASES) == {*layers.__all__, *stored}
    assert set(layers.__all__) <= set(keras_tnattn.__all__)
    assert set(storage.__all__) <= set(keras_small.__all__)


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
    with pytest.raises(ValueError, match=r"(?s)edge_weights only with edges.*edges=None"):
        make()(X, adjacency=RING, edge_weights=np.ones(2))


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
    hint = r"TensorizedSpectralAttention has no attention_mask\. It takes [^.]*\. "
    with pytest.raises(TypeError, match=f"Expected other call arguments. {received}{hint}{takes}"):
        layer(X, attention_mask=mask)
    with pytest.raises(TypeError, match="missing a required argument: 'inputs'"):
        layer()


OF_OTHER_LIBRARIES = {
    "adj": "adjacency",
    "attn_mask": "attention_mask",
    "causal": "use_causal_mask",
    "edge_index": "edges",
    "edge_weight": "edge_weights",
    "encoder_hidden_states": "memory",
    "is_causal": "use_causal_mask",
    "key_padding_mask": "mask",
    "memory_key_padding_mask": "memory_mask",
    "need_weights": "return_attention_scores",
    "position_ids": "positions",
}
NAMED = [
    (name, theirs, ours)
    for name in sorted(CASES)
    for theirs, ours in OF_OTHER_LIBRARIES.items()
    if ours in parameters(name)
]


def error_of_call(name, option, value):
    make, arguments = CASES[name]
    with pytest.raises(TypeError, match="Expected other call arguments") as error:
        call(make(), {**arguments, option: value})
    return str(error.value)


def test_each_name_of_another_library_belongs_to_a_layer():
    assert {theirs for _, theirs, _ in NAMED} == set(OF_OTHER_LIBRARIES)


@pytest.mark.parametrize(("name", "theirs", "ours"), NAMED)
def test_names_of_other_libraries_in_a_call(name, theirs, ours):
    text = error_of_call(name, theirs, 1)
    assert f"Received: {theirs}=1. Did you mean {ours} instead of {theirs}?" in text
    # Some libraries mark what is left out.
    marks = ours in ("attention_mask", "mask", "memory_mask")
    assert ("In a mask, True is what is attended to." in text) == marks


@pytest.mark.parametrize("name", ["GraphAttention", "GraphConvolution"])
def test_edges_are_the_transpose_of_edge_index(name):
    text = error_of_call(name, "edge_index", EDGES.T)
    assert "Its rows are (sender, receiver), (E, 2), the transpose of edge_index, (2, E)." in text


@pytest.mark.parametrize("theirs", ["attention_mask", "attn_mask"])
@pytest.mark.parametrize(
    "name", [name for name in sorted(CASES) if "attention_mask" not in parameters(name)]
)
def test_what_a_layer_takes_in_place_of_an_attention_mask(name, theirs):
    taken = parameters(name)
    text = error_of_call(name, theirs, 1)
    assert f"{name} has no {theirs}." in text
    assert ("mask (B, L) for padding" in text) == ("mask" in taken)
    assert ("adjacency (L, L) for pairs" in text) == ("adjacency" in taken)
    assert ("use_causal_mask=True" in text) == ("use_causal_mask" in taken)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_matrix_in_place_of_edges_or_of_a_causal_mask(name):
    text = error_of_call(name, "edge_index", EDGES.T)
    matrix = f"{name} has no edge_index. It takes adjacency (L, L), the matrix of the graph."
    assert (matrix in text) == ("edges" not in parameters(name))
    text = error_of_call(name, "is_causal", True)
    triangle = f"{name} has no is_causal. It takes adjacency (L, L), whose lower triangle is a"
    assert (triangle in text) == ("use_causal_mask" not in parameters(name))


def test_a_layer_without_any_causal_mask():
    text = error_of_call("TTDense", "is_causal", True)
    assert "Received: is_causal=True. TTDense has no is_causal. TTDense takes (" in text


@pytest.mark.parametrize("name", sorted(CASES))
def test_names_that_no_library_knows(name):
    text = error_of_call(name, "nonsense", 1)
    assert f"Received: nonsense=1. {name} has no nonsense. {name} takes (" in text


def test_arguments_of_the_constructor_in_a_call():
    text = error_of_call("GraphAttention", "attn_drop", 0.1)
    assert "Pass dropout to the constructor, GraphAttention(dropout=...)." in text


def test_typing_errors_in_a_call():
    text = error_of_call("PLDRAttention", "positons", None)
    assert "Did you mean positions instead of positons?" in text


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


# What is refused at the latest when the layer is built, by its message.
LEARNED, TABLE = Geometric(trainable=True), keras.layers.Embedding(4, 4)
WRONG = {
    layers.GraphAttention: {
        "num_heads=0": lambda make: make(0),
        "key_dim=0": lambda make: make(2, 0),
        "head_combination='sum'": lambda make: make(2, head_combination="sum"),
        r"dropout=1\.0": lambda make: make(2, dropout=1.0),
        r"\(L, L\) or \(B, L, L\).*adjacency\.shape=\(3,\)": lambda make: make(2)(
            np.ones((1, 3, 2)), np.ones(3)
        ),
        r"input_shape=\(None, None, None\)": lambda make: make(2).build((None, None, None)),
        "either `adjacency` or `edges`": lambda make: make(2)(X, RING, edges=EDGES),
    },
    layers.GraphConvolution: {
        "units=0": lambda make: make(0),
        "normalization='left'": lambda make: make(2, "left"),
        "filter_order=1": lambda make: make(2, filter_order=1),
        "adjacency=None, edges=None": lambda make: make(2)(X),
    },
    layers.SpectralGraphConvolution: {
        r"shape=\(3, 3\)": lambda make: make(np.triu(np.ones((3, 3))), 2),
        "normalization='left'": lambda make: make(RING, 2, "left"),
    },
    graph_classifier: {
        "layer='mlp'": lambda make: make(4, 2, "mlp"),
        "num_classes=1": lambda make: make(4, 1),
    },
    layers.GraphTensorNetwork: {
        "propagation_rank=0": lambda make: make(0),
        r"propagation_rank=2\.0": lambda make: make(2.0),
        "damping=1": lambda make: make(damping=1),
        "receive_from='past'": lambda make: make(receive_from="past"),
        r"at most 6.*propagation_rank=7, input_shape=\(None, None, 2, 3\)": lambda make: make(
            7
        ).build((None, None, 2, 3)),
        r"input_shape=\(None, None, None\)": lambda make: make().build((None, None, None)),
        "layer=gtn": lambda make: make(name="gtn").propagation_matrix(),
        "num_heads=1": lambda make: make(damping=(0.5, 0.9)),
        "receive_from='later'": lambda make: make()(X, use_causal_mask=True),
        "projection='skew'": lambda make: make(projection="skew"),
        "max_projection_norm=1": lambda make: make(max_projection_norm=1),
    },
    layers.MPSClassifier: {
        "num_classes=0": lambda make: make(0),
        "num_sites=None": lambda make: make(2, uniform=False),
        "position=-1": lambda make: make(2, position=-1),
    },
    layers.LocalEmbedding: {
        "feature_map='cosine'": lambda make: make("cosine"),
        "num_ids=None": lambda make: make("one_hot"),
        # Refused by what stands before the sizes, too: ids go with both maps of ids.
        "feature_map='learned', num_ids=None": lambda make: make("learned"),
        "feature_map='linear', num_ids=3": lambda make: make("linear", num_ids=3),
        "embedding_dim=0": lambda make: make("learned", 0, 3),
        "num_ids=0": lambda make: make("one_hot", num_ids=0),
        "order=3": lambda make: make(order=3),
        "embedding_dim=3": lambda make: make("linear", embedding_dim=3),
    },
    layers.TTDense: {
        "units=0": lambda make: make(0),
        "tt_output_shape=None": lambda make: make(8, (2, 2)),
        r"units=8, tt_output_shape=\(2, 3\)": lambda make: make(8, (2, 2), (2, 3)),
        r"tt_input_shape=\(2, 2\)": lambda make: make(8, (2, 2), (8,)),
        "tt_ranks=0": lambda make: make(8, tt_ranks=0),
        r"input_shape=\(None, 5\)": lambda make: make(8, (2, 2), (2, 4)).build((None, 5)),
        r"input_shape=\(3, None\)": lambda make: make(8).build((3, None)),
        r"at least 1\. Received: tt_ranks=-1": lambda make: make(8, tt_ranks=-1),
        r"at least 1\. Received: tt_ranks=\(2, 0\)": lambda make: make(8, tt_ranks=(2, 0)),
        "sequence of ints. Received: tt_ranks=None": lambda make: make(8, tt_ranks=None),
        "built keras.layers.Dense": lambda make: make.from_dense(keras.layers.Dense(3), tt_ranks=1),
        "tt_output_shape=None$": lambda make: make.from_dense(built_dense(), (2, 2), tt_ranks=1),
        "built layer": lambda make: make(3).to_dense(),
    },
    layers.TNAttention: {
        "normalize='sites'": lambda make: make(normalize="sites"),
        "bond_dim=0": lambda make: make(bond_dim=0),
        "boundary='periodic'": lambda make: make(boundary="periodic"),
        "attention_order=3": lambda make: make(attention_order=3),
        "num_sites=None": lambda make: make(uniform=False),
        "uniform=True, num_sites=4": lambda make: make(num_sites=4),
        "trainable_boundary=True": lambda make: make(trainable_boundary=True),
    },
    layers.PowerLawGraphAttention: {
        "num_heads=0": lambda make: make(num_heads=0),
        "key_dim=0": lambda make: make(2, key_dim=0),
        "key_dim=2.0": lambda make: make(2, key_dim=2.0),
        "residual_units=-1": lambda make: make(2, residual_units=-1),
        "residual_dim=0": lambda make: make(2, residual_dim=0),
        "dropout=1.0": lambda make: make(2, dropout=1.0),
        "residual_dropout=-0.1": lambda make: make(2, residual_dropout=-0.1),
        "metric_from='value'": lambda make: make(2, metric_from="value"),
        "metric_from='query' with causal_metric": lambda make: make(
            2, metric_from="key", causal_metric=True
        ),
        "epsilon=0.0": lambda make: make(2, epsilon=0.0),
        "epsilon=1.0": lambda make: make(2, epsilon=1.0),
        "epsilon='small'": lambda make: make(2, epsilon="small"),
        "num_heads=3, size=8": lambda make: make(3),
    },
    layers.TensorizedSpectralAttention: {
        "num_heads=0": lambda make: make(num_heads=0),
        "key_dim=-1": lambda make: make(2, key_dim=-1),
        "filter_order=1": lambda make: make(2, filter_order=1),
        r"damping=1\.0": lambda make: make(2, damping=1.0),
        r"damping=-0\.1": lambda make: make(2, damping=-0.1),
        r"damping=\(0\.5,\), num_heads=2": lambda make: make(2, damping=(0.5,)),
        "method='banded'": lambda make: make(2, time_graph=LEARNED, method="banded"),
        "method='fast'": lambda make: make(2, method="fast"),
        "head_combination='max'": lambda make: make(2, head_combination="max"),
        "tt_output_shape=None": lambda make: make(2, tt_input_shape=(2, 2)),
        r"input_shape=\(None, None, 8\)": lambda make: make(
            2, tt_input_shape=(2, 3), tt_output_shape=(2, 3)
        ),
        r"at most \(4, 4\).*tt_ranks=\(9, 2\)": lambda make: make(2, tt_ranks=(9, 2)),
        r"input_shape=\(None, None, None\)": lambda make: make(2).build((None, None, None)),
    },
    layers.TensorizedGraphAttention: {
        r"key_shape=\(2, 2\)": lambda make: make(2, (2, 2)).build((None, None, 2, 2, 2))
    },
    layers.TTEmbedding: {
        "input_dim=0": lambda make: make(0, 3),
        r"tt_input_shape=\(2, 4\)": lambda make: make(9, 4, tt_input_shape=(2, 4)),
        "output_dim=4": lambda make: make(9, 4, tt_output_shape=(2, 3)),
        "tt_ranks=0": lambda make: make(9, 4, tt_ranks=0),
        "built Embedding": lambda make: make.from_embedding(TABLE, tt_ranks=2),
    },
    storage.AdaptiveEmbedding: {
        "block_rows=0": lambda make: make(22, 6, (4, 0), (4, 2)),
        "block_ranks=-1": lambda make: make(22, 6, (4, 5), (4, -1)),
        r"at most input_dim=22 rows.*block_rows=\(4, 19\)": lambda make: make(
            22, 6, (4, 19), (4, 2)
        ),
        r"block_ranks=\(4,\)": lambda make: make(22, 6, (4, 5), (4,)),
        r"one or more blocks.*block_rows=\(\)": lambda make: make(22, 6, (), ()),
        "bits=5": lambda make: make(22, 6, (4, 5), (4, 2), (4, 5)),
        r"block_bits=\(4,\)": lambda make: make(22, 6, (4, 5), (4, 2), (4,)),
    },
    storage.LowRankDense: {
        "units=0": lambda make: make(0, 2),
        "rank=0": lambda make: make(2, 0),
        "built": lambda make: make.from_dense(keras.layers.Dense(3), rank=1),
    },
    layers.LowRankEmbedding: {
        "built": lambda make: make.from_embedding(TABLE, 1),
    },
    storage.QuantizedTTEmbedding: {
        "bits=5": lambda make: make(5, input_dim=9, output_dim=4),
        "built=False": lambda make: make.from_layer(layers.TTEmbedding(9, 4), 4),
    },
    storage.QuantizedLowRankEmbedding: {
        "bits=5": lambda make: make(5, input_dim=3, output_dim=4, rank=2),
        "built=False": lambda make: make.from_layer(layers.LowRankEmbedding(3, 4, 2), 4),
    },
    layers.MultiHeadAdditiveAttention: {"key_dim=0": lambda make: make(2, key_dim=0)},
    layers.MultiHeadDotProductAttention: {"num_heads=0": lambda make: make(0)},
}


@pytest.mark.parametrize(("make", "message"), [(x, text) for x in WRONG for text in WRONG[x]])
def test_errors_name_what_was_given(make, message):
    with pytest.raises(ValueError, match=message):
        WRONG[make][message](make).build((None, None, 8))
