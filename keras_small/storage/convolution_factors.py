"""Factors the kernels of convolutions into kernels of two or three smaller convolutions.

A kernel `W` has the shape `(*k, C, F)`: its sizes, the channels of the inputs, and the filters. As
a matrix `(P, F)`, `P = prod(k) C`, it multiplies patches `p` of the inputs, whose second moment is
`M`, the mean of `p p^T`. All three factorings keep `||M^{1/2} (W - W')||` small, the error of the
outputs.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from keras_small.storage.cholesky import invert_factor
from keras_tnattn.ops import low_rank

# The share of the mean second moment that is added to each in least squares, and if it is float32.
_RIDGE = 1e-6
_SINGLE_RIDGE = 1e-3
# Larger systems of float32 are solved in it, for which they are damped enough.
_FACTORED_IN_FLOAT64 = 1024
# Filters on which an error is measured.
_MEASURED_FILTERS = 128


class OutputErrors:
    """Relative errors of the outputs of kernels that approximate another one.

    They are measured on some of the filters, if there are more than 128.

    Args:
        kernel: `W`, float array `(*k, C, F)`.
        moment: Second moment of the patches `(P, P)`, in whose precision the errors are computed.
            Default: the identity.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage.convolution_factors import OutputErrors
        >>> kernel = np.ones((3, 2, 4))
        >>> round(OutputErrors(kernel).of(0.9 * kernel), 6)
        0.1
    """

    def __init__(self, kernel: np.ndarray, moment: np.ndarray | None = None) -> None:
        filters = kernel.shape[-1]
        self._chosen = np.linspace(0, filters - 1, min(filters, _MEASURED_FILTERS)).astype(int)
        self._moment = moment
        self._matrix = self._columns(kernel)
        self._squares = self._squares_of(self._matrix)

    def of(self, approximation: np.ndarray) -> float:
        """Returns the error of `W'`, array `(*k, C, F)`."""
        squares = self._squares_of(self._matrix - self._columns(approximation))
        return math.sqrt(squares / (self._squares or 1.0))

    def _columns(self, kernel: np.ndarray) -> np.ndarray:
        matrix = np.reshape(kernel, (-1, kernel.shape[-1]))[:, self._chosen]
        return matrix if self._moment is None else matrix.astype(self._moment.dtype, copy=False)

    def _squares_of(self, matrix: np.ndarray) -> float:
        outputs = matrix if self._moment is None else self._moment @ matrix
        return max(0.0, float(np.einsum("pf,pf->f", matrix, outputs).sum(dtype="float64")))


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
    matrix = np.reshape(kernel, (-1, kernel.shape[-1]))
    left, right, errors = low_rank.low_rank_factors(matrix, moment=moment)
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
    marginal = None
    if moment is not None:
        blocks = moment.reshape(taps, channels, taps, channels)
        marginal = np.einsum("tctd->cd", blocks, dtype="float64") / taps
    left, _, _ = low_rank.low_rank_factors(unfolded, moment=marginal)
    # The leading columns are the same for each number of columns.
    inner = np.linalg.qr(left[:, : max(a for a, _ in ranks)])[0]
    fit = _LeastSquares(inner, kernel.reshape(1, taps, channels, filters), moment)
    for a, b in ranks:
        core = fit.solution(a) @ right[:b].T
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
    left, _, _ = _along_first_axis(kernel, moment)
    height, *other_sizes, channels, filters = kernel.shape
    width = math.prod(other_sizes)
    tensor = kernel.reshape(height, width, channels, filters)
    first = np.linalg.qr(left[:, : max(ranks)])[0].reshape(height, channels, -1)
    fit = _LeastSquares(first, tensor, moment)
    ones = (1,) * len(other_sizes)
    for rank in (min(rank, first.shape[-1]) for rank in ranks):
        second = fit.solution(rank)
        yield (
            first[..., :rank].reshape(height, *ones, channels, rank),
            second.reshape(1, *other_sizes, rank, filters),
        )


def spatial_errors(kernel: np.ndarray, moment: np.ndarray | None = None) -> np.ndarray:
    """Returns the relative error of each rank of a spatial factoring before least squares."""
    return _along_first_axis(kernel, moment)[2]


def _along_first_axis(
    kernel: np.ndarray, moment: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors a kernel into the first axis with the channels, and the others with the filters."""
    height, *other_sizes, channels, filters = kernel.shape
    width = math.prod(other_sizes)
    tensor = kernel.reshape(height, width, channels, filters)
    unfolded = np.swapaxes(tensor, 1, 2).reshape(height * channels, width * filters)
    marginal = None
    if moment is not None:
        blocks = moment.reshape(height, width, channels, height, width, channels)
        summed = np.einsum("hwcgwd->hcgd", blocks, dtype="float64")
        marginal = summed.reshape(height * channels, -1) / width
    return low_rank.low_rank_factors(unfolded, moment=marginal)


