import numpy as np
import pytest
from keras import ops

from keras_tnattn import MaskedAveragePooling1D
from keras_tnattn.ops.masking import apply_mask

X = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
MASK = np.array([[1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 4, 2, 1), (3, 4, 1, 2)])
def test_the_average_is_over_real_tokens(shape):
    x = X.reshape(shape)
    x[~MASK] = np.nan
    got = ops.convert_to_numpy(MaskedAveragePooling1D()(x, mask=ops.convert_to_tensor(MASK)))
    expected = np.stack([x[0].mean(axis=0), x[1, 1:3].mean(axis=0), np.zeros(shape[2:])])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_without_a_mask_all_tokens_are_real():
    got = ops.convert_to_numpy(MaskedAveragePooling1D()(X))
    np.testing.assert_allclose(got, X.mean(axis=1), atol=1e-6)
    assert (ops.convert_to_numpy(MaskedAveragePooling1D()(X[:, :0])) == 0).all()


def test_half_precision_holds_the_sum_of_a_long_text():
    x = np.full((1, 2000, 1), 100.0, "float16")
    got = MaskedAveragePooling1D(dtype="float16")(x, mask=np.ones((1, 2000), bool))
    assert ops.convert_to_numpy(got) == 100


def test_masked_tokens_are_gone():
    x = X.copy()
    x[~MASK] = np.inf
    got = ops.convert_to_numpy(apply_mask(ops.convert_to_tensor(x), ops.convert_to_tensor(MASK)))
    np.testing.assert_array_equal(got, np.where(MASK[..., None], X, 0))
