"""Tensor-network attention against the contraction of the whole network, site by site."""

import itertools

import keras
import numpy as np
import pytest
from conformance import check_layer, check_padding_changes_nothing, to_numpy, tokens
from import_path import run_python
from keras import ops
from slow_cases import slow_but

from keras_tnattn.layers import MPSClassifier, TNAttention
from keras_tnattn.models.linear_attention import linear_attention_layer, local_residual
from keras_tnattn.ops import scan

pytestmark = pytest.mark.usefixtures("float64")

# On JAX some products come out as exact as float32 only.
EXACT = {"rtol": 1e-4} if keras.backend.backend() == "jax" else {"rtol": 1e-8, "atol": 1e-10}

OPTIONS = [
    {"boundary": boundary, "trainable_boundary": trained, "attention_order": order}
    for boundary, trained, order in (
        ("closed", False, 1),
        ("closed", False, 2),
        ("open", False, 1),
        ("open", True, 2),
    )
]


def make_layer(length=5, uniform=True, **options):
    """A float64 layer far from the identity: any swapped pair of axes changes a number."""
    layer = TNAttention(
        4,
        bond_dim=3,
        uniform=uniform,
        num_sites=None if uniform else length,
        initial_deviation=0.6,
        dtype="float64",
        **options,
    )
    layer.build((None, length, 2))
    # One eigenvalue of A_0 stands out; its eigenvectors left and right are no coordinate axes.
    attention = to_numpy(layer.attention_tensor)
    attention[(..., 0, 0, *[0] * layer.attention_order)] += 2
    assign(layer, [attention, *layer.get_weights()[1:]])
    return layer


def assign(layer, values):
    """Sets the weights; arrays as such might go through float32."""
    for weight, value in zip(layer.weights, values, strict=True):
        weight.assign(ops.convert_to_tensor(value, "float64"))


def tensors(layer, length):
    """Attention and transformation tensors of each site and the boundary, in NumPy."""
    attention, transformation = to_numpy([layer.attention_tensor, layer.transformation_tensor])
    if layer.uniform:
        attention, transformation = [attention] * length, [transformation] * length
    if layer.boundary == "closed":
        return attention, transformation, np.eye(layer.bond_dim)
    if layer.trainable_boundary:
        left, right = to_numpy([layer.left_boundary, layer.right_boundary])
    else:
        zero = (0,) * layer.attention_order
        left = dominant_eigenvector(attention[0][(..., *zero)].T)
        right = dominant_eigenvector(attention[-1][(..., *zero)])
    return attention, transformation, np.outer(right, left)


def dominant_eigenvector(matrix):
    values, vectors = np.linalg.eig(matrix)
    vector = vectors[:, np.argmax(np.abs(values))]
    return np.real(vector / np.linalg.norm(vector))


def local_weights(layer, x):
    """`W(j)` of one chain, entry by entry, and the norms of its contexts and of their sides."""
    x = x.astype("float64")
    length, dim = x.shape
    attention, transformation, boundary = tensors(layer, length)
    matrices = []
    for j in range(length):
        matrix = np.zeros((layer.bond_dim, layer.bond_dim))
        for states in itertools.product(range(dim), repeat=layer.attention_order):
            matrix += attention[j][(..., *states)] * np.prod([x[j, s] for s in states])
        matrices.append(matrix)
    weights, norms, side_norms = [], [], []
    for j in range(length):
        left = np.linalg.multi_dot([np.eye(layer.bond_dim), np.eye(layer.bond_dim), *matrices[:j]])
        right = np.linalg.multi_dot(
            [np.eye(layer.bond_dim), np.eye(layer.bond_dim), *matrices[j + 1 :]]
        )
        norms.append(np.linalg.norm(right @ boundary @ left))
        side_norms.append(np.linalg.norm(right) * np.linalg.norm(left))
        weights.append(
            [
                [
                    np.trace(boundary @ left @ transformation[j][:, :, s, k] @ right)
                    for k in range(transformation[j].shape[3])
                ]
                for s in range(dim)
            ]
        )
    return np.array(weights), np.array(norms), np.array(side_norms)


