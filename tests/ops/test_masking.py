import numpy as np
import pytest
from conformance import to_numpy
from differentiation import gradients
from keras import ops

from keras_tnattn import MaskedAveragePooling1D
from keras_tnattn.ops.masking import apply_mask, masked_softmax

X = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
MASK = np.array([[1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 4, 2, 1), (3, 4, 1, 2)])
def test_the_average_is_over_real_tokens(shape):
    x = X.reshape(shape).copy()
    x[~MASK] = np.nan
    got = to_numpy(MaskedAveragePooling1D()(x, mask=ops.convert_to_tensor(MASK)))
    expected = np.stack([x[0].mean(axis=0), x[1, 1:3].mean(axis=0), np.zeros(shape[2:])])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_average_of_a_single_token_is_that_token():
    mask = ops.convert_to_tensor(np.arange(4) == [[0], [2], [3]])
    got = to_numpy(MaskedAveragePooling1D()(X, mask=mask))
    np.testing.assert_allclose(got, X[[0, 1, 2], [0, 2, 3]], atol=1e-6)


def test_without_a_mask_all_tokens_are_real():
    got = to_numpy(MaskedAveragePooling1D()(X))
    np.testing.assert_allclose(got, X.mean(axis=1), atol=1e-6)
    got = to_numpy(MaskedAveragePooling1D()(X[:, :1]))
    np.testing.assert_allclose(got, X[:, 0], atol=1e-6)
    assert (to_numpy(MaskedAveragePooling1D()(X[:, :0])) == 0).all()


def test_half_precision_holds_the_sum_of_a_long_text():
    x = np.full((1, 2000, 1), 100.0, "float16")
    got = MaskedAveragePooling1D(dtype="float16")(x, mask=np.ones((1, 2000), bool))
    assert to_numpy(got) == 100


def test_masked_tokens_are_gone():
    x = X.copy()
    x[~MASK] = np.inf
    got = to_numpy(apply_mask(ops.convert_to_tensor(x), ops.convert_to_tensor(MASK)))
    np.testing.assert_array_equal(got, np.where(MASK[..., None], X, 0))


def test_tokens_may_have_many_axes():
    # TensorFlow broadcasts at most 8.
    shape = (3, 4, *[1] * 7, 2)
    x = X.reshape(shape).copy()
    x[~MASK] = np.nan
    mask = ops.convert_to_tensor(MASK)
    got = to_numpy(apply_mask(ops.convert_to_tensor(x), mask))
    np.testing.assert_array_equal(got.reshape(X.shape), np.where(MASK[..., None], X, 0))
    got = to_numpy(MaskedAveragePooling1D()(x, mask=mask))
    assert got.shape == (3, *shape[2:])
    expected = np.stack([x[0].mean(axis=0), x[1, 1:3].mean(axis=0), np.zeros(shape[2:])])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_softmax_counts_what_is_not_masked():
    scores = np.array([[1.0, 2.0, 5.0], [1e30, 1.0, -1e30], [3.0, 3.0, 3.0]], "float32")
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    tensor = ops.convert_to_tensor(mask)
    got = to_numpy(masked_softmax(ops.convert_to_tensor(scores), tensor))
    share = 1 / (1 + np.e)
    np.testing.assert_allclose(got, [[share, 1 - share, 0], [1, 0, 0], [0, 0, 0]], atol=1e-6)
    (grad,) = gradients(lambda s: ops.sum(masked_softmax(s, tensor)[:, 0]), [scores])
    slope = share * (1 - share)
    np.testing.assert_allclose(grad, [[slope, -slope, 0], [0] * 3, [0] * 3], atol=1e-6)
    plain = to_numpy(masked_softmax(ops.convert_to_tensor(scores), None))
    np.testing.assert_allclose(plain[2], [1 / 3] * 3, atol=1e-6)


def test_softmax_of_half_precision_is_masked_too():
    scores = np.array([[60_000.0, -60_000.0], [1.0, 2.0]], "float16")
    mask = np.array([[0, 1], [0, 0]], bool)
    got = masked_softmax(ops.convert_to_tensor(scores), ops.convert_to_tensor(mask))
    np.testing.assert_array_equal(to_numpy(got), [[0, 1], [0, 0]])
    assert str(to_numpy(got).dtype) == "float16"
