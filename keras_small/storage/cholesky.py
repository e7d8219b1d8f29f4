"""Inverse Cholesky factors of large matrices, without a copy."""

import numpy as np

# Rows that are factored at once.
_AT_ONCE = 128


def invert_factor(matrix: np.ndarray) -> None:
    """Replaces a positive definite matrix `A` by `L^{-1}`, where `A = L L^T`, by halves.

    All work on large matrices is in matrix products, `3 n^3` FLOPs in all.

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
    lower = corner @ first.T
    second -= lower @ lower.T
    invert_factor(second)
    corner[:] = -second @ (lower @ first)
    matrix[:half, half:] = 0
