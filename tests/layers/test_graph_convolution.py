import keras
import numpy as np
import pytest
from conformance import (
    check_layer,
    check_padding_changes_nothing,
    relative_error,
    saved_and_loaded,
    to_numpy,
    tokens,
)
from keras import ops
from slow_cases import slow_but

from keras_tnattn import GraphAttention, GraphConvolution, SpectralGraphConvolution
from keras_tnattn.models.graph_classifier import attention_model, graph_classifier


def weighted_graph(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.uniform(0.5, 2, size=shape) * (rng.random(shape) < 0.5)).astype("float32")


def edges_of(adjacency, padding=0):
    """Edges `(sender, receiver)` and weights of one adjacency `[receiver, sender]`."""
    receivers, senders = np.nonzero(adjacency)
    weights = adjacency[receivers, senders]
    edges = np.stack([senders, receivers], axis=1)
    filling = np.full((padding, 2), -1)
    return np.concatenate([edges, filling]), np.concatenate([weights, np.ones(padding)])


def propagation(adjacency, normalization, filtered):
    """`I + A` or `A`, normalized, entry by entry."""
    matrix = adjacency.astype("float64") + (0 if filtered else np.eye(len(adjacency)))
    if normalization is None:
        return matrix
    degrees = matrix.sum(axis=1)
    result = np.zeros(matrix.shape)
    for i, j in np.ndindex(matrix.shape):
        if degrees[i] > 0 and degrees[j] > 0:
            result[i, j] = matrix[i, j] / np.sqrt(degrees[i] * degrees[j])
    return result


OPTIONS = [(n, f) for n in (None, "symmetric") for f in (None, 2, 4)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("normalization", "order"), OPTIONS)
def test_convolution_is_its_formula(normalization, order, sparse):
    x, adjacency = tokens(2, 6, 3), weighted_graph(2, 6, 6)
    layer = GraphConvolution(4, normalization, order, activation="tanh")
    layer.build(x.shape)
    layer.bias.assign(tokens(4, seed=2))
    if order is not None:  # starts with the neighbors of one hop
        assert to_numpy(layer.coefficients).tolist() == [1, 1, 0, 0][:order]
        layer.coefficients.assign(tokens(order, seed=3))
    if sparse:
        count = max(np.count_nonzero(a) for a in adjacency)
        pairs = [edges_of(a, count - np.count_nonzero(a)) for a in adjacency]
        edges, weights = (np.stack(part) for part in zip(*pairs, strict=True))
        got = layer(x, edges=edges, edge_weights=weights.astype("float32"))
    else:
        got = layer(x, adjacency)
    kernel, bias = to_numpy(layer.kernel), to_numpy(layer.bias)
    for n in range(2):
        matrix = propagation(adjacency[n], normalization, order is not None)
        if order is not None:
            powers = [np.linalg.matrix_power(matrix, k) for k in range(order)]
            matrix = sum(a * p for a, p in zip(to_numpy(layer.coefficients), powers, strict=True))
        expected = np.tanh(matrix @ x[n] @ kernel + bias)
        np.testing.assert_allclose(to_numpy(got)[n], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("normalization", "order"), OPTIONS)
