"""Embedding tables stored as a tensor train.

A table `E` of shape `(V, D)`, `D = prod(D_n)`, is the first `V` rows of a TT-matrix with
`prod(V_n) >= V` rows. Row `i` is found by the digits of `i` in the mixed radix `(V_1, ..., V_N)`,
the last digit fastest (Hrinchuk et al., 2019, https://arxiv.org/abs/1901.10787, section 3):

    E[i] = G_1[:, i_1, :, :] @ G_2[:, i_2, :, :] @ ... @ G_N[:, i_N, :, :]
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_tnattn.ops.precision import matmul, widen
from keras_tnattn.ops.tensor_train.contraction import merge
from keras_tnattn.ops.tensor_train.decomposition import matrix_to_tt
from keras_tnattn.typing import Tensor

# The most rows that are not halved any more when similar ones are made neighbors, the rows of a
# part from which its principal axis is computed, and the steps of that computation.
_LEAF, _AXIS_ROWS, _AXIS_STEPS = 8, 4096, 16
# The most rows that are copied at once.
_ORDERED_ROWS = 2**14

# Cost of moving one number, in floating-point operations, as in `tensor_train.contraction`.
_FLOPS_PER_NUMBER = 128


def row_factors(num_rows: int, num_factors: int) -> tuple[int, ...]:
    """Returns `num_factors` near-equal factors whose product is at least `num_rows`.

    Unlike `tensor_train.balanced_factors` the product may exceed the size, so that a prime number
    of rows has small factors too: `row_factors(20_011, 3) == (26, 28, 28)`.
    """
    if num_rows < 1 or num_factors < 1:
        raise ValueError(
            "Expected a positive number of rows and of factors. "
            f"Received: num_rows={num_rows}, num_factors={num_factors}"
        )
    factors = [math.ceil(round(num_rows ** (1 / num_factors), 9))] * num_factors
    for n in range(num_factors):
        while factors[n] > 1 and math.prod(factors) // factors[n] * (factors[n] - 1) >= num_rows:
            factors[n] -= 1
    return tuple(sorted(factors))


def row_blocks(
    tt_input_shape: Sequence[int],
    tt_output_shape: Sequence[int],
    tt_ranks: Sequence[int],
    num_ids: int,
) -> tuple[int, ...]:
    """Chooses how the cores are merged before `num_ids` rows are looked up.

    Neighboring cores are merged into blocks once per call, so that what many ids share is computed
    once; each id then costs a gather and a small product per block. A single block is the whole
    table. The partition with the smallest cost in FLOPs and memory traffic is chosen.

    Returns:
        The number of cores in each block; the sum is `N`.
    """
    num_cores, ranks = len(tt_input_shape), (1, *tt_ranks, 1)

    def merged_size(start: int, stop: int) -> int:
        rows, columns = tt_input_shape[start:stop], tt_output_shape[start:stop]
        return ranks[start] * math.prod(rows) * math.prod(columns) * ranks[stop]

    def cost(bounds: Sequence[int]) -> float:
        total, columns = 0, 1
        for start, stop in reversed(list(itertools.pairwise(bounds))):
            for last in range(start + 2, stop + 1):  # merging core by core
                size = merged_size(start, last)
                total += size * (2 * ranks[last - 1] + _FLOPS_PER_NUMBER)
            gathered = merged_size(start, stop) // math.prod(tt_input_shape[start:stop])
            product = 0 if stop == num_cores else 2 * gathered * columns
            columns *= math.prod(tt_output_shape[start:stop])
            moved = gathered + ranks[start] * columns
            total += num_ids * (product + _FLOPS_PER_NUMBER * moved)
        return total

    inner = range(1, num_cores)
    partitions = (
        (0, *cuts, num_cores)
        for count in range(num_cores)
        for cuts in itertools.combinations(inner, count)
    )
    best = min(partitions, key=cost)
    return tuple(stop - start for start, stop in itertools.pairwise(best))


def tt_rows(ids: Tensor, cores: Sequence[Tensor], blocks: Sequence[int]) -> Tensor:
    """Looks up rows of a TT-matrix.

    The gradient of each core is dense: the contributions of repeated ids are added.

    Args:
        ids: Integer tensor of any shape, entries in `[0, prod(V_n))`.
        cores: The `N` cores `(R_{n-1}, V_n, D_n, R_n)`.
        blocks: How many neighboring cores are merged first, as `row_blocks` chooses.

    Returns:
        Tensor `(..., D)`.
    """
    digits = ops.reshape(ops.cast(ids, "int32"), (-1,))
    stops = list(itertools.accumulate(blocks))
    rows, columns = None, 1
    for size, stop in reversed(list(zip(blocks, stops, strict=True))):
        block = merge(cores[stop - size : stop])
        rank, num_rows, width, next_rank = block.shape
        # (V_b, R D_b, R'): R' is summed with the rows of the blocks to the right.
        table = ops.reshape(ops.transpose(block, (1, 0, 2, 3)), (num_rows, -1, next_rank))
        # Multiplying by 1 keeps the gradient dense, and in float32, as it sums many terms.
        wide = ops.multiply(widen(table), 1)
        # The first digit of an id beyond the last row has no entry, which is an error on a CPU.
        entries = ops.take(wide, digits % num_rows if stop > size else digits, axis=0)
        entries = ops.cast(entries, table.dtype)
        digits = digits // num_rows
        columns *= width
        # (ids, R D_b, R') @ (ids, R', D_done) -> (ids, R, D_b D_done)
        rows = entries if rows is None else matmul(entries, rows)
        rows = ops.reshape(rows, (-1, rank, columns))
    return ops.reshape(rows, (*ops.shape(ids), columns))


def form_table(cores: Sequence[np.ndarray], num_rows: int) -> np.ndarray:
    """Forms the first `num_rows` rows `(num_rows, D)` of a tensor train, in NumPy."""
    table = np.ones((1, 1, 1), cores[0].dtype)
    for core in cores:
        table = np.einsum("ijr,rvds->ivjds", table, core, optimize=True)
        table = table.reshape(table.shape[0] * core.shape[1], -1, core.shape[3])
    return table[:num_rows, :, 0]


def table_to_tt(
    table: np.ndarray,
    tt_input_shape: Sequence[int],
    tt_output_shape: Sequence[int],
    tt_ranks: int | Sequence[int] | None = None,
    tolerance: float | None = None,
    row_weights: np.ndarray | None = None,
    sweeps: int = 4,
) -> tuple[list[np.ndarray], float]:
    """Decomposes a table into TT-cores by TT-SVD, followed by weighted least squares.

    With `row_weights` the cores of the TT-SVD are refitted one after the other so as to minimize
    `sum_i w_i ||E[i] - E'[i]||^2`, which is linear in each core (alternating least squares).

    Args:
        table: Array `(V, D)`; rows of zeros fill it up to `prod(tt_input_shape)`.
        tt_input_shape: The `N` factors `V_n`.
        tt_output_shape: The `N` factors `D_n`.
        tt_ranks: The TT-ranks, or an int, their maximum. Pass either this or `tolerance`.
        tolerance: The maximum relative error of the TT-SVD in the Frobenius norm.
        row_weights: Non-negative array `(V,)`. Default: equal weights, without the second step.
        sweeps: Number of passes of the weighted fit over the cores. Defaults to 4.

    Returns:
        The cores, and the relative error `||E - E'|| / ||E||` over the `V` rows, weighted.

    Example:
        >>> cores, error = table_to_tt(np.ones((100, 16)), (10, 10), (4, 4), tt_ranks=1)
        >>> [core.shape for core in cores], error < 1e-6
        ([(1, 10, 4, 1), (1, 10, 4, 1)], True)
    """
    table = np.asarray(table, "float64")
    num_rows = math.prod(tt_input_shape)
    padded = np.zeros((num_rows, table.shape[1]))
    padded[: len(table)] = table
    cores, _ = matrix_to_tt(padded, tt_input_shape, tt_output_shape, tt_ranks, tolerance)
    weights = np.zeros(num_rows)
    weights[: len(table)] = 1.0 if row_weights is None else row_weights
    total = np.sum(weights[:, None] * padded**2)
    if row_weights is not None and total > 0:
        for _ in range(sweeps):
            for n in range(len(cores)):
                cores[n] = _refitted_core(cores, n, padded, weights / weights.sum())
    error = padded - form_table(cores, num_rows)
    squared = np.sum(weights[:, None] * error**2)
    return cores, float(math.sqrt(squared / total)) if total > 0 else 0.0


def _refitted_core(
    cores: list[np.ndarray], n: int, table: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the core `n` that minimizes the weighted squared error for the other cores."""
    rank, rows, columns, next_rank = cores[n].shape
    left = np.ones((1, 1, 1))
    for core in cores[:n]:
        left = np.einsum("ijr,rvds->ivjds", left, core, optimize=True)
        left = left.reshape(left.shape[0] * core.shape[1], -1, core.shape[3])
    right = np.ones((1, 1, 1))  # (R, V_right, D_right)
    for core in reversed(cores[n + 1 :]):
        right = np.einsum("rvds,sij->rvidj", core, right, optimize=True)
        right = right.reshape(core.shape[0], core.shape[1] * right.shape[2], -1)
    a, b, c, e = left.shape[0], left.shape[1], right.shape[1], right.shape[2]
    table = table.reshape(a, rows, c, b, columns, e)
    weights = weights.reshape(a, rows, c)
    left_gram = np.einsum("ijr,ijs->irs", left, left, optimize=True)
    right_gram = np.einsum("rij,sij->irs", right, right, optimize=True)
    fitted = np.empty_like(cores[n])
    for v in range(rows):
        gram = np.einsum(
            "xy,xrs,ytu->rtsu", weights[:, v], left_gram, right_gram, optimize=True
        ).reshape(rank * next_rank, -1)
        targets = table[:, v] * weights[:, v, :, None, None, None]
        # (x: rows left, y: rows right, j: columns left, d: this core's, k: columns right)
        moment = np.einsum("xyjdk,xjr,tyk->rtd", targets, left, right, optimize=True)
        # The ridge keeps entries of digits without weight at their previous values.
        ridge = 1e-6 * np.trace(gram) / len(gram) + 1e-12
        old = cores[n][:, v].transpose(0, 2, 1).reshape(len(gram), columns)
        solved = np.linalg.solve(
            gram + ridge * np.eye(len(gram)), moment.reshape(len(gram), columns) + ridge * old
        )
        fitted[:, v] = solved.reshape(rank, next_rank, columns).transpose(0, 2, 1)
    return fitted


