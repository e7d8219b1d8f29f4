"""Approximates matrices by products of two thin factors, with the smallest error of the outputs."""

import numpy as np

# Products with larger moments of single precision are computed in it, without a copy in float64.
_LARGE_MOMENT = 2048


def low_rank_factors(
    matrix: np.ndarray, scale: np.ndarray | None = None, moment: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decomposes `W` into two factors whose first `r` columns and rows approximate it best.

    With `S W = U diag(s) V^T`, the best matrix of rank `r` in the norm `||S (W - W')||` is
    `W' = W V_r V_r^T`. With `S = C^{1/2}`, where `C` is the second moment of the inputs `x`, this
    norm is the error of the outputs `x W`; with `S = diag(sqrt(p))`, where `p` are the frequencies
    of the rows, it is the error of a lookup. Without `S` this is the plain truncated SVD.

    Args:
        matrix: `W`, array `(I, J)`.
        scale: `S`, array `(I, I)`, or its diagonal `(I,)`. Default: the identity.
        moment: `C`, array `(I, I)`, in place of `S = C^{1/2}`. If `J <= I`, `V` then are the
            eigenvectors of `W^T C W`, which takes `O(I^2 J + J^3)` instead of `O(I^3)`.

    Returns:
        `W V`, array `(I, K)`, and `V^T`, array `(K, J)`, `K = min(I, J)`, so that
        `W' = (W V)[:, :r] @ V^T[:r]`; and the relative error `||S (W - W')|| / ||S W||` for each
        `r` in `0, ..., K`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.ops import low_rank
        >>> left, right, errors = low_rank.low_rank_factors(np.diag([3.0, 4.0]))
        >>> errors.round(6).tolist()
        [1.0, 0.6, 0.0]
    """
    matrix = np.asarray(matrix, "float64")
    if moment is not None and matrix.shape[1] <= len(moment):
        values, vectors = np.linalg.eigh(matrix.T @ _times_moment(moment, matrix))
        squares = np.maximum(values[::-1], 0.0)
        vt = vectors.T[::-1]
        return matrix @ vt.T, vt, _relative_tails(squares)
    if moment is not None:
        scale = square_root(moment)
    if scale is None:
        scaled = matrix
    elif np.ndim(scale) == 1:
        scaled = np.asarray(scale, "float64")[:, None] * matrix
    else:
        scaled = np.asarray(scale, "float64") @ matrix
    _, s, vt = np.linalg.svd(scaled, full_matrices=False)
    return matrix @ vt.T, vt, _relative_tails(s**2)


def _times_moment(moment: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    if len(moment) <= _LARGE_MOMENT:
        return moment @ matrix
    return moment @ matrix.astype(moment.dtype)


def _relative_tails(squares: np.ndarray) -> np.ndarray:
    """Returns the relative error of each rank from the squared singular values."""
    tail = np.append(np.cumsum(squares[::-1])[::-1], 0.0)
    return np.sqrt(tail / tail[0]) if tail[0] > 0 else np.zeros(len(tail))


def square_root(moment: np.ndarray) -> np.ndarray:
    """Returns the square root `C^{1/2}` of a symmetric positive semidefinite matrix.

    Example:
        >>> from keras_tnattn.ops import low_rank
        >>> low_rank.square_root(np.diag([4.0, 9.0])).tolist()
        [[2.0, 0.0], [0.0, 3.0]]
    """
    values, vectors = np.linalg.eigh(np.asarray(moment, "float64"))
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def chosen_rank(errors: np.ndarray, rank: int | None, tolerance: float | None) -> int:
    """Returns `rank`, clipped to the full rank, or the smallest rank within `tolerance`.

    Args:
        errors: The relative error of each rank, as `low_rank_factors` returns them.
        rank: The maximum rank. Pass either this or `tolerance`.
        tolerance: The maximum relative error.

    Raises:
        ValueError: If both or none are given, the rank is below 1 or the tolerance below 0.

    Example:
        >>> from keras_tnattn.ops import low_rank
        >>> low_rank.chosen_rank(np.array([1.0, 0.2, 0.01]), None, 0.05)
        2
    """
    if rank is not None and tolerance is None:
        if rank < 1:
            raise ValueError(f"Expected a positive rank. Received: rank={rank}")
        return min(int(rank), len(errors) - 1)
    if tolerance is not None and rank is None:
        if tolerance < 0:
            raise ValueError(f"Expected a tolerance of at least 0. Received: tolerance={tolerance}")
        # Rounding leaves an error of about 1e-15 at the full rank.
        return max(1, int(np.argmax(errors <= max(tolerance, 1e-14))))
    raise ValueError(
        f"Expected either `rank` or `tolerance`. Received: rank={rank}, tolerance={tolerance}"
    )