def test_a_masked_node_is_out_of_the_graph(normalization, order, sparse):
    x, adjacency = tokens(1, 6, 3), weighted_graph(6, 6)
    mask = np.array([[1, 1, 0, 1, 1, 0]], bool)
    layer = GraphConvolution(4, normalization, order)
    layer.build(x.shape)
    layer.bias.assign(tokens(4, seed=2))

    def run(x, adjacency, mask):
        if not sparse:
            return to_numpy(layer(x, adjacency, mask=mask))
        edges, weights = edges_of(adjacency)
        weights = weights.astype("float32")
        return to_numpy(layer(x, edges=edges, edge_weights=weights, mask=mask))

    poisoned = np.where(mask[..., None], x, np.nan).astype("float32")
    got = run(poisoned, adjacency, ops.convert_to_tensor(mask))
    nodes = np.flatnonzero(mask[0])
    alone = run(x[:, nodes], adjacency[np.ix_(nodes, nodes)], None)
    np.testing.assert_allclose(got[:, nodes], alone, rtol=1e-4, atol=1e-5)
    assert (got[:, ~mask[0]] == 0).all()


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("combination", ["concat", "mean"])
def test_attention_over_edges_equals_that_over_the_adjacency(combination, self_loops):
    x, adjacency = tokens(2, 6, 3), weighted_graph(2, 6, 6)
    adjacency[:, 2] = 0
    mask = np.ones((2, 6), bool)
    mask[0, 4] = False
    layer = GraphAttention(
        3, 4, combination, self_loops=self_loops, activation="sigmoid", use_bias=True
    )
    dense, alpha = layer(x, adjacency, mask=mask, return_attention_scores=True)
    count = max(np.count_nonzero(a) for a in adjacency)
    pairs = [edges_of(a, count - np.count_nonzero(a)) for a in adjacency]
    edges = np.stack([edges for edges, _ in pairs])
    sparse, shares = layer(x, edges=edges, mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(sparse), to_numpy(dense), rtol=1e-4, atol=1e-5)
    alpha, shares = to_numpy(alpha), to_numpy(shares)
    assert shares.shape == (2, 3, count + (6 if self_loops else 0))
    for n in range(2):
        for e, (sender, receiver) in enumerate(edges[n]):
            if sender >= 0 and not (self_loops and sender == receiver):
                expected = alpha[n, :, receiver, sender]
                np.testing.assert_allclose(shares[n, :, e], expected, atol=1e-5)
        if self_loops:
            diagonal = np.diagonal(alpha[n], axis1=1, axis2=2)
            np.testing.assert_allclose(shares[n, :, count:], diagonal, atol=1e-5)