class _LeastSquares:
    """Minimizes `||M^{1/2} (target - basis X)||` for the leading columns of a basis.

    The basis is the same at each of `w` offsets, `B` of shape `(h, C, r)`, and 0 between them.

    Args:
        basis: `B`; without the axis of `h` if this is 1.
        target: Kernel `(h, w, C, F)`.
        moment: Second moment of the patches `(h w C, h w C)`. Default: the identity.
    """

    def __init__(self, basis: np.ndarray, target: np.ndarray, moment: np.ndarray | None) -> None:
        height, self._width, channels, filters = target.shape
        dtype = np.dtype("float64") if moment is None else moment.dtype
        basis = basis.reshape(height, channels, -1).astype(dtype)
        target = target.astype(dtype)
        size = basis.shape[-1] * self._width
        mean = 1.0
        # The columns of all offsets are next to each other, so that fewer are leading ones.
        if moment is None:
            products = np.einsum("hcr,hwcf->rwf", basis, target)
            gram = np.kron(np.einsum("hcr,hcs->rs", basis, basis), np.eye(self._width))
        else:
            mean = np.trace(moment) / len(moment)
            products, gram = self._products_by_offset(basis, target, moment)
        gram = gram.reshape(size, size)
        if size <= _FACTORED_IN_FLOAT64:
            gram = gram.astype("float64", copy=False)
        ridge = _SINGLE_RIDGE if dtype == "float32" else _RIDGE
        gram[np.diag_indices(size)] += ridge * mean + 1e-30
        invert_factor(gram)
        self._factor = gram
        self._products = products.reshape(size, filters).astype(gram.dtype, copy=False)

    def _products_by_offset(
        self, basis: np.ndarray, target: np.ndarray, moment: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `B^T M target`, `(r, w, F)`, and `B^T M B`, `(r, w, r, w)`.

        One offset of `M B` at a time, so that little but the result is as large as the moment.
        """
        height, width, channels, filters = target.shape
        rank = basis.shape[-1]
        columns = basis.reshape(-1, rank)
        patches = moment.reshape(-1, height, width, channels)
        products = np.empty((rank, width, filters), basis.dtype)
        gram = np.empty((rank, width, rank, width), basis.dtype)
        for offset in range(width):
            weighted = patches[:, :, offset].reshape(len(patches), -1) @ columns
            products[:, offset] = weighted.T @ target.reshape(-1, filters)
            weighted = weighted.reshape(height, width, channels, rank)
            for other in range(width):
                rows = weighted[:, other].reshape(-1, rank)
                gram[:, other, :, offset] = columns.T @ rows
        return products, gram

    def solution(self, columns: int) -> np.ndarray:
        """Returns `X`, `(w, columns, F)`, for the first `columns` columns of `B`."""
        size = columns * self._width
        # The factor of a leading block of a matrix is the leading block of its factor.
        factor = self._factor[:size, :size]
        solution = factor.T @ (factor @ self._products[:size])
        return solution.reshape(columns, self._width, -1).swapaxes(0, 1)


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