def align(got, expected):
    """The sign of a pair of eigenvectors is free: takes that of the expected numbers."""
    return got * np.sign(np.sum(got * expected))


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("order", [1, 2])
def test_a_site_with_some_features_of_zero_is_there(uniform, order):
    layer = make_layer(4, uniform, normalize=False, attention_order=order)
    x = tokens(1, 4, 2)
    x[0, 1, 0] = x[0, 3, 1] = 0
    _, details = layer(x, return_details=True)
    expected, _, _ = local_weights(layer, x[0])
    np.testing.assert_allclose(to_numpy(details["local_weights"])[0], expected, **EXACT)


@pytest.mark.parametrize("normalize", [False, True, "each"])
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("length", [1, 3, 6])
def test_equals_the_contraction(length, options, uniform, normalize):
    layer = make_layer(length, uniform, normalize=normalize, **options)
    x = tokens(2, length, 2, seed=length)
    outputs, details = to_numpy(layer(x, return_details=True))
    weights = details["local_weights"]
    eigenvectors = options["boundary"] == "open" and not options["trainable_boundary"]
    for i in range(2):
        expected, norms, side_norms = local_weights(layer, x[i])
        if normalize:
            expected /= (side_norms if normalize == "each" else norms)[:, None, None]
        if eigenvectors:
            expected = align(expected, weights[i])
        np.testing.assert_allclose(weights[i], expected, **EXACT)
        y = np.einsum("nd,ndk->nk", x[i], expected)
        np.testing.assert_allclose(outputs[i], y, **EXACT)


@pytest.mark.parametrize("boundary", ["closed", "open"])
@pytest.mark.parametrize("length", [32, 70, 1100])
def test_any_length_equals_one_product_after_the_other(length, boundary):
    layer = make_layer(boundary=boundary, trainable_boundary=boundary == "open")
    x = tokens(1, length, 2)
    attention, _, boundary = tensors(layer, 1)
    matrices = np.einsum("xys,ns->nxy", attention[0], x[0])
    prefix, suffix = [np.eye(3)], [np.eye(3)]
    for j in range(length - 1):
        prefix.append(unit(prefix[-1] @ matrices[j]))
        suffix.append(unit(matrices[length - 1 - j] @ suffix[-1]))
    contexts = [unit(r @ boundary @ a) for r, a in zip(suffix[::-1], prefix, strict=True)]
    transformation = to_numpy(layer.transformation_tensor)
    expected = np.einsum("nba,abdk,nd->nk", contexts, transformation, x[0])
    np.testing.assert_allclose(to_numpy(layer(x))[0], expected, rtol=1e-6, atol=1e-9)
    # And so at a length unknown beforehand.
    inputs = keras.Input((None, 2), dtype="float64")
    model = keras.Model(inputs, layer(inputs))
    np.testing.assert_allclose(model.predict(x, verbose=0)[0], expected, rtol=1e-6, atol=1e-9)


def unit(matrix):
    return matrix / np.linalg.norm(matrix)


def test_bias_and_activation():
    plain, full = make_layer(), make_layer(use_bias=True, activation="tanh")
    assign(full, [*plain.get_weights(), np.arange(4.0)])
    x = tokens(2, 5, 2)
    expected = np.tanh(to_numpy(plain(x)) + np.arange(4.0))
    np.testing.assert_allclose(to_numpy(full(x)), expected, **EXACT)


def test_ring_commutes_with_shifts():
    layer = make_layer()
    x = tokens(2, 7, 2)
    shifted = to_numpy(layer(np.roll(x, 3, axis=1)))
    np.testing.assert_allclose(shifted, np.roll(to_numpy(layer(x)), 3, axis=1), **EXACT)


