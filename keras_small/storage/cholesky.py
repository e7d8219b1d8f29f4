"""Inverse Cholesky factors of large matrices, without a copy."""

import numpy as np

# Rows that are factored at once.
_AT_ONCE = 128


def invert_factor(matrix: np.ndarray) -> None:
    """Replaces a positive definite matrix `A` by `L^{-1}`, where `A = L L^T`, by halves.

    All work on large matrices is in matrix products, about `n^3` FLOPs in all.

    Args:
        matrix: `A`, float array `(n, n)`, which becomes lower triangular.

    Raises:
        numpy.linalg.LinAlgError: If the matrix is not positive definite.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage.cholesky import invert_factor
        >>> matrix = np.diag([4.0, 16.0])
        >>> invert_factor(matrix)
        >>> matrix.diagonal().tolist()
        [0.5, 0.25]
    """
    size = len(matrix)
    if size <= _AT_ONCE:
        matrix[:] = np.tril(np.linalg.inv(np.linalg.cholesky(matrix)))
        return
    half = size // 2
    first = matrix[:half, :half]
    second = matrix[half:, half:]
    corner = matrix[half:, :half]
    invert_factor(first)
    lower = _triangle_times(first, corner.T).T
    second -= lower @ lower.T
    invert_factor(second)
    corner[:] = _triangle_times(second, lower @ first)
    np.negative(corner, out=corner)
    matrix[:half, half:] = 0


def _triangle_times(triangle: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns a product with a lower triangular matrix, without most of its zeros."""
    size = len(triangle)
    if size <= 2 * _AT_ONCE:
        return triangle @ matrix
    half = size // 2
    product = np.empty((size, matrix.shape[1]), matrix.dtype)
    product[:half] = _triangle_times(triangle[:half, :half], matrix[:half])
    product[half:] = _triangle_times(triangle[half:, half:], matrix[half:])
    product[half:] += triangle[half:, :half] @ matrix[:half]
    return product
