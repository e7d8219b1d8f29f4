"""The matrix product state and the local embeddings against their formulas, entry by entry."""

import math

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import ops

from keras_tnattn.layers import LocalEmbedding, MPSClassifier


def make_layer(length=None, position=None):
    """A layer of tensors that are the same for all sites, or of each of so many sites."""
    options = {"uniform": length is None, "num_sites": length, "position": position}
    return MPSClassifier(4, bond_dim=3, initial_deviation=0.4, **options)


def logits(layer, x, position):
    """`l O r` of one chain `(N, d)` and the norms of `l` and `r`, one product after the other."""
    x = x.astype("float64")
    tensors, output, left, right = (
        to_numpy(w).astype("float64")
        for w in (layer.site_tensor, layer.output_tensor, layer.left_boundary, layer.right_boundary)
    )
    matrices = [
        sum(x[j, s] * (tensors if layer.uniform else tensors[j])[:, :, s] for s in range(len(x[j])))
        for j in range(len(x))
    ]
    for matrix in matrices[:position]:
        left = left @ matrix
    for matrix in reversed(matrices[position:]):
        right = matrix @ right
    z = [left @ output[:, :, c] @ right for c in range(output.shape[2])]
    return np.array(z), np.linalg.norm(left) * np.linalg.norm(right)


@pytest.mark.parametrize(
    ("length", "position"), [(1, None), (6, None), (7, None), (6, 0), (6, 2), (6, 6), (40, 33)]
)
@pytest.mark.parametrize("uniform", [True, False])
def test_equals_the_contraction(length, position, uniform):
    layer = make_layer(None if uniform else length, position)
    x = np.random.default_rng(0).uniform(0.2, 1, size=(2, length, 2)).astype("float32")
    x[:, 0, 1] = 0  # a site of zeros would be treated as masked
    x[:, -1] *= -1
    got, log_scale = to_numpy(layer(x, return_log_scale=True))
    for i in range(2):
        expected, norm = logits(layer, x[i], length // 2 if position is None else position)
        np.testing.assert_allclose(log_scale[i], math.log(norm), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[i], expected / norm, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("position", [None, 2])
def test_padding_changes_nothing(position):
    layer = make_layer(position=position)
    x = np.random.default_rng(0).uniform(size=(2, 7, 2)).astype("float32")
    padding = np.full((2, 3, 2), np.nan, "float32")
    mask = np.arange(10) < 7
    expected = to_numpy(layer(x))
    for parts, valid in (([x, padding], mask), ([padding, x], mask[::-1])):
        valid = ops.convert_to_tensor(np.stack([valid, valid]))
        got = layer(np.concatenate(parts, axis=1), mask=valid)
        np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("uniform", [True, False])
def test_sites_of_zeros_are_treated_as_masked(uniform):
    layer = make_layer(None if uniform else 7, position=3)
    x = np.random.default_rng(0).uniform(0.1, 1, size=(2, 7, 2)).astype("float32")
    mask = np.ones((2, 7), "bool")
    mask[:, [1, 5]] = False
    expected, norms = to_numpy(layer(x, mask=ops.convert_to_tensor(mask), return_log_scale=True))
    x[~mask] = 0
    got, got_norms = to_numpy(layer(x, return_log_scale=True))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(got_norms, norms, rtol=1e-6)
    assert np.abs(expected).min() > 1e-3


@pytest.mark.slow
def test_learns_at_ten_thousand_sites():
    layer = MPSClassifier(2, bond_dim=4, initial_deviation=0.3)
    model = keras.Sequential([keras.Input((None, 2)), layer])
    x = np.random.default_rng(0).uniform(size=(1, 10_000, 2)).astype("float32")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = layer.get_weights()
    model.fit(x, np.ones(1), verbose=0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all()
        assert (new != old).any()


def test_log_scale_has_the_gradient_of_the_norm():
    # The scale is a constant in the gradient of the product, and its logarithm must not lose it.
    inputs = keras.Input((5, 2))
    layer = MPSClassifier(2, bond_dim=3, initial_deviation=0.4)
    _, log_scale = layer(inputs, return_log_scale=True)
    layer.output_tensor.trainable = False
    model = keras.Model(inputs, log_scale)
    model.compile(keras.optimizers.SGD(1e-3), lambda _, y: y)
    x = np.random.default_rng(0).uniform(size=(1, 5, 2)).astype("float32")
    before = layer.get_weights()
    model.fit(x, np.zeros(1), verbose=0)
    gradient = (before[0] - layer.get_weights()[0]) / 1e-3
    direction = np.random.default_rng(1).normal(size=before[0].shape)
    values = []
    for step in (1e-3, -1e-3):
        layer.set_weights([before[0] + step * direction, *before[1:]])
        values.append(math.log(logits(layer, x[0], 2)[1]))
    expected = (values[0] - values[1]) / 2e-3
    np.testing.assert_allclose(np.sum(gradient * direction), expected, rtol=1e-2)


@pytest.mark.parametrize(
    ("feature_map", "expected"),
    [
        ("linear", lambda x: np.stack([x, 1 - x], -1) / np.hypot(x, 1 - x)[..., None]),
        ("trigonometric", lambda x: np.stack([np.cos(np.pi * x / 2), np.sin(np.pi * x / 2)], -1)),
    ],
)
def test_numbers(feature_map, expected):
    x = np.random.default_rng(0).uniform(size=(3, 5)).astype("float32")
    layer = LocalEmbedding(feature_map)
    np.testing.assert_allclose(to_numpy(layer(x)), expected(x), rtol=1e-5, atol=1e-6)
    patches = to_numpy(layer(x[:, :4].reshape(3, 2, 2)))
    assert patches.shape == (3, 2, 4)
    np.testing.assert_allclose(np.linalg.norm(patches, axis=-1), 1, rtol=1e-5)
    assert layer.compute_output_shape((None, None)) == (None, None, 2)
    bits = np.array([[0, 1, 1]])
    want = to_numpy(layer(bits.astype("float32")))
    for integers in (bits, bits.astype("uint8"), bits.astype(bool)):
        np.testing.assert_array_equal(to_numpy(layer(integers)), want)


def test_a_repeated_id_has_the_second_moment_of_its_whole_gradient():
    # On TensorFlow, Adam squares the rows of a sparse gradient one by one.
    layer = LocalEmbedding("learned", embedding_dim=3, num_ids=4)
    assert layer(keras.Input((7, 3)), reverse=True).shape == (None, 7, 4)
    assert LocalEmbedding(order=2)(keras.Input((7, 16)), reverse=True).shape == (None, 7, 2)
    assert LocalEmbedding()(keras.Input((7, 2)), reverse=True).shape == (None, 7)
    weights = np.array([1.0, 2.0, -1.0], "float32")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layer])

    def loss(_, outputs):
        return ops.sum(outputs * ops.convert_to_tensor(weights), axis=(1, 2))

    moments = {}
    for times in (1, 4):
        model.compile(keras.optimizers.Adam(0.0), loss=loss)
        ids = np.array([[2] * times + [0] * (4 - times)], "int32")
        model.train_on_batch(ids, np.zeros((1, 4)))
        (moment,) = [v for v in model.optimizer.variables if "velocity" in v.path]
        moments[times] = to_numpy(moment)[2]
    assert moments[1].max() > 0
    np.testing.assert_allclose(moments[4], 16 * moments[1], rtol=1e-4)


def test_ids():
    ids = np.array([[0, 2, 1], [2, 2, 0]])
    one_hot = LocalEmbedding("one_hot", num_ids=3)
    np.testing.assert_array_equal(to_numpy(one_hot(ids)), np.eye(3)[ids])
    learned = LocalEmbedding("learned", embedding_dim=5, num_ids=3)
    rows = to_numpy(learned(ids))
    assert rows.shape == (2, 3, 5)
    table = np.abs(to_numpy(learned.table))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, table[ids], rtol=1e-5)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 7.0])