def linear_attention(phi, query, key, value, exact):
    """The sum over pairs of sites that the tensor network is to give, site by site."""
    q, k, v = phi @ query, phi @ key, phi @ value
    y = np.zeros((len(phi), value.shape[1]))
    for j in range(len(phi)):
        others = [i for i in range(len(phi)) if i != j]
        for i in others:
            idle = 1.0 if exact else np.prod([q[n] @ k[n] for n in others if n != i])
            y[j] += idle * (q[j] @ k[i]) * v[i]
        for i, m in itertools.combinations(others, 2):
            idle = np.prod([q[n] @ k[n] for n in others if n not in (i, m)])
            y[j] += 0.0 if exact else idle * (q[i] @ k[m]) * (q[m] @ k[i]) * v[j]
    return y


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("dim", [2, 3])
def test_linear_attention_is_a_special_case(dim, length, exact):
    rng = np.random.default_rng(dim * length)
    query, key, value = rng.normal(size=(3, dim, dim))
    value = np.concatenate([value, value[:, :1]], axis=1)
    phi = tokens(2, length, dim)
    phi /= np.linalg.norm(phi, axis=-1, keepdims=True)
    layer = linear_attention_layer(query, key, value, exact, dtype="float64")
    assert layer.bond_dim == dim**2 + 2
    outputs = to_numpy(layer(phi))
    queries = linear_attention_layer(query, key, exact=exact, dtype="float64")
    for i in range(2):
        sites = phi[i].astype("float64")
        expected = linear_attention(sites, query, key, value, exact)
        # The norm of an embedding is 1 within float32, as inputs are.
        np.testing.assert_allclose(outputs[i], expected, rtol=1e-4, atol=1e-5)
        expected = linear_attention(sites, query, key, query, exact)
        np.testing.assert_allclose(to_numpy(queries(phi))[i], expected, rtol=1e-4, atol=1e-5)
    if exact:
        residual = to_numpy(local_residual(phi, *(query, key, value)))
        full = np.einsum("bjd,bid,bik->bjk", phi @ query, phi @ key, phi @ value)
        np.testing.assert_allclose(outputs + residual, full, rtol=1e-4, atol=1e-5)


def test_linear_attention_names_kernels_that_do_not_fit():
    with pytest.raises(ValueError, match=r"query_kernel\.shape=\(2, 3\)"):
        linear_attention_layer(np.ones((2, 3)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="query_kernel of rank 1"):
        linear_attention_layer(np.ones((2, 2)), np.eye(2), np.eye(2))


@pytest.mark.parametrize("gap", [0.05, 5e-3, 1e-3, 1e-4])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "per_gap"), [("float64", 1e-12), ("float32", 1e-6)])
def test_eigenvectors_converge_at_small_gaps(dtype, per_gap, sign, gap):
    # The error is that of rounding, amplified by the condition: of the order of eps / gap.
    vectors = np.random.default_rng(0).normal(size=(4, 4))
    matrix = sign * vectors @ np.diag([1.0, 1 - gap, -0.6, 0.3]) @ np.linalg.inv(vectors)
    left, right = to_numpy(scan.dominant_eigenvectors(ops.convert_to_tensor(matrix, dtype)))
    condition = np.linalg.cond(vectors) ** 2
    for vector, expected in ((right, vectors[:, 0]), (left, np.linalg.inv(vectors)[0])):
        expected = expected / np.linalg.norm(expected)
        error = np.linalg.norm(vector * np.sign(vector @ expected) - expected)
        assert error < condition * per_gap / gap
    assert left @ right > 0


@pytest.mark.parametrize("boundary", ["closed", "open"])
def test_ten_thousand_sites_neither_overflow_nor_vanish(boundary):
    layer = TNAttention(bond_dim=4, boundary=boundary, initial_deviation=0.5)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e3):
        x = scale * rng.normal(size=(1, 10_000, 3)).astype("float32")
        y = to_numpy(layer(x)) / scale
        assert np.isfinite(y).all()
        assert 0.01 < np.abs(y).mean() < 100


