import keras
import numpy as np
import oracles
import pytest
from conformance import saved_and_loaded, to_numpy, tokens
from differentiation import check_gradients, gradients
from keras import ops

from keras_tnattn import GraphAttention


def random_graph(*shape, seed=0):
    return np.random.default_rng(seed).random(shape) < 0.4


def weights(layer):
    """`(kernel, a)` of each head."""
    kernel = to_numpy(layer.kernel)
    a = to_numpy(layer.attention_kernel)
    return list(zip(np.split(kernel, layer.num_heads, axis=1), a.T, strict=True))


@pytest.mark.parametrize("self_loops", [True, False])
def test_the_number_of_scores_of_edges_is_known_before_the_call(self_loops):
    layer = GraphAttention(2, 3, self_loops=self_loops)
    for nodes, count, expected in ((5, 4, 9), (None, 4, None), (5, None, None)):
        inputs, edges = keras.Input((nodes, 6)), keras.Input((count, 2), dtype="int32")
        _, scores = layer(inputs, edges=edges, return_attention_scores=True)
        assert scores.shape == (None, 2, expected if self_loops else count)


def heads_oracle(layer, x, edges):
    """Sums `(B, H, L, J)` and `alpha` `(B, H, L, L)` by the oracle; `edges` is `(B, L, L)`."""
    slope = layer.negative_slope
    pairs = [
        [oracles.graph_attention(nodes, kernel, a, e, slope) for kernel, a in weights(layer)]
        for nodes, e in zip(x, edges, strict=True)
    ]
    return tuple(np.array([[pair[n] for pair in heads] for heads in pairs]) for n in range(2))


