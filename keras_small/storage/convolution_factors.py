"""Factors the kernels of convolutions into kernels of two or three smaller convolutions.

A kernel `W` has the shape `(*k, C, F)`: its sizes, the channels of the inputs, and the filters. As
a matrix `(P, F)`, `P = prod(k) C`, it multiplies patches `p` of the inputs, whose second moment is
`M`, the mean of `p p^T`. All three factorings keep `||M^{1/2} (W - W')||` small, the error of the
outputs.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from keras_tnattn.ops import low_rank

# The share of the mean second moment that is added to each in least squares.
_RIDGE = 1e-6


def kernel_error(
    kernel: np.ndarray, approximation: np.ndarray, moment: np.ndarray | None = None
) -> float:
    """Returns the relative error of the outputs of a kernel that approximates another one.

    Args:
        kernel: `W`, float array `(*k, C, F)`.
        approximation: `W'`, of the same shape.
        moment: Second moment of the patches `(P, P)`. Default: the identity.
    """
    matrix, difference = (
        np.reshape(x, (-1, kernel.shape[-1])).astype("float64")
        for x in (kernel, kernel - approximation)
    )
    squares = [np.sum(x * (x if moment is None else moment @ x)) for x in (difference, matrix)]
    return float(np.sqrt(max(squares[0], 0.0) / (squares[1] or 1.0)))


def channel_factors(
    kernel: np.ndarray, moment: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors into a convolution with `r` filters and one of size 1 (Zhang et al., 2016).

    `W[..., c, f] = sum_r A[..., c, r] B[r, f]` with the smallest error for each `r`
    (https://arxiv.org/abs/1505.06798, sec. 3.1).

    Args:
        kernel: `W`, float array `(*k, C, F)`.
        moment: Second moment of the patches `(P, P)`. Default: the identity.

    Returns:
        `A`, array `(*k, C, K)`, and `B`, array `(K, F)`, of which the first `r` filters and rows
        are used; and the relative error of each `r` in `0, ..., K`.
    """
    scale = None if moment is None else low_rank.square_root(moment)
    matrix = np.reshape(kernel, (-1, kernel.shape[-1]))
    left, right, errors = low_rank.low_rank_factors(matrix, scale)
    return left.reshape(*kernel.shape[:-1], -1), right, errors