@pytest.mark.parametrize("boundary", ["closed", "open"])
@pytest.mark.parametrize("length", [10, 1000])
def test_a_chain_of_any_length_starts_near_a_multiple_of_the_identity(length, boundary):
    x = np.random.default_rng(0).uniform(size=(4, length, 3)).astype("float32")
    multiples, deviations = [], []
    for seed in range(4):
        keras.utils.set_random_seed(seed)
        y = to_numpy(TNAttention(boundary=boundary)(x))
        multiples.append((x * y).sum() / (x * x).sum())
        deviations.append(((y - multiples[-1] * x) ** 2).sum() / (y**2).sum())
    # The median: a draw may put the boundary across what the chain tends to.
    assert (0.2 if boundary == "closed" else 0.6) < np.median(multiples) < 1.3
    # Not exactly: the noise on the transformation tensor turns it.
    assert np.median(deviations) < 0.7


def test_starts_as_the_identity():
    x = np.random.default_rng(0).uniform(size=(2, 1000, 3)).astype("float32")
    chains = ({}, {"boundary": "open", "trainable_boundary": True})
    each = ({"normalize": "each", **chain} for chain in chains)
    for options in (*chains, *each, {"attention_order": 2}):
        y = to_numpy(TNAttention(initial_deviation=0.0, **options)(x))
        np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("uniform", "normalize"), [(True, True), (False, False)])
@pytest.mark.parametrize(
    "options", slow_but([OPTIONS[0], OPTIONS[-1]], [OPTIONS[0], *OPTIONS[2:]]), ids=str
)
def test_gradients_equal_finite_differences(options, normalize, uniform):
    length = 35 if uniform else 3
    layer = make_layer(length, uniform, normalize=normalize, **options)
    rng = np.random.default_rng(0)
    # Chains that are not normalized stay within a few orders of magnitude.
    x = rng.uniform(0.2, 0.6, size=(1, length, 2)).astype("float32")
    direction = [rng.normal(size=w.shape) for w in layer.weights]
    target = rng.normal(size=(1, length, 4)).astype("float32")
    before = layer.get_weights()

    def loss_at(step):
        assign(layer, [w + step * d for w, d in zip(before, direction, strict=True)])
        return float(np.sum(target * to_numpy(layer(x))))

    step = 1e-5
    expected = (loss_at(step) - loss_at(-step)) / (2 * step)
    assign(layer, before)
    got = sum(np.sum(g * d) for g, d in zip(gradients(layer, x, target), direction, strict=True))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8)


def gradients(layer, x, target):
    """Of `sum(target * layer(x))` by the weights, by a step of plain gradient descent."""
    model = keras.Sequential([keras.Input((None, x.shape[-1]), dtype="float64"), layer])
    rate = 2.0**-10
    before = layer.get_weights()
    model.compile(keras.optimizers.SGD(rate), _weighted_sum, jit_compile=False)
    model.fit(x, target, verbose=0)
    after = layer.get_weights()
    assign(layer, before)
    return [(old - new) / rate for old, new in zip(before, after, strict=True)]


def _weighted_sum(target, outputs):
    return ops.sum(ops.cast(target, outputs.dtype) * outputs, axis=(1, 2))


@pytest.mark.parametrize("normalize", [False, True, "each"])
@pytest.mark.parametrize("options", OPTIONS)
def test_sites_of_zeros_do_not_change_the_other_outputs(options, normalize):
    layer = make_layer(normalize=normalize, **options)
    x = tokens(2, 6, 2)
    with_zeros = np.insert(x, [2, 2, 6], 0, axis=1)
    got = to_numpy(layer(with_zeros))
    np.testing.assert_allclose(got[:, [0, 1, 4, 5, 6, 7]], to_numpy(layer(x)), **EXACT)
    assert (got[:, [2, 3, 8]] == 0).all()


def test_a_site_whose_products_underflow_does_not_hide_the_others():
    layer = TNAttention(bond_dim=3, attention_order=2, dtype="float32")
    x = tokens(1, 6, 2)
    x[0, 2] = 1e-30
    assert (to_numpy(layer(x))[0, [0, 1, 3, 4, 5]] != 0).all()