@pytest.mark.parametrize("kind", ["bool", "int32", "float32"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("slope", "num_heads"), [(0.2, 3), (0.6, 3), (0.2, 1)])
def test_attention_is_that_of_the_paper(slope, num_heads, batched, kind):
    x = tokens(2, 7, 5)
    graph = random_graph(2, 7, 7) if batched else random_graph(7, 7)
    layer = GraphAttention(num_heads, 4, negative_slope=slope)
    adjacency = -0.25 * graph if kind == "float32" else graph
    got, scores = layer(x, adjacency.astype(kind), return_attention_scores=True)
    edges = np.broadcast_to(graph | np.eye(7, dtype=bool), (2, 7, 7))
    sums, alpha = heads_oracle(layer, x, edges)
    expected = sums.transpose(0, 2, 1, 3).reshape(2, 7, 4 * num_heads)
    np.testing.assert_allclose(to_numpy(scores), alpha, atol=1e-5)
    np.testing.assert_allclose(to_numpy(got), expected, atol=1e-5)
    plain = to_numpy(layer(x, adjacency=adjacency.astype(kind)))
    np.testing.assert_allclose(plain, expected, atol=1e-5)


@pytest.mark.parametrize("self_loops", [False, True])
def test_without_a_graph_it_is_complete(self_loops):
    x = tokens(2, 6, 5)
    layer = GraphAttention(2, self_loops=self_loops)
    edges = np.broadcast_to(self_loops | ~np.eye(6, dtype=bool), (2, 6, 6))
    got, scores = layer(x, return_attention_scores=True)
    sums, alpha = heads_oracle(layer, x, edges)
    np.testing.assert_allclose(to_numpy(scores), alpha, atol=1e-5)
    expected = sums.transpose(0, 2, 1, 3).reshape(2, 6, 10)
    np.testing.assert_allclose(to_numpy(got), expected, atol=1e-5)


@pytest.mark.parametrize("combination", ["concat", "mean"])
def test_bias_and_activation_follow_the_combination(combination):
    x, graph = tokens(2, 6, 5), random_graph(2, 6, 6) | np.eye(6, dtype=bool)
    layer = GraphAttention(3, 4, combination, self_loops=False, activation="softmax")
    layer.build(x.shape)
    assert layer.count_params() == 3 * (5 * 4 + 2 * 4) + (4 if combination == "mean" else 3 * 4)
    bias = tokens(*layer.bias.shape, seed=3)
    layer.bias.assign(bias)
    sums, _ = heads_oracle(layer, x, graph)

    def activation(y):
        return np.exp(y) / np.exp(y).sum(axis=-1, keepdims=True)

    if combination == "mean":
        expected = activation(sums.mean(axis=1) + bias)
    else:
        expected = activation(sums.transpose(0, 2, 1, 3) + bias).reshape(2, 6, 12)
    got = to_numpy(layer(x, graph))
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("combination", ["concat", "mean"])
def test_a_node_without_neighbors_gives_0_and_finite_gradients(combination):
    x, graph = tokens(1, 5, 4), random_graph(5, 5, seed=1)
    graph[2] = False
    layer = GraphAttention(2, 3, combination, self_loops=False, activation="sigmoid")
    layer.build(x.shape)
    start = [to_numpy(w) for w in layer.trainable_weights]
    got, scores = layer(x, graph, return_attention_scores=True)
    got, scores = to_numpy(got), to_numpy(scores)
    assert (got[:, 2] == 0).all()
    assert (got[:, [0, 1, 3, 4]] != 0).all()
    assert (scores[:, :, 2] == 0).all()
    np.testing.assert_allclose(scores[:, :, [0, 1, 3, 4]].sum(axis=-1), 1, atol=1e-5)

    def loss(x, *variables):
        return ops.sum(layer.stateless_call(variables, [], x, graph)[0] ** 2)

    grads = gradients(loss, [x, *start])
    assert all(np.isfinite(grad).all() and np.abs(grad).max() > 0 for grad in grads)


def test_gradients_are_those_of_finite_differences():
    x, graph = tokens(2, 5, 3), random_graph(2, 5, 5)
    layer = GraphAttention(2, 3, self_loops=False, use_bias=False)
    layer.build(x.shape)
    weight = tokens(2, 2, 5, 3, seed=4)
    start = [to_numpy(w) for w in layer.trainable_weights]

    def run(x, *variables):
        outputs, _ = layer.stateless_call(variables, [], x, graph)
        outputs = ops.transpose(ops.reshape(outputs, (2, 5, 2, 3)), (0, 2, 1, 3))
        return ops.sum(ops.convert_to_tensor(weight) * outputs)

    def loss(x, kernel, a):
        total = 0
        for h in range(2):
            part = kernel[:, 3 * h : 3 * h + 3]
            for n in range(2):
                y, _ = oracles.graph_attention(x[n], part, a[:, h], graph[n])
                total += np.sum(weight[n, h] * y)
        return total

    check_gradients(run, loss, [x, *start], abs=1e-4)


def test_masked_nodes_are_out_of_every_graph():
    x, graph = tokens(2, 6, 4), random_graph(2, 6, 6)
    mask = np.array([[1, 1, 0, 1, 1, 0], [1] * 6], bool)
    layer = GraphAttention(2, 3)
    poisoned = np.where(mask[..., None], x, np.nan)
    got, scores = layer(poisoned, graph, mask=mask, return_attention_scores=True)
    edges = (graph | np.eye(6, dtype=bool)) & mask[:, None] & mask[:, :, None]
    sums, alpha = heads_oracle(layer, x, edges)
    expected = sums.transpose(0, 2, 1, 3).reshape(2, 6, 6)
    np.testing.assert_allclose(to_numpy(got), expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(scores), alpha, atol=1e-5)


def test_the_mask_of_keras_arrives_beside_a_graph():
    x, graph = tokens(2, 6, 4), random_graph(2, 6, 6)
    x[0, 2:4] = 0
    inputs, adjacency = keras.Input((None, 4)), keras.Input((None, None), dtype="bool")
    layer = GraphAttention(2, 3)
    outputs = layer(keras.layers.Masking()(inputs), adjacency)
    model = keras.Model([inputs, adjacency], outputs)
    mask = np.ones((2, 6), bool)
    mask[0, 2:4] = False
    expected = to_numpy(layer(x, graph, mask=mask))
    got = model.predict([x, graph], verbose=0)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert (got[0, 2:4] == 0).all()
    # An explicit mask goes before the one that comes with the tensor.
    masked = keras.layers.Masking()(x)
    everything = np.ones((2, 6), bool)
    got, expected = layer(masked, graph, mask=everything), layer(x, graph)
    np.testing.assert_allclose(to_numpy(got), to_numpy(expected), atol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_functional_model_trains_saves_and_takes_any_size(jit_compile, tmp_path):
    inputs, adjacency = keras.Input((None, 4)), keras.Input((None, None))
    x = GraphAttention(2, 3, dropout=0.3, activation="elu")(inputs, adjacency=adjacency)
    assert x.shape == (None, None, 6)
    outputs = GraphAttention(2, 1, "mean")(x, adjacency)
    assert outputs.shape == (None, None, 1)
    model = keras.Model([inputs, adjacency], outputs)
    model.compile("adam", "mse", jit_compile=jit_compile)
    graph = random_graph(4, 5, 5).astype("float32")
    model.fit([tokens(4, 5, 4), graph], np.ones((4, 5, 1)), verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    data = [tokens(2, 6, 4), random_graph(2, 6, 6).astype("float32")]
    saved_and_loaded(model, data, tmp_path)


def test_coefficients_are_dropped_in_training_only():
    x = tokens(2, 50, 4)
    layer = GraphAttention(1, 4, dropout=0.5)
    expected, alpha = layer(x, return_attention_scores=True)
    got, coefficients = layer(x, return_attention_scores=True, training=True)
    np.testing.assert_allclose(to_numpy(coefficients), to_numpy(alpha), atol=1e-6)
    assert np.abs(to_numpy(got) - to_numpy(expected)).max() > 0.01
    again = layer(x, training=False)
    np.testing.assert_array_equal(to_numpy(again), to_numpy(expected))


def test_large_scores_are_normalized():
    x = 1e4 * tokens(1, 6, 4)
    layer = GraphAttention(2, 3)
    got, alpha = layer(x, random_graph(6, 6), return_attention_scores=True)
    assert np.isfinite(to_numpy(got)).all()
    np.testing.assert_allclose(to_numpy(alpha).sum(axis=-1), 1, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="counts bytes of tf.function")
def test_no_tensor_is_larger_than_the_scores():
    import tensorflow as tf

    layer = GraphAttention(2, 16)
    layer.build((None, None, 8))
    traced = tf.function(layer).get_concrete_function(tf.TensorSpec((3, 40, 8)))
    sizes = [t.shape.num_elements() for op in traced.graph.get_operations() for t in op.outputs]
    assert max(sizes) == 3 * 2 * 40 * 40


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow")
def test_an_exported_model_takes_any_graph(tmp_path):
    import tensorflow as tf

    inputs, adjacency = keras.Input((None, 4)), keras.Input((None, None), dtype="bool")
    model = keras.Model([inputs, adjacency], GraphAttention(2, 3)(inputs, adjacency))
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for batch, length in [(1, 1), (3, 9)]:
        data = [tokens(batch, length, 4), random_graph(batch, length, length)]
        np.testing.assert_allclose(loaded.serve(data), model(data), atol=1e-6)


@pytest.mark.parametrize("form", ["adjacency", "edges"])
def test_dropout_drops_coefficients_in_training_alone(form):
    # Each node receives from one other: its coefficient is 1, or after dropout 0 or 2.
    senders = np.roll(np.arange(40), 1)
    edges = np.stack([senders, np.arange(40)], axis=1)
    graph = {"edges": edges} if form == "edges" else {"adjacency": np.eye(40)[senders]}
    layer = GraphAttention(1, 3, self_loops=False, dropout=0.5)
    x = np.random.default_rng(0).normal(size=(1, 40, 4)).astype("float32")
    whole = to_numpy(layer(x, **graph, training=False))
    ratios = to_numpy(layer(x, **graph, training=True)) / whole
    np.testing.assert_allclose(ratios, np.round(ratios), atol=1e-4)
    assert set(np.round(ratios).ravel().tolist()) == {0.0, 2.0}