@pytest.mark.parametrize("feature_map", ["linear", "trigonometric"])
def test_the_decoder_inverts_numbers(feature_map, scale, order):
    layer = LocalEmbedding(feature_map, order=order)
    x = np.random.default_rng(0).uniform(size=(3, 5)).astype("float32")
    x[0, :2] = 0, 1
    decoded = to_numpy(layer(scale * layer(x), reverse=True))
    np.testing.assert_allclose(decoded, x, atol=1e-5)
    patches = np.random.default_rng(1).uniform(size=(3, 5, 4)).astype("float32")
    decoded = to_numpy(layer(scale * layer(patches), reverse=True))
    np.testing.assert_allclose(decoded, patches, atol=1e-5)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "options", [{"feature_map": "one_hot"}, {"feature_map": "learned", "embedding_dim": 3}]
)
def test_the_decoder_inverts_ids(options, order):
    layer = LocalEmbedding(num_ids=6, order=order, **options)
    ids = np.random.default_rng(0).integers(0, 6, (3, 5))
    logits = to_numpy(layer(layer(ids), reverse=True))
    assert logits.shape == (3, 5, 6)
    assert (logits.argmax(-1) == ids).all()
    features = layer(keras.Input((None,), dtype="int32"))
    assert features.shape[-1] == (6 if options["feature_map"] == "one_hot" else 3) ** order
    assert layer(features, reverse=True).shape == (None, None, 6)


def test_features_of_zeros_decode_to_a_number():
    for feature_map in ("linear", "trigonometric"):
        decoded = to_numpy(LocalEmbedding(feature_map)(np.zeros((1, 2, 2)), reverse=True))
        assert np.isfinite(decoded).all()
    halfway = to_numpy(LocalEmbedding("linear")(np.zeros((1, 2, 2)), reverse=True))
    np.testing.assert_array_equal(halfway, 0.5)


def test_both_factors_of_a_product_are_decoded():
    layer = LocalEmbedding("linear", order=2)
    first, second = np.array([0.2, 0.8]), np.array([0.6, 0.4])
    products = np.stack([np.outer(first, second), np.outer(second, first)]).reshape(1, 2, 4)
    decoded = to_numpy(layer(products.astype("float32"), reverse=True))
    np.testing.assert_allclose(decoded, (0.2 + 0.6) / 2, rtol=1e-6)


@pytest.mark.parametrize("feature_map", ["linear", "trigonometric"])
def test_the_embedding_of_order_2_is_the_outer_product(feature_map):
    x = np.random.default_rng(0).uniform(size=(2, 3)).astype("float32")
    phi = to_numpy(LocalEmbedding(feature_map)(x))
    got = to_numpy(LocalEmbedding(feature_map, order=2)(x))
    np.testing.assert_allclose(got, np.einsum("bns,bnt->bnst", phi, phi).reshape(2, 3, 4))
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, rtol=1e-5)