def test_sites_of_zeros_give_finite_gradients():
    layer = TNAttention(bond_dim=3)
    model = keras.Sequential([keras.Input((6, 2)), layer])
    model.compile("sgd", "mse")
    x = np.ones((2, 6, 2), "float32")
    x[0, 1:3] = x[1] = 0
    before = layer.get_weights()
    model.fit(x, np.ones_like(x), verbose=0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()


CONFORMING = {
    "open": {"boundary": "open", "trainable_boundary": True, "attention_order": 2},
    "per_site": {"boundary": "open", "uniform": False, "num_sites": 7, "use_bias": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFORMING)
def test_conforms(name, tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(size=(3, 7, 4)).astype("float32")
    options = {"bond_dim": 3, **CONFORMING[name]}
    check_layer(lambda: TNAttention(**options), inputs, tmp_path)
    if options.get("uniform", True):
        check_padding_changes_nothing(TNAttention(**options), inputs)


def test_local_weights_of_unknown_shape():
    layer = TNAttention(5, bond_dim=2)
    outputs, details = layer(keras.Input((None, 3)), return_details=True)
    assert outputs.shape == (None, None, 5)
    assert details["local_weights"].shape == (None, None, 3, 5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports a SavedModel")
@pytest.mark.slow
def test_exports_with_any_batch_and_length(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), TNAttention(2, bond_dim=2)])
    x = tokens(2, 40, 3)
    np.savez(tmp_path / "data.npz", x=x, y=model.predict(x, verbose=0))
    model.export(tmp_path / "model", verbose=False)
    code = (
        "import sys, numpy as np, tensorflow as tf\n"
        "data = np.load(sys.argv[1] + '/data.npz')\n"
        "model = tf.saved_model.load(sys.argv[1] + '/model')\n"
        "assert np.abs(model.serve(data['x']) - data['y']).max() < 1e-5\n"
        "assert model.serve(data['x'][:1, :5]).shape == (1, 5, 2)"
    )
    run_python("-c", code, tmp_path)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="lengths are static on JAX")
@pytest.mark.parametrize("make", slow_but([TNAttention], [TNAttention, MPSClassifier]))
def test_tensors_per_site_work_at_a_length_unknown_to_the_trace(make, tmp_path):
    import tensorflow as tf

    layer = make(3, bond_dim=2, uniform=False, num_sites=4)
    inputs = keras.Input((4, 2))
    model = keras.Model(inputs, layer(keras.layers.Masking()(inputs)))
    x = np.random.default_rng(0).uniform(0.1, 1, size=(2, 4, 2)).astype("float32")
    x[0, 1] = 0
    expected = to_numpy(layer(x, mask=np.any(x != 0, axis=-1)))
    signature = tf.TensorSpec((None, None, 2))
    traced = tf.function(model, input_signature=[signature])
    np.testing.assert_allclose(traced(x), expected, rtol=1e-5, atol=1e-6)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.call, [signature])
    archive.write_out(str(tmp_path / "model"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.serve(x), expected, rtol=1e-5, atol=1e-6)
    # As a data set of padded batches has them.
    y = np.zeros(expected.shape, "float32")
    data = tf.data.Dataset.from_generator(
        lambda: zip(x, y, strict=True),
        output_signature=(tf.TensorSpec((None, 2)), tf.TensorSpec(y.shape[1:])),
    ).padded_batch(2)
    data = data.apply(tf.data.experimental.assert_cardinality(1))
    model.compile("adam", "mse")
    before = layer.get_weights()
    model.fit(data, epochs=1, shuffle=False, verbose=0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()


def test_another_length_than_the_sites_is_refused():
    with pytest.raises(ValueError, match="expected axis 1"):
        TNAttention(uniform=False, num_sites=4)(np.ones((1, 5, 2), "float32"))
