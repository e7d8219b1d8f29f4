import json

import keras
import numpy as np
import oracles
import pytest
from conformance import check_padding_changes_nothing, relative_error, to_numpy, tokens
from differentiation import check_gradients, gradients
from keras import ops

from keras_tnattn import GraphTensorNetwork
from keras_tnattn.ops.reflections import oblique_rows, orthonormal_columns

DIRECTIONS = ("later", "earlier", "both")


def layer_oracle(x, damping, receive_from, projection):
    a = oracles.in_direction(oracles.time_adjacency(x.shape[1], damping), receive_from)
    return np.stack([oracles.graph_tensor_network(s, a, projection) for s in x])


def assert_projector(p, rank):
    np.testing.assert_allclose(p @ p, p, atol=2e-6)
    np.testing.assert_allclose(p, p.T, atol=1e-6)
    assert np.trace(p) == pytest.approx(rank, abs=1e-4)


@pytest.mark.parametrize("receive_from", DIRECTIONS)
@pytest.mark.parametrize("rank", [None, 1, 3, 6])
def test_layer_is_that_of_the_paper(rank, receive_from):
    x = tokens(2, 9, 6)
    layer = GraphTensorNetwork(rank, 0.7, receive_from)
    got = to_numpy(layer(x))
    p = np.eye(6)
    if rank is not None:
        p = oracles.projector(to_numpy(layer.reflections))
    np.testing.assert_allclose(to_numpy(layer.propagation_matrix()), p, atol=1e-5)
    np.testing.assert_allclose(got, layer_oracle(x, 0.7, receive_from, p), atol=1e-5)
    assert layer.count_params() == 6 * (rank or 0)


def test_default_is_the_fast_variant_at_damping_nine_tenths():
    x = tokens(1, 40, 2)
    got = to_numpy(GraphTensorNetwork()(x))
    np.testing.assert_allclose(got, layer_oracle(x, 0.9, "later", np.eye(2)), atol=1e-5)


@pytest.mark.parametrize("rank", [None, 5])
def test_tensors_are_filtered_as_their_features_in_c_order(rank):
    x = tokens(2, 6, 2, 3, 2)
    layer = GraphTensorNetwork(rank, 0.5)
    got = to_numpy(layer(x))
    assert got.shape == x.shape
    p = to_numpy(layer.propagation_matrix())
    expected = layer_oracle(x.reshape(2, 6, 12), 0.5, "later", p)
    np.testing.assert_allclose(got.reshape(2, 6, 12), expected, atol=1e-5)


@pytest.mark.parametrize("receive_from", DIRECTIONS)
def test_tokens_receive_from_where_they_are_told_to(receive_from):
    x = tokens(1, 70, 4)
    layer = GraphTensorNetwork(2, 0.99, receive_from)
    before = to_numpy(layer(x))[0]
    x[0, 40] += 10
    moved = (to_numpy(layer(x))[0] != before).any(axis=-1)
    assert moved[40]
    assert moved[:40].all() == (receive_from != "earlier")
    assert moved[:40].any() == (receive_from != "earlier")
    assert moved[41:].all() == (receive_from != "later")
    assert moved[41:].any() == (receive_from != "later")


@pytest.mark.parametrize("receive_from", DIRECTIONS)
@pytest.mark.parametrize("shape", [(3, 7, 4), (3, 40, 2, 2)])
def test_padding_changes_nothing(shape, receive_from):
    check_padding_changes_nothing(GraphTensorNetwork(3, receive_from=receive_from), tokens(*shape))


def test_a_masked_token_keeps_its_place():
    x = tokens(1, 5, 3)
    mask = np.array([[1, 1, 0, 1, 1]], bool)
    got = to_numpy(GraphTensorNetwork(damping=0.5)(x, mask=mask))
    expected = layer_oracle(np.where(mask[..., None], x, 0), 0.5, "later", np.eye(3))
    np.testing.assert_allclose(got, np.where(mask[..., None], expected, 0), atol=1e-6)


