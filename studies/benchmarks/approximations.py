"""Approximates kernels and tables by tensor networks, by low rank and by integers.

Factors are in floats of 4 bytes, or in integers of 8 bits in groups of 128.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_small.coding.arrays import coded_bytes
from keras_small.storage import integer_groups
from keras_tnattn.ops import low_rank
from keras_tnattn.ops.tensor_train.factors import balanced_factors

# The shares of the floats' bytes for which factors are made.
SHARES = (0.03, 0.06, 0.12, 0.25, 0.5)
BITS = (8, 6, 4, 3, 2)
STEPS = tuple(2 ** (k / 2) for k in range(-6, 4))
GROUP = 64
FACTOR_GROUP = 128


class Approximation(NamedTuple):
    """A matrix, how it was made, with which number (of bits, a step or a share), and its bytes."""

    way: str
    setting: float
    bytes: int
    matrix: np.ndarray


def of_kernel(kernel: np.ndarray, moment: np.ndarray) -> Iterator[Approximation]:
    """Yields approximations `(n, m)` for inputs of a second moment `(n, n)`."""
    yield from integers(kernel, moment, axis=0)
    damped = moment + 1e-4 * np.trace(moment) / len(moment) * np.eye(len(moment))
    yield from low_ranks(kernel, low_rank.square_root(damped))
    yield from kernel_trains(kernel, damped)


def of_table(table: np.ndarray, counts: np.ndarray) -> Iterator[Approximation]:
    """Yields approximations `(V, D)` of a table whose rows are read as often as the counts say."""
    weights = counts + 1.0
    yield from integers(table, None, axis=1)
    yield from low_ranks(table, np.sqrt(weights))
    yield from table_trains(table, np.sqrt(weights))
    yield from product_states(table)


def integers(matrix: np.ndarray, moment: np.ndarray | None, axis: int) -> Iterator[Approximation]:
    """Integers in groups, and integers of one step whose entropy is counted."""
    known = None if moment is None else integer_groups.FactoredMoment.of(moment)
    for bits in BITS:
        groups = integer_groups.quantize_groups(matrix, bits, GROUP, axis, moment=known)
        size = matrix.shape[axis]
        restored = integer_groups.restored_matrix(groups, size, bits, GROUP, axis)
        yield Approximation("integers", bits, groups.nbytes, restored)
    columns = matrix if axis == 0 else matrix.T
    for step in STEPS:
        bits = integer_groups.bits_of_step(columns, step)
        if bits is None:
            continue
        size = len(columns)
        groups = integer_groups.quantize_groups(columns, bits, size, moment=known, step=step)
        symbols = integer_groups.unpacked_integers(groups.integers, bits)[:size]
        restored = integer_groups.restored_matrix(groups, size, bits, size)
        restored = restored if axis == 0 else restored.T
        coded = coded_bytes(symbols, symbols.size)
        yield Approximation("coded integers", step, coded, restored)


def low_ranks(matrix: np.ndarray, root: np.ndarray) -> Iterator[Approximation]:
    """Products of two matrices, best for `root @ matrix` or, of a vector, `root * matrix`."""
    left, right, _ = low_rank.low_rank_factors(matrix, root)
    for share, rank in ranks_for(matrix.size, sum(matrix.shape), len(right)):
        yield from both("low rank", share, left[:, :rank], right[:rank], lambda a, b: a @ b)


def kernel_trains(kernel: np.ndarray, moment: np.ndarray) -> Iterator[Approximation]:
    """Tensor trains of two cores, of balanced factors.

    The second moment is approximated by a Kronecker product, so that the cores are those of a
    singular value decomposition.
    """
    (n1, n2), (m1, m2) = (balanced_factors(size, 2) for size in kernel.shape)
    parts = moment.reshape(n1, n2, n1, n2)
    first, second = np.einsum("iaja->ij", parts), np.einsum("aiaj->ij", parts)
    roots = [low_rank.square_root(first / np.trace(first)), low_rank.square_root(second)]
    unfolded = kernel.reshape(n1, n2, m1, m2).transpose(0, 2, 1, 3).astype("float64")
    scaled = np.einsum("ij,kl,jalb->iakb", *roots, unfolded.reshape(n1, m1, n2, m2))
    u, s, vt = np.linalg.svd(scaled.reshape(n1 * m1, n2 * m2), full_matrices=False)
    u = np.linalg.solve(roots[0], u.reshape(n1, -1)).reshape(n1 * m1, -1) * np.sqrt(s)
    vt = (vt * np.sqrt(s)[:, None]).reshape(-1, n2, m2)
    vt = np.linalg.solve(roots[1], vt).reshape(-1, n2 * m2)

    def join(a, b):
        return (a @ b).reshape(n1, m1, n2, m2).transpose(0, 2, 1, 3).reshape(kernel.shape)

    for share, rank in ranks_for(kernel.size, len(u) + vt.shape[1], len(s)):
        yield from both("tensor train", share, u[:, :rank], vt[:rank], join)


def table_trains(table: np.ndarray, root: np.ndarray) -> Iterator[Approximation]:
    """Tensor trains of two cores, the rows on a grid in the order of their first axes."""
    rows, columns = (math.isqrt(len(table) - 1) + 1, balanced_factors(table.shape[1], 2))
    order = np.argsort(np.linalg.svd(table - table.mean(0), full_matrices=False)[0][:, 0])
    padded = np.zeros((rows * rows, table.shape[1]))
    # Each row counts with the root of its weight; the cores have no place to divide by it again, so
    # that the weights are those of the groups.
    padded[: len(table)] = table[order]
    group_root = np.zeros(rows * rows)
    group_root[: len(table)] = root[order] ** 2
    group_root = np.sqrt(group_root.reshape(rows, rows).sum(1) + 1e-9)
    grid = padded.reshape(rows, rows, *columns).transpose(0, 2, 1, 3)
    scaled = (group_root[:, None, None, None] * grid).reshape(rows * columns[0], -1)
    ranks = ranks_for(table.size, sum(scaled.shape), min(scaled.shape))
    u, s, vt = truncated_svd(scaled, ranks[-1][1])
    u = u / np.repeat(group_root, columns[0])[:, None] * np.sqrt(s)
    vt = vt * np.sqrt(s)[:, None]

    def join(a, b):
        grid = (a @ b).reshape(rows, columns[0], rows, columns[1]).transpose(0, 2, 1, 3)
        found = np.empty_like(table)
        found[order] = grid.reshape(rows * rows, -1)[: len(table)]
        return found

    for share, rank in ranks:
        yield from both("tensor train", share, u[:, :rank], vt[:rank], join, 2 * len(table))


def product_states(table: np.ndarray) -> Iterator[Approximation]:
    """A tensor train of its own for each row, of rank 1 (a product state) and more.

    TensorGPT, Xu et al., 2023, https://arxiv.org/abs/2307.00526, sec. 3.
    """
    first, second = balanced_factors(table.shape[1], 2)
    u, s, vt = np.linalg.svd(table.reshape(-1, first, second), full_matrices=False)
    for rank in (1, 2, 4):
        left = (u[..., :rank] * np.sqrt(s[:, None, :rank])).reshape(len(table), -1)
        right = (np.sqrt(s[:, :rank, None]) * vt[:, :rank]).reshape(len(table), -1)

        def join(a, b, rank=rank):
            a, b = a.reshape(-1, first, rank), b.reshape(-1, rank, second)
            return (a @ b).reshape(table.shape)

        yield from both("state of each token", rank, left, right, join)


def both(way, setting, left, right, join, more=0) -> Iterator[Approximation]:
    """Yields what two factors form, in floats and in integers of 8 bits."""
    floats = 4 * (left.size + right.size)
    yield Approximation(way, setting, floats + more, join(left, right))
    rounded = [in_8_bits(left, 0), in_8_bits(right, 1)]
    size = sum(size for _, size in rounded)
    yield Approximation(f"{way}, 8 bits", setting, size + more, join(*(x for x, _ in rounded)))


def in_8_bits(matrix: np.ndarray, axis: int) -> tuple[np.ndarray, int]:
    """Returns the restored matrix, and its bytes."""
    groups = integer_groups.quantize_groups(matrix, 8, FACTOR_GROUP, axis)
    size = matrix.shape[axis]
    return integer_groups.restored_matrix(groups, size, 8, FACTOR_GROUP, axis), groups.nbytes


def ranks_for(size: int, numbers: int, largest: int) -> list[tuple[float, int]]:
    """Returns shares of a matrix of this size, and the ranks of as many numbers."""
    ranks = [(share, min(int(share * size / numbers), largest)) for share in SHARES]
    return [(share, rank) for share, rank in ranks if rank > 0]


def truncated_svd(matrix: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The leading parts of an SVD, from the smaller of the two Gram matrices."""
    tall = len(matrix) >= matrix.shape[1]
    values, vectors = np.linalg.eigh(matrix.T @ matrix if tall else matrix @ matrix.T)
    s = np.sqrt(np.maximum(values[::-1][:largest], 1e-30))
    vectors = vectors[:, ::-1][:, :largest]
    if tall:
        return matrix @ vectors / s, s, vectors.T
    return vectors, s, vectors.T @ matrix / s[:, None]