def similarity_order(table: np.ndarray) -> np.ndarray:
    """Orders rows so that similar ones are neighbors and share the digits of a tensor train.

    The rows are halved at the median along their first principal axis, and each half again, until
    at most 8 are left: the order of the leaves of a k-d tree along principal axes. The axes are
    those of at most 4,096 of their rows, by power iteration.

    Returns:
        Integer array `(V,)`: the row that comes first, second, ...
    """
    table = np.asarray(table)
    order = np.arange(len(table))
    starts, sizes = np.array([0]), np.array([len(table)])
    while len(starts):
        for size in np.unique(sizes):
            same = starts[sizes == size]
            for some in np.array_split(same, math.ceil(len(same) * size / _ORDERED_ROWS) or 1):
                places = some[:, None] + np.arange(size)
                order[places] = _ordered_along_axes(table, order[places])
        starts, sizes = starts[sizes > _LEAF], sizes[sizes > _LEAF]
        half = sizes // 2
        starts, sizes = np.append(starts, starts + half), np.append(half, sizes - half)
    return order


def _ordered_along_axes(table: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Orders the rows of each group `(n, size)` along the first principal axis of the group."""
    if not groups.size:
        return groups
    some = table[groups[:, :: math.ceil(groups.shape[1] / _AXIS_ROWS)]]
    means = some.mean(axis=1, keepdims=True)
    some = some - means
    some /= np.abs(some).max() or 1.0
    # The longest row is a good start.
    longest = np.einsum("gvd,gvd->gv", some, some).argmax(axis=1)
    axes = some[np.arange(len(some)), longest][..., None]
    for _ in range(_AXIS_STEPS):
        axes = axes / (np.linalg.norm(axes, axis=1, keepdims=True) + 1e-30)
        axes = some.swapaxes(1, 2) @ (some @ axes)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1, keepdims=True), axis=1)
    axes = axes * np.sign(largest)
    along = np.empty(groups.shape, some.dtype)
    step = max(1, _ORDERED_ROWS // len(groups))
    for start in range(0, groups.shape[1], step):
        part = slice(start, start + step)
        along[:, part] = ((table[groups[:, part]] - means) @ axes)[..., 0]
    return np.take_along_axis(groups, along.argsort(axis=1, kind="stable"), axis=1)