def test_gradients_are_those_of_finite_differences():
    x, weight = tokens(2, 8, 5) / 2, tokens(2, 8, 5, seed=1)
    layer = GraphTensorNetwork(2, 0.8, "both")
    layer.build(x.shape)
    vectors = to_numpy(layer.reflections).astype("float64")

    def run(x, vectors):
        layer_outputs, _ = layer.stateless_call([vectors], [], x)
        return ops.sum(ops.convert_to_tensor(weight) * layer_outputs)

    def loss(x, vectors):
        return np.sum(weight * layer_oracle(x, 0.8, "both", oracles.projector(vectors)))

    check_gradients(run, loss, [x, vectors], abs=1e-4, step=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_p_is_a_projector_at_every_step_of_training(jit_compile):
    x = tokens(4, 12, 6)
    layer = GraphTensorNetwork(2)
    model = keras.Sequential([keras.Input((None, 6)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    before = to_numpy(layer.propagation_matrix())
    for _ in range(8):
        model.train_on_batch(x, x[..., :1])
        after = to_numpy(layer.propagation_matrix())
        assert_projector(after, 2)
        assert np.abs(after - before).max() > 1e-6
        before = after


@pytest.mark.parametrize("jit_compile", [False, True])
def test_an_oblique_p_is_idempotent_and_bounded_at_every_step_of_training(jit_compile):
    x = tokens(4, 12, 6)
    layer = GraphTensorNetwork(2, projection="oblique", max_projection_norm=1.5)
    model = keras.Sequential([keras.Input((None, 6)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=jit_compile)
    assert_projector(to_numpy(layer.propagation_matrix()), 2)
    for _ in range(8):
        model.train_on_batch(x, 3 * x[..., :1])
        p = to_numpy(layer.propagation_matrix())
        np.testing.assert_allclose(p @ p, p, atol=2e-6)
        assert np.trace(p) == pytest.approx(2, abs=1e-4)
        assert np.linalg.norm(p, 2) < 1.5
    assert np.abs(p - p.T).max() > 0.01
    expected = layer_oracle(x, 0.9, "later", p)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e6, 1e30])
def test_any_shear_gives_a_bounded_idempotent_matrix_and_finite_gradients(scale):
    columns = np.linalg.qr(tokens(6, 2))[0]
    shear, weight = scale * tokens(2, 6, seed=1), tokens(6, 6, seed=2)
    rows = to_numpy(oblique_rows(columns, shear.astype("float32"), 3.0))
    p = columns @ rows
    np.testing.assert_allclose(p @ p, p, atol=5e-6)
    assert np.linalg.norm(p, 2) <= 3 + 1e-5

    def loss(columns, shear):
        products = ops.matmul(columns, oblique_rows(columns, shear, 3.0))
        return ops.sum(ops.multiply(weight, products))

    for grad in gradients(loss, [columns, shear.astype("float32")]):
        assert np.isfinite(grad).all()


def test_an_oblique_matrix_within_the_bound_is_reached():
    # Of a given oblique P with norm 2, the rows R = Q^T P come from one shear.
    columns = np.linalg.qr(tokens(6, 2).astype("float64"))[0]
    wanted = tokens(2, 6, seed=1).astype("float64")
    wanted -= wanted @ columns @ columns.T
    wanted *= 3**0.5 / np.linalg.norm(wanted, 2)
    p = columns @ (columns.T + wanted)
    assert np.linalg.norm(p, 2) == pytest.approx(2)
    bound = 4.0**2 - 1
    shear = wanted * (bound / (bound - np.linalg.norm(wanted) ** 2)) ** 0.5
    rows = oblique_rows(columns.astype("float32"), shear.astype("float32"), 4.0)
    np.testing.assert_allclose(columns @ to_numpy(rows), p, atol=1e-5)


def unfortunate_starts():
    repeated = np.repeat(tokens(6, 1), 3, axis=1)
    opposite = repeated * [1, -1, 2]
    some_zero = tokens(6, 3) * [1, 0, 1]
    starts = {"zero": 0 * repeated, "some_zero": some_zero, "repeated": repeated}
    starts |= {"opposite": opposite, "units": np.eye(6, 3), "tiny": 1e-14 * repeated}
    starts |= {"underflow": 1e-30 * repeated, "huge": 1e18 * repeated, "overflow": 1e25 * repeated}
    return {name: start.astype("float32") for name, start in starts.items()}


@pytest.mark.parametrize("name", unfortunate_starts())
def test_any_start_gives_a_projector_and_finite_gradients(name):
    start, weight = unfortunate_starts()[name], tokens(6, 6)

    def loss(vectors):
        columns = orthonormal_columns(vectors)
        products = ops.matmul(columns, ops.transpose(columns))
        return ops.sum(ops.convert_to_tensor(weight) * products)

    (grad,) = gradients(loss, [start])
    assert np.isfinite(grad).all()
    columns = to_numpy(orthonormal_columns(ops.convert_to_tensor(start)))
    np.testing.assert_allclose(columns.T @ columns, np.eye(3), atol=2e-6)
    assert_projector(columns @ columns.T, 3)


def test_large_projectors_are_idempotent():
    layer = GraphTensorNetwork(150)
    layer.build((None, None, 256))
    assert_projector(to_numpy(layer.propagation_matrix()), 150)


@pytest.mark.slow
def test_every_subspace_is_as_likely_at_the_start():
    total = np.zeros((4, 4))
    for _ in range(300):
        layer = GraphTensorNetwork(1)
        layer.build((None, None, 4))
        total += to_numpy(layer.propagation_matrix())
    np.testing.assert_allclose(total / 300, np.eye(4) / 4, atol=0.06)


@pytest.mark.parametrize(("policy", "bound"), [("mixed_bfloat16", 4e-3), ("mixed_float16", 5e-4)])
def test_half_precision_is_rounded_at_the_ends_only(policy, bound):
    x = tokens(2, 300, 16)
    full = GraphTensorNetwork(5, 0.99)
    half = GraphTensorNetwork(5, 0.99, dtype=policy)
    half.build(x.shape)
    expected = to_numpy(full(x))
    half.set_weights(full.get_weights())
    got = to_numpy(ops.cast(half(x), "float32"))
    assert relative_error(got, expected) < bound
    assert_projector(to_numpy(half.propagation_matrix()), 5)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow")
def test_an_exported_model_takes_any_length(tmp_path):
    import tensorflow as tf

    inputs = keras.Input((None, 4))
    outputs = GraphTensorNetwork(2, receive_from="both")(keras.layers.Masking()(inputs))
    model = keras.Model(inputs, outputs)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for batch, length in [(1, 1), (3, 33), (1, 2000)]:
        x = tokens(batch, length, 4)
        x[:, length // 2] = 0
        np.testing.assert_allclose(loaded.serve(x), model(x), rtol=1e-5, atol=1e-5)


def test_numpy_numbers_do_not_reach_the_config():
    config = GraphTensorNetwork(damping=np.float32(0.5)).get_config()
    assert json.loads(json.dumps(config))["time_graph"]["config"]["damping"] == 0.5


@pytest.mark.parametrize("damping", [0.3, 0.8, 0.95])
def test_the_undirected_graph_is_a_low_pass_filter(damping):
    frequencies = np.linspace(0, np.pi, 33)
    middle = np.arange(-400, 401)
    waves = np.cos(np.outer(frequencies, middle))[..., None].astype("float32")
    layer = GraphTensorNetwork(damping=damping, receive_from="both")
    gains = to_numpy(layer(waves))[:, 400, 0]  # the waves are 1 there
    poisson = (1 - damping**2) / (1 - 2 * damping * np.cos(frequencies) + damping**2)
    np.testing.assert_allclose(gains, (1 + poisson) / 2, rtol=1e-5)
    assert (np.diff(gains) < 0).all()
    assert gains[0] == pytest.approx(1 / (1 - damping), rel=1e-5)
    assert gains[-1] == pytest.approx(1 / (1 + damping), rel=1e-5)


def test_any_undirected_graph_amplifies_a_signal_of_one_sign_most():
    # Not always low-pass: a signal that alternates along strong edges is amplified, too.
    rng = np.random.default_rng(0)
    adjacency = np.maximum(rng.normal(size=(12, 12)), 0).astype("float32")
    adjacency = np.triu(adjacency, 1) + np.triu(adjacency, 1).T
    identity = np.eye(12, dtype="float32")
    matrix = to_numpy(GraphTensorNetwork()(identity[None], adjacency=adjacency))[0]
    np.testing.assert_allclose(matrix, identity + adjacency, rtol=1e-6)
    gains, signals = np.linalg.eigh(matrix)
    assert len(set(np.sign(signals[:, -1]))) == 1
    assert np.abs(gains[:-1]).max() < gains[-1]
    assert gains[0] < -1
