"""A factor is inverted while it is computed, in place and by halves."""

import numpy as np
import pytest

from keras_small.storage.cholesky import invert_factor

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 128, 129, 300])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_the_inverse_factor_turns_a_matrix_into_the_identity(size, dtype, tolerance):
    rows = RNG.normal(size=(2 * size, size))
    matrix = rows.T @ rows / size + 0.1 * np.eye(size)
    inverse = matrix.astype(dtype)
    invert_factor(inverse)
    assert inverse.dtype == dtype
    np.testing.assert_array_equal(np.triu(inverse, 1), 0)
    np.testing.assert_allclose(inverse @ matrix @ inverse.T, np.eye(size), atol=tolerance)
    # Of a leading part of a matrix, the factor is the leading part, too.
    leading = matrix[: size // 2 + 1, : size // 2 + 1].copy()
    invert_factor(leading)
    np.testing.assert_allclose(inverse[: size // 2 + 1, : size // 2 + 1], leading, atol=tolerance)


@pytest.mark.parametrize("size", [2, 300])
def test_an_indefinite_matrix_is_refused(size):
    with pytest.raises(np.linalg.LinAlgError):
        invert_factor(np.diag(np.append(np.ones(size - 1), -1.0)))