@pytest.mark.parametrize("make", [GraphAttention, GraphConvolution])
def test_a_hundred_thousand_nodes_fit(make):
    # A dense adjacency of floats would take 40 GB.
    nodes, count = 100_000, 300_000
    rng = np.random.default_rng(0)
    edges = rng.integers(0, nodes, (count, 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    x = rng.normal(size=(1, nodes, 3)).astype("float32")
    layer = make(1, 4) if make is GraphAttention else make(4)
    got = to_numpy(layer(x, edges=edges))[0]
    features = x[0].astype("float64") @ to_numpy(layer.kernel)
    loops = np.arange(nodes)
    senders = np.concatenate([edges[:, 0], loops])
    receivers = np.concatenate([edges[:, 1], loops])
    weights = np.ones(len(senders))
    if make is GraphAttention:
        a = to_numpy(layer.attention_kernel)[:, 0]
        scores = (features @ a[:4])[receivers] + (features @ a[4:])[senders]
        weights = np.exp(np.where(scores > 0, scores, 0.2 * scores))
        weights = weights / np.bincount(receivers, weights, nodes)[receivers]
    expected = np.stack(
        [np.bincount(receivers, weights * features[senders, j], nodes) for j in range(4)], axis=1
    )
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def ring(length):
    return np.roll(np.eye(length), 1, axis=0) + np.roll(np.eye(length), -1, axis=0)


@pytest.mark.parametrize("normalization", [None, "symmetric"])
def test_free_multipliers_are_those_of_the_eigenvectors(normalization):
    length = 7
    adjacency = weighted_graph(length, length)
    adjacency = np.triu(adjacency, 1) + np.triu(adjacency, 1).T
    layer = SpectralGraphConvolution(adjacency, 2, normalization, activation="tanh")
    x = tokens(3, length, 4)
    got = to_numpy(layer(x))
    degrees = adjacency.sum(axis=1).astype("float64")
    scale = 1 / np.sqrt(degrees) if normalization == "symmetric" else np.ones(length)
    values, vectors = np.linalg.eigh(
        scale[:, None] * (np.diag(degrees) - adjacency) * scale[None, :]
    )
    assert np.diff(values).min() > 1e-3
    multipliers = to_numpy(layer.multipliers)
    for o in range(2):
        expected = sum(
            np.einsum("lm,bm->bl", vectors * multipliers[:, i, o] @ vectors.T, x[:, :, i])
            for i in range(4)
        )
        np.testing.assert_allclose(got[:, :, o], np.tanh(expected), rtol=1e-3, atol=1e-4)
    assert sum(to_numpy(weight).size for weight in layer.trainable_weights) == length * 4 * 2 + 2


def test_free_multipliers_start_as_a_dense_kernel_does():
    layer = SpectralGraphConvolution(ring(200), 30)
    layer.build((None, 200, 10))
    kernel = keras.initializers.GlorotUniform()((400, 600))  # of any size
    expected = to_numpy(kernel).std() * np.sqrt((400 + 600) / (10 + 30))
    assert to_numpy(layer.multipliers).std() == pytest.approx(expected, rel=0.05)


def test_spectral_convolution_conforms(tmp_path):
    # Of one graph only: a layer of 7 nodes.
    def make():
        return SpectralGraphConvolution(ring(7), 5, activation="elu")

    check_layer(make, tokens(3, 7, 4), tmp_path)
    x, mask = tokens(1, 7, 4), np.array([[1, 1, 0, 1, 1, 1, 1]], bool)
    layer = make()
    poisoned = np.where(mask[..., None], x, np.nan).astype("float32")
    got = to_numpy(layer(poisoned, mask=ops.convert_to_tensor(mask)))
    expected = to_numpy(layer(np.where(mask[..., None], x, 0)))
    np.testing.assert_allclose(got[:, mask[0]], expected[:, mask[0]], atol=1e-6)
    assert (got[:, 2] == 0).all()


@keras.saving.register_keras_serializable(package="keras_tnattn_tests")
class OnRing(keras.layers.Layer):
    """Gives a convolution the ring of its nodes, so that it is a layer of one tensor."""

    def __init__(self, units, normalization=None, filter_order=None, **kwargs):
        super().__init__(**kwargs)
        self.units, self.normalization, self.filter_order = units, normalization, filter_order
        self.supports_masking = True

    def build(self, input_shape):
        self.layer = GraphConvolution(
            self.units, self.normalization, self.filter_order, dtype=self.dtype_policy
        )
        self.layer.build(input_shape)
        self.built = True

    def call(self, inputs, mask=None):
        nodes = ops.arange(ops.shape(inputs)[1])
        edges = ops.stack([nodes[:-1], nodes[1:]], axis=1)
        edges = ops.concatenate([edges, ops.flip(edges, axis=1)], axis=0)
        return self.layer(inputs, edges=edges, mask=mask)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        names = ("units", "normalization", "filter_order")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"normalization": "symmetric"}, marks=pytest.mark.slow),
        {"normalization": "symmetric", "filter_order": 3},
    ],
)
def test_convolution_conforms(options, tmp_path):
    check_layer(lambda: OnRing(5, **options), tokens(3, 7, 4), tmp_path)
    check_padding_changes_nothing(OnRing(5, **options), tokens(3, 7, 4))


def test_half_precision_normalizes_scores_in_float32():
    x = tokens(2, 6, 16) * 4
    full = GraphAttention(2, 8)
    expected = to_numpy(full(x))
    half = GraphAttention(2, 8, dtype="mixed_bfloat16")
    half.build(x.shape)
    half.set_weights(full.get_weights())
    edges = edges_of(np.ones((6, 6)))[0]
    for options in ({}, {"edges": edges}):
        outputs, scores = half(x, return_attention_scores=True, **options)
        assert keras.backend.standardize_dtype(scores.dtype) == "bfloat16"
        assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
        outputs = to_numpy(ops.cast(outputs, "float32"))
        assert relative_error(outputs, expected) < 0.05


def test_half_precision_sums_over_hubs_in_float32():
    edges = np.array([[i, 0] for i in range(1, 1001)] + [[0, i] for i in range(1, 1001)])
    options = {"use_bias": False, "kernel_initializer": "ones"}
    for kind, *args in ((GraphConvolution, 1, "symmetric"), (GraphAttention, 1, 2)):
        first, other = (
            to_numpy(kind(*args, dtype=dtype, **options)(np.ones((1, 1001, 2)), edges=edges))
            for dtype in ("mixed_bfloat16", "float32")
        )
        assert relative_error(first[0, :1].astype("float32"), other[0, :1]) < 0.01