def of_heads(tensor: np.ndarray) -> Iterator[Approximation]:
    """Factors that the heads of query, key, value and output share, with a core for each head.

    TensorLLM, Gu et al., 2025, https://arxiv.org/abs/2501.15674, sec. 3: a Tucker decomposition of
    a tensor (model size, head size, 4, heads), without data.
    """
    width, size, kernels, heads = tensor.shape
    for share in SHARES:
        best = (1.0, None)
        for second, third in itertools.product((4, 8, 16, 24, size), range(1, kernels + 1)):
            rest = share * tensor.size - size * second - kernels * third
            first = min(width, int(rest // (width + heads * second * third)))
            if first > 0:
                best = min(best, tucker(tensor, (first, second, third)), key=lambda found: found[0])
        if best[1] is None:
            continue
        factors, core = best[1]
        numbers = core.size + sum(factor.size for factor in factors)
        yield Approximation("heads together", share, 4 * numbers, formed(core, factors))
        arrays, sizes = zip(
            *(in_8_bits(x.reshape(len(x), -1), 1) for x in (core, *factors)), strict=True
        )
        core, *factors = (x.reshape(y.shape) for x, y in zip(arrays, (core, *factors), strict=True))
        yield Approximation("heads together, 8 bits", share, sum(sizes), formed(core, factors))


def tucker(tensor, ranks):
    """Returns the relative error of factors of these ranks, and the factors with their core."""
    factors = [leading(tensor, mode, rank) for mode, rank in enumerate(ranks)]
    for mode, rank in enumerate(ranks):
        others = [(m, factor) for m, factor in enumerate(factors) if m != mode]
        factors[mode] = leading(projected(tensor, others), mode, rank)
    core = projected(tensor, list(enumerate(factors)))
    error = np.sqrt(max(0.0, 1 - np.sum(core**2) / np.sum(tensor**2)))
    return error, (factors, core)


def formed(core, factors):
    return projected(core, [(mode, factor.T) for mode, factor in enumerate(factors)])


def projected(tensor, factors):
    for mode, factor in factors:
        tensor = np.moveaxis(np.tensordot(factor.T, tensor, axes=(1, mode)), 0, mode)
    return tensor


def leading(tensor, mode, rank):
    """Returns the leading eigenvectors of a mode."""
    rows = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
    return np.linalg.eigh(rows @ rows.T)[1][:, -rank:]
