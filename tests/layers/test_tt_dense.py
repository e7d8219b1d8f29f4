import json

import keras
import numpy as np
import oracles
import pytest
from conformance import relative_error, to_numpy
from keras import ops

from keras_tnattn import TTDense, initializers


def dense_kernel(layer):
    return oracles.tt_matrix([to_numpy(core) for core in layer.cores])


@pytest.mark.parametrize("lead", [(2,), (2, 5), (0, 5), (2, 1, 3)])
def test_equals_the_dense_product(lead):
    # Unequal factors and ranks: any swapped pair of axes changes a number.
    layer = TTDense(15, (2, 3, 4), (3, 1, 5), (2, 6), bias_initializer="normal")
    x = np.random.default_rng(0).normal(size=(*lead, 24)).astype("float32")
    got = to_numpy(layer(x))
    expected = x @ dense_kernel(layer) + to_numpy(layer.bias)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_two_blocks_equal_the_dense_product():
    layer = TTDense(512, activation="relu")
    x = np.random.default_rng(0).normal(size=(3, 2, 512)).astype("float32")
    got = to_numpy(layer(x))
    assert layer.plan.split > 0
    kernel = to_numpy(layer.to_dense().kernel).astype("float64")
    np.testing.assert_allclose(got, np.maximum(x @ kernel, 0), rtol=1e-4, atol=1e-4)


def test_units_alone_are_quantized():
    layer = TTDense(64)
    layer.build((None, 64))
    assert [tuple(c.shape) for c in layer.cores] == (
        [(1, 2, 2, 2)] + [(2, 2, 2, 2)] * 4 + [(2, 2, 2, 1)]
    )
    assert layer.count_params() == 16 * (6 - 1) + 64


@pytest.mark.parametrize(("input_dim", "units", "rank"), [(64, 64, 2), (300, 20, 4), (97, 64, 3)])
@pytest.mark.parametrize("initializer", ["glorot_uniform", "he_normal", "lecun_uniform"])
def test_kernel_has_the_variance_of_the_initializer(input_dim, units, rank, initializer):
    layer = TTDense(units, tt_ranks=rank, kernel_initializer=initializer)
    layer.build((None, input_dim))
    kernel = to_numpy(layer.to_dense().kernel)
    expected = {
        "glorot_uniform": 2 / (input_dim + units),
        "he_normal": 2 / input_dim,
        "lecun_uniform": 1 / input_dim,
    }[initializer]
    # Exact at every draw, not only on average.
    assert np.mean(kernel**2) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        (keras.initializers.RandomNormal(stddev=0.3), 0.09),
        (keras.initializers.RandomUniform(-0.3, 0.3), 0.03),
        (keras.initializers.TruncatedNormal(stddev=0.5), 0.25 * 0.7737),
        (keras.initializers.VarianceScaling(3.0, "fan_out"), 0.3),
    ],
)
def test_variance_of_keras_initializers(initializer, variance):
    assert initializers.kernel_variance(initializer, 40, 10) == pytest.approx(variance, rel=1e-4)
    sample = to_numpy(initializer((400, 100))) * (
        10**0.5 if isinstance(initializer, keras.initializers.VarianceScaling) else 1
    )
    assert sample.var() == pytest.approx(variance, rel=0.05)


def test_an_initializer_without_variance_is_refused():
    with pytest.raises(ValueError, match="known variance"):
        TTDense(4, kernel_initializer="ones").build((None, 4))


def test_seeds():
    def kernel(seed):
        layer = TTDense(16, kernel_initializer=keras.initializers.GlorotNormal(seed))
        layer.build((None, 16))
        return layer

    first, again, other = kernel(1), kernel(1), kernel(100)
    np.testing.assert_array_equal(dense_kernel(first), dense_kernel(again))
    assert (dense_kernel(first) != dense_kernel(other)).any()
    # Cores of one shape differ from each other under a fixed seed.
    assert (to_numpy(first.cores[1]) != to_numpy(first.cores[2])).any()


def test_integer_rank_is_clipped_and_a_list_is_not():
    layer = TTDense(8, tt_ranks=100)
    layer.build((None, 8))
    assert [c.shape[-1] for c in layer.cores] == [4, 4, 1]
    with pytest.raises(ValueError, match=r"at most \(4, 4\).*tt_ranks=\(4, 5\)"):
        TTDense(8, (2, 2, 2), (2, 2, 2), (4, 5))


@pytest.mark.parametrize("use_bias", [True, False])
def test_from_dense_and_back(use_bias):
    dense = keras.layers.Dense(36, activation="tanh", use_bias=use_bias, bias_initializer="normal")
    x = np.random.default_rng(0).normal(size=(5, 24)).astype("float32")
    expected = to_numpy(dense(x))
    exact = TTDense.from_dense(dense, tolerance=0.0)
    assert exact.relative_error == 0
    np.testing.assert_allclose(to_numpy(exact(x)), expected, rtol=1e-4, atol=1e-5)
    rough = TTDense.from_dense(dense, tt_ranks=2)
    assert max(c.shape[-1] for c in rough.cores) == 2
    kernel = to_numpy(dense.kernel)
    true_error = relative_error(dense_kernel(rough), kernel)
    assert rough.relative_error == pytest.approx(true_error, rel=1e-4)
    back = rough.to_dense()
    assert isinstance(back, keras.layers.Dense)
    np.testing.assert_allclose(to_numpy(back(x)), to_numpy(rough(x)), rtol=1e-4, atol=1e-5)


def test_numpy_numbers_do_not_reach_the_config():
    layer = TTDense(8, np.array([2, 4]), np.array([4, 2]), np.int64(3))
    config = json.loads(json.dumps(layer.get_config()))
    assert (config["tt_input_shape"], config["tt_ranks"]) == ([2, 4], 3)


def test_describe_tells_the_plan(capsys):
    layer = TTDense(1024)
    layer.build((None, 1024))
    text = layer.describe()
    assert not capsys.readouterr().out
    assert "144 parameters" in text
    assert "8.0 times fewer" in text


def test_weights_can_be_bfloat16():
    # TensorFlow has no QR decomposition of bfloat16, which orthogonal initial values need.
    layer = TTDense(15, (2, 3, 4), (3, 1, 5), (2, 6), dtype="bfloat16")
    outputs = to_numpy(ops.cast(layer(np.ones((2, 24))), "float32"))
    assert {core.dtype for core in layer.cores} == {"bfloat16"}
    assert np.isfinite(outputs).all()
    assert outputs.any()