def tucker_factors(
    kernel: np.ndarray, ranks: Sequence[tuple[int, int]], moment: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Factors into a convolution of size 1, a small one, and one of size 1 (Kim et al., 2016).

    `W[..., c, f] = sum_{a, b} U[c, a] G[..., a, b] V[b, f]`, the Tucker-2 decomposition
    (https://arxiv.org/abs/1511.06530, sec. 3). `U` spans the most important combinations of the
    channels, `V` those of the filters, and `G` is then the least squares solution.

    Args:
        kernel: `W`, float array `(*k, C, F)`.
        ranks: Several `(a, b)`, at most `(C, F)`; the kernel is decomposed once for all.
        moment: Second moment of the patches `(P, P)`. Default: the identity.

    Yields:
        For each pair `U`, array `(C, a)`; `G`, array `(*k, a, b)`; and `V`, array `(b, F)`.

    Example:
        >>> inner, core, outer = next(tucker_factors(np.ones((3, 3, 2, 4)), [(1, 2)]))
        >>> inner.shape, core.shape, outer.shape
        ((2, 1), (3, 3, 1, 2), (2, 4))
    """
    *sizes, channels, filters = kernel.shape
    taps = math.prod(sizes)
    _, right, _ = channel_factors(kernel, moment)
    unfolded = np.moveaxis(kernel.reshape(taps, channels, filters), 1, 0).reshape(channels, -1)
    scale = None
    if moment is not None:
        blocks = moment.reshape(taps, channels, taps, channels)
        scale = low_rank.square_root(np.einsum("tctd->cd", blocks) / taps)
    left, _, _ = low_rank.low_rank_factors(unfolded, scale)
    # The leading columns are the same for each number of columns.
    inner = np.linalg.qr(left[:, : max(a for a, _ in ranks)])[0]
    fit = _LeastSquares(np.kron(np.eye(taps), inner), kernel.reshape(-1, filters), moment)
    for a, b in ranks:
        chosen = (np.arange(taps)[:, None] * inner.shape[1] + np.arange(a)).ravel()
        core = fit.solution(chosen) @ right[:b].T
        yield inner[:, :a], core.reshape(*sizes, a, b), right[:b]


def spatial_factors(
    kernel: np.ndarray, ranks: Sequence[int], moment: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Factors into a convolution along the first axis and one along the others (Jaderberg, 2014).

    `W[h, w, c, f] = sum_r A[h, 1, c, r] B[1, w, r, f]` (https://arxiv.org/abs/1405.3866, sec. 2).
    `A` is that of a singular value decomposition, and `B` then the least squares solution.

    Args:
        kernel: `W`, float array `(*k, C, F)` with two sizes or more.
        ranks: Several numbers `r` of filters between them; the kernel is decomposed once for all.
        moment: Second moment of the patches `(P, P)`. Default: the identity.

    Yields:
        For each rank `A`, array `(k_1, 1, ..., C, r)`, and `B`, array `(1, k_2, ..., r, F)`.
    """
    height, *other_sizes, channels, filters = kernel.shape
    width = math.prod(other_sizes)
    tensor = kernel.reshape(height, width, channels, filters)
    unfolded = np.swapaxes(tensor, 1, 2).reshape(height * channels, width * filters)
    scale = None
    if moment is not None:
        blocks = moment.reshape(height, width, channels, height, width, channels)
        marginal = np.einsum("hwcgwd->hcgd", blocks).reshape(height * channels, -1) / width
        scale = low_rank.square_root(marginal)
    left, _, _ = low_rank.low_rank_factors(unfolded, scale)
    first = np.linalg.qr(left[:, : max(ranks)])[0].reshape(height, channels, -1)
    maximum_rank = first.shape[-1]
    basis = np.einsum("hcr,wv->hwcvr", first, np.eye(width)).reshape(-1, width * maximum_rank)
    fit = _LeastSquares(basis, kernel.reshape(-1, filters), moment)
    ones = (1,) * len(other_sizes)
    for rank in (min(rank, maximum_rank) for rank in ranks):
        chosen = (np.arange(width)[:, None] * maximum_rank + np.arange(rank)).ravel()
        second = fit.solution(chosen)
        yield (
            first[..., :rank].reshape(height, *ones, channels, rank),
            second.reshape(1, *other_sizes, rank, filters),
        )


class _LeastSquares:
    """Minimizes `||M^{1/2} (target - basis X)||` for some of the columns of a basis."""

    def __init__(self, basis: np.ndarray, target: np.ndarray, moment: np.ndarray | None) -> None:
        weighted = basis if moment is None else moment @ basis
        self._gram = basis.T @ weighted
        self._products = weighted.T @ target

    def solution(self, columns: np.ndarray) -> np.ndarray:
        """Returns `X` for the columns of these indices."""
        gram = self._gram[np.ix_(columns, columns)]
        gram = gram + (_RIDGE * np.trace(gram) / len(gram) + 1e-30) * np.eye(len(gram))
        return np.linalg.solve(gram, self._products[columns])


def product(*factors: np.ndarray) -> np.ndarray:
    """Returns the kernel of convolutions without strides after one another.

    At most one of the kernels is longer than 1 along each axis.

    Args:
        *factors: Kernels `(*k, C, F)`, the first one first; matrices have sizes of 1.
    """
    rank = max(factor.ndim for factor in factors) - 2
    kernel: np.ndarray | None = None
    for factor in factors:
        ones = (1,) * (rank + 2 - factor.ndim)
        factor = factor.reshape(ones + factor.shape)
        kernel = factor if kernel is None else kernel @ factor
    return kernel if kernel is not None else np.ones(())


def ranks_within(kernel_shape: Sequence[int], share: float) -> tuple[int, int]:
    """Returns the ranks of a Tucker-2 decomposition with about a share of a kernel's weights.

    Both are the same share of the channels and of the filters.
    """
    *sizes, channels, filters = kernel_shape
    taps = math.prod(sizes)
    # taps (t C) (t F) + C (t C) + F (t F) = share taps C F
    a = taps * channels * filters
    b = channels**2 + filters**2
    t = (-b + math.sqrt(b * b + 4 * a * share * a)) / (2 * a)
    return max(1, min(channels, int(t * channels))), max(1, min(filters, int(t * filters)))