def test_half_precision_keeps_what_tells_large_scores_apart():
    # 256 + 1 is 256 in bfloat16.
    layer = GraphAttention(1, 2, self_loops=False, dtype="mixed_bfloat16")
    layer.build((1, 2, 2))
    layer.kernel.assign(np.eye(2))
    layer.attention_kernel.assign([[1.0], [0.0], [0.0], [1.0]])
    x = np.array([[[256.0, 0.0], [256.0, 1.0]]])
    share = 1 / (1 + np.e)
    for options in ({"adjacency": np.ones((2, 2))}, {"edges": edges_of(np.ones((2, 2)))[0]}):
        _, scores = layer(x, return_attention_scores=True, **options)
        scores = to_numpy(ops.cast(scores, "float32")).ravel()
        np.testing.assert_allclose(scores, [share, 1 - share] * 2, rtol=0.01)


@pytest.mark.parametrize(("layer", "penalized"), [("gat", 2), ("gcn", 1), ("filter", 1)])
def test_the_kernels_that_are_penalized(layer, penalized):
    model = graph_classifier(3, 2, layer, l2=0.5)
    weights = [w for n in range(penalized) for w in model.get_layer(f"layer_{n}").weights]
    kernels = [to_numpy(w) for w in weights if "kernel" in w.name]
    want = sum(0.25 * np.sum(kernel**2) for kernel in kernels)
    np.testing.assert_allclose(sum(map(to_numpy, model.losses)), want, rtol=1e-5)
    assert not graph_classifier(3, 2, layer, l2=0.0).losses


@pytest.mark.parametrize("layer", slow_but(["gcn"], ["gcn", "gat", "filter"]))
def test_a_classifier_of_nodes_learns_a_split_graph(layer, tmp_path):
    # Two groups of nodes; only one node of each has a label, and the features are noise.
    rng = np.random.default_rng(0)
    pairs = [(i, j) for i, j in np.ndindex(20, 20) if i != j and (i < 10) == (j < 10)]
    edges = np.array([pair for pair in pairs if rng.random() < 0.6])
    features = rng.normal(size=(20, 6)).astype("float32")
    labels = (np.arange(20) >= 10).astype("int32")
    train = np.isin(np.arange(20), (0, 10)).astype("float32")
    model = graph_classifier(6, 2, layer, dropout=0.1, l2=1e-4)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    model.compile(keras.optimizers.Adam(0.02), loss, weighted_metrics=["accuracy"])
    data = {"features": features[None], "edges": edges[None]}
    model.fit(data, labels[None], sample_weight=train[None], epochs=60, verbose=0)
    logits = to_numpy(model(data))
    assert logits.shape == (1, 20, 2)
    assert (logits[0].argmax(-1) == labels).mean() > 0.9
    saved_and_loaded(model, data, tmp_path)
    if layer == "gat":
        first, last = attention_model(model)(data)
        assert first.shape == (1, 8, len(edges) + 20)
        sums = np.zeros(20)
        np.add.at(sums, edges[:, 1], to_numpy(last)[0, 0, : len(edges)])
        sums += to_numpy(last)[0, 0, len(edges) :]
        np.testing.assert_allclose(sums, 1, atol=1e-5)


def test_the_default_classifier_is_the_paper_s_network_for_cora():
    model = graph_classifier(1433, 7)
    first, last = model.get_layer("layer_0"), model.get_layer("layer_1")
    assert (first.num_heads, first.key_dim, last.num_heads, last.key_dim) == (8, 8, 1, 7)
    assert first.dropout == last.dropout == model.get_layer("dropout_0").rate == 0.6
    assert model.count_params() == 8 * (1433 * 8 + 16 + 8) + (64 * 7 + 14 + 7)
    kernels = [w for layer in (first, last) for w in (layer.kernel, layer.attention_kernel)]
    penalty = sum(np.sum(np.square(to_numpy(w))) for w in kernels)
    assert to_numpy(sum(model.losses)) == pytest.approx(2.5e-4 * penalty, rel=1e-4)


