"""TT-SVD, which decomposes a matrix into TT-cores."""

import math
from collections.abc import Sequence

import numpy as np

from keras_tnattn.ops.tensor_train.factors import check_factors, resolve_ranks


def matrix_to_tt(
    matrix: np.ndarray,
    tt_input_shape: Sequence[int],
    tt_output_shape: Sequence[int],
    tt_ranks: int | Sequence[int] | None = None,
    tolerance: float | None = None,
) -> tuple[list[np.ndarray], float]:
    """Decomposes a matrix into TT-cores by TT-SVD (Oseledets 2011, algorithm 1), in float64.

    Give one of `tt_ranks` and `tolerance`.

    Args:
        matrix: Array `(prod(tt_input_shape), prod(tt_output_shape))`.
        tt_input_shape: The `N` factors `I_n`.
        tt_output_shape: The `N` factors `J_n`.
        tt_ranks: The ranks to truncate to, as in `resolve_ranks`.
        tolerance: The maximum relative Frobenius error, at least 0; each of the `N - 1` unfoldings
            is truncated to `tolerance * ||matrix|| / sqrt(N - 1)`.

    Returns:
        The cores, arrays `(R_{n-1}, I_n, J_n, R_n)`, and the relative Frobenius error reached.

    Raises:
        ValueError: If the sizes do not fit, or both or none of `tt_ranks`, `tolerance` are given.

    Example:
        >>> cores, error = matrix_to_tt(np.ones((6, 20)), (2, 3), (4, 5), tt_ranks=1)
        >>> [core.shape for core in cores], error < 1e-12
        ([(1, 2, 4, 1), (1, 3, 5, 1)], True)
    """
    tt_input_shape, tt_output_shape = tuple(tt_input_shape), tuple(tt_output_shape)
    check_factors(tt_input_shape, tt_output_shape)
    matrix = np.asarray(matrix, "float64")
    expected = (math.prod(tt_input_shape), math.prod(tt_output_shape))
    if matrix.shape != expected:
        raise ValueError(
            f"Expected a matrix of shape {expected} for tt_input_shape={tt_input_shape} and "
            f"tt_output_shape={tt_output_shape}. Received: matrix.shape={matrix.shape}"
        )
    if (tt_ranks is None) == (tolerance is None):
        raise ValueError(
            "Expected either `tt_ranks` or `tolerance`. "
            f"Received: tt_ranks={tt_ranks}, tolerance={tolerance}"
        )
    if tolerance is not None and tolerance < 0:
        raise ValueError(f"Expected a tolerance of at least 0. Received: tolerance={tolerance}")
    num_cores = len(tt_input_shape)
    ranks = None if tt_ranks is None else resolve_ranks(tt_ranks, tt_input_shape, tt_output_shape)
    norm = np.linalg.norm(matrix)
    delta = 0.0 if tolerance is None else tolerance * norm / math.sqrt(max(num_cores - 1, 1))

    # (I_1, ..., I_N, J_1, ..., J_N) -> (I_1, J_1, ..., I_N, J_N)
    axes = [axis for n in range(num_cores) for axis in (n, num_cores + n)]
    rest = matrix.reshape(*tt_input_shape, *tt_output_shape).transpose(axes)
    cores = []
    rank = 1
    squared_error = 0.0
    for n in range(num_cores - 1):
        size = rank * tt_input_shape[n] * tt_output_shape[n]
        u, s, vt = np.linalg.svd(rest.reshape(size, -1), full_matrices=False)
        # tail[r] is the squared error of keeping r singular values.
        tail = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0)
        if ranks is not None:
            new_rank = min(ranks[n], len(s))
        else:
            new_rank = max(1, int(np.argmax(tail <= delta**2)))
        # The errors of successive unfoldings are orthogonal, so their squares add up.
        squared_error += tail[new_rank]
        cores.append(u[:, :new_rank].reshape(rank, tt_input_shape[n], tt_output_shape[n], new_rank))
        rest, rank = s[:new_rank, None] * vt[:new_rank], new_rank
    cores.append(rest.reshape(rank, tt_input_shape[-1], tt_output_shape[-1], 1))
    return cores, float(math.sqrt(squared_error) / norm) if norm > 0 else 0.0