def test_a_saved_layer_keeps_its_eigenvectors(tmp_path):
    # The eigenvalues of a ring come in pairs, whose eigenvectors are not unique.
    layer = SpectralGraphConvolution(ring(6), 2)
    model = keras.Sequential([keras.Input((6, 3)), layer])
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    layer.basis.assign(turned)  # as another backend might have computed them
    x = tokens(2, 6, 3)
    loaded = saved_and_loaded(model, x, tmp_path)
    assert len(loaded.trainable_weights) == 2


@pytest.mark.parametrize(
    "make", [lambda: GraphConvolution(2), lambda: GraphAttention(1, 2)], ids=["gcn", "gat"]
)
def test_an_edge_from_or_to_another_graph_of_the_batch_is_dropped_in_a_compiled_model(make):
    layer = make()
    x = tokens(2, 3, 4)
    expected = to_numpy(layer(x, edges=np.array([[0, 1], [-1, -1], [-1, -1]])))
    # Node 4 of the first graph would be node 1 of the second one.
    outside = np.array([[0, 1], [4, 2], [0, 3]])
    nodes, edges = keras.Input((3, 4)), keras.Input((3, 2), dtype="int32")
    model = keras.Model([nodes, edges], layer(nodes, edges=edges))
    inputs = [x, np.stack([outside] * 2).astype("int32")]
    if keras.backend.backend() == "torch":  # which runs it line by line
        with pytest.raises(ValueError, match=r"Received: \(4, 2\) and 3 more"):
            model.predict_on_batch(inputs)
    else:
        np.testing.assert_allclose(model.predict_on_batch(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda: GraphConvolution(2), lambda: GraphAttention(1, 2)], ids=["gcn", "gat"]
)
@pytest.mark.parametrize(
    ("edges", "received"),
    [
        ([[0, 1], [1, 3]], r"\(1, 3\)$"),
        ([[0, 1], [1, -1], [-2, -2]], r"\(1, -1\) and 1 more$"),
        ([[[0, 1], [1, 2]], [[0, 1], [7, 0]]], r"\(7, 0\)$"),
        ([[0.0, 1.0], [1.0, 0.5]], r"\(1.0, 0.5\)$"),
    ],
    ids=["beyond", "negative", "in one graph", "half"],
)
@pytest.mark.parametrize("convert", [np.array, ops.convert_to_tensor], ids=["array", "tensor"])
def test_edges_of_nodes_that_a_graph_lacks_are_refused(make, edges, received, convert):
    message = r"edges of nodes 0 to 2, or \(-1, -1\) for padding. Received: "
    with pytest.raises(ValueError, match=message + received):
        make()(tokens(2, 3, 4), edges=convert(edges))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: GraphConvolution(2)(x, edges=[[0, 1]]),
        lambda x: GraphAttention(1)(x, edges=[]),
        lambda x: GraphAttention(1)(x, adjacency=np.eye(3).tolist()),
        lambda x: GraphConvolution(2)(x, edges=np.array([[0, 1]]), edge_weights=(1.0,)),
    ],
)
def test_lists_are_refused_with_what_makes_arrays_of_them(call):
    with pytest.raises(
        TypeError, match=r"Received: (\w+)=.*, a (list|tuple): pass numpy.array\(\1"
    ):
        call(tokens(2, 3, 4))


def test_a_negative_weight_of_a_fixed_graph_is_refused():
    with pytest.raises(ValueError, match="with a weight of -1"):
        SpectralGraphConvolution(-ring(6), 2)


def test_a_layer_that_is_never_called_is_saved(tmp_path):
    class Holder(keras.Model):
        def __init__(self):
            super().__init__()
            self.unused = SpectralGraphConvolution(np.eye(6), 2)
            self.used = keras.layers.Dense(2)

        def build(self, input_shape):
            self.used.build(input_shape)

        def call(self, inputs):
            return self.used(inputs)

    models = Holder(), Holder()
    for model in models:
        model(tokens(2, 6, 3))
    models[0].save_weights(tmp_path / "model.weights.h5")
    models[1].load_weights(tmp_path / "model.weights.h5")
