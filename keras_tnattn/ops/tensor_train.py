"""Tensor-train (TT) matrices: factorization, ranks, TT-SVD and contraction.

A TT-matrix `W` of shape `(I, J)`, `I = prod(I_n)` and `J = prod(J_n)`, is held as `N` TT-cores
`G_n` of shape `(R_{n-1}, I_n, J_n, R_n)` with `R_0 = R_N = 1`:

    W[i, j] = G_1[:, i_1, j_1, :] @ G_2[:, i_2, j_2, :] @ ... @ G_N[:, i_N, j_N, :]

Multi-indices run in C order (`i_N` fastest). Equations 1-3 of Xu et al., "Low-Complexity Attention
Modelling via Graph Tensor Networks"; Oseledets (2011) for the decomposition.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import overload

import numpy as np
from keras import ops

from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor

# Moving one byte takes about as long as this many floating-point operations, a value between those
# of server CPUs and GPUs. Only the comparison of plans depends on it.
_FLOPS_PER_BYTE = 32
_BYTES_PER_FLOAT = 4


def prime_factors(size: int) -> list[int]:
    """Returns the prime factors of `size` in ascending order; `[1]` for 1.

    Example:
        >>> prime_factors(300)
        [2, 2, 3, 5, 5]
    """
    if size < 1:
        raise ValueError(f"Expected a positive size. Received: size={size}")
    factors, divisor = [], 2
    while divisor * divisor <= size:
        while size % divisor == 0:
            factors.append(divisor)
            size //= divisor
        divisor += 1
    return [*factors, size] if size > 1 else factors or [1]


def balanced_factors(size: int, num_factors: int) -> tuple[int, ...]:
    """Splits `size` into `num_factors` factors, as equal as its prime factors allow.

    Args:
        size: Positive int; the product of the result, exactly. Nothing is padded.
        num_factors: Positive int. More factors than `size` has primes are filled up with 1.

    Returns:
        The factors in ascending order, for instance `balanced_factors(300, 3) == (5, 6, 10)`.

    Example:
        >>> balanced_factors(300, 3)
        (5, 6, 10)
    """
    if num_factors < 1:
        raise ValueError(f"Expected at least one factor. Received: num_factors={num_factors}")
    factors = [1] * num_factors
    for prime in reversed(prime_factors(size)):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors))


def tt_shapes(input_dim: int, output_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Proposes the factors of a TT-matrix of shape `(input_dim, output_dim)`.

    The sizes are split into their prime factors; powers of two are thus quantized (all factors 2,
    QTT). The size with fewer prime factors is filled up with ones, and its large factors are paired
    with small factors of the other size, so that no core is larger than necessary. Nothing is
    padded: a prime size stays one factor.

    Returns:
        `(tt_input_shape, tt_output_shape)`, of equal length.

    Example:
        >>> tt_shapes(16, 10)
        ((2, 2, 2, 2), (5, 2, 1, 1))
    """
    num_factors = max(len(prime_factors(input_dim)), len(prime_factors(output_dim)))
    inputs = balanced_factors(input_dim, num_factors)
    outputs = balanced_factors(output_dim, num_factors)
    return inputs, outputs[::-1]


def resolve_factors(
    input_dim: int,
    output_dim: int,
    tt_input_shape: Sequence[int] | None,
    tt_output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the given factors of both sizes, or those of `tt_shapes` if there are none.

    Raises:
        ValueError: If only one of both is given.

    Example:
        >>> resolve_factors(6, 4, [2, 3], [2, 2])
        ((2, 3), (2, 2))
        >>> resolve_factors(16, 10, None, None)
        ((2, 2, 2, 2), (5, 2, 1, 1))
    """
    check_both_factors(tt_input_shape, tt_output_shape)
    if tt_input_shape is None or tt_output_shape is None:
        return tt_shapes(input_dim, output_dim)
    return as_ints(tt_input_shape), as_ints(tt_output_shape)


def check_both_factors(
    tt_input_shape: Sequence[int] | None, tt_output_shape: Sequence[int] | None
) -> None:
    """Raises a `ValueError` if the factors of only one size are given.

    Example:
        >>> check_both_factors((2, 3), (2, 2))
        >>> check_both_factors(None, None)
    """
    if (tt_input_shape is None) != (tt_output_shape is None):
        raise ValueError(
            "Expected both of `tt_input_shape` and `tt_output_shape`, or none. Received: "
            f"tt_input_shape={tt_input_shape}, tt_output_shape={tt_output_shape}"
        )


def check_factors(tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]) -> None:
    """Raises a `ValueError` unless both are `N >= 1` positive factors.

    Example:
        >>> check_factors((2, 3), (4, 5))
        >>> check_factors((2, 3), (4,))
        Traceback (most recent call last):
            ...
        ValueError: Expected as many positive input factors as output factors, at least one. ...
    """
    factors = (*tt_input_shape, *tt_output_shape)
    if len(tt_input_shape) != len(tt_output_shape) or not factors or min(factors) < 1:
        raise ValueError(
            "Expected as many positive input factors as output factors, at least one. Received: "
            f"tt_input_shape={tuple(tt_input_shape)}, tt_output_shape={tuple(tt_output_shape)}"
        )


def rank_bounds(tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the largest useful TT-rank of each of the `N - 1` bonds.

    Bond `n` joins `(I_1 J_1) ... (I_n J_n)` to the rest; its rank is bounded by the smaller of the
    two products.

    Example:
        >>> rank_bounds((2, 2, 2, 2), (2, 2, 2, 2))
        (4, 16, 4)
    """
    sizes = [i * j for i, j in zip(tt_input_shape, tt_output_shape, strict=True)]
    return tuple(min(math.prod(sizes[:n]), math.prod(sizes[n:])) for n in range(1, len(sizes)))


@overload
def as_ints(value: None) -> None: ...
@overload
def as_ints(value: int) -> int: ...
@overload
def as_ints(value: Sequence[int]) -> tuple[int, ...]: ...
def as_ints(value: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Returns ranks or factors as a Python int or a tuple of them, which a config can hold.

    Example:
        >>> as_ints(np.int64(3)), as_ints([2, 4])
        (3, (2, 4))
    """
    if value is None:
        return None
    return int(value) if isinstance(value, int | np.integer) else tuple(int(v) for v in value)


def resolve_ranks(
    tt_ranks: int | Sequence[int],
    tt_input_shape: Sequence[int],
    tt_output_shape: Sequence[int],
) -> tuple[int, ...]:
    """Returns the `N - 1` inner TT-ranks that `tt_ranks` stands for.

    Args:
        tt_ranks: Int, the maximum TT-rank, clipped at each bond to `rank_bounds`; or the sequence
            of ranks, which is returned unchanged.
        tt_input_shape: The `N` factors `I_n`.
        tt_output_shape: The `N` factors `J_n`.

    Raises:
        ValueError: If a rank is below 1, or a sequence has the wrong length or is above the bound.

    Example:
        >>> resolve_ranks(8, (2, 2, 2, 2), (2, 2, 2, 2))
        (4, 8, 4)
    """
    bounds = rank_bounds(tt_input_shape, tt_output_shape)
    ranks = as_ints(tt_ranks)
    if isinstance(ranks, int):
        if ranks < 1:
            raise ValueError(f"Expected a positive TT-rank. Received: tt_ranks={ranks}")
        return tuple(min(ranks, bound) for bound in bounds)
    fits = len(ranks) == len(bounds) and all(
        1 <= r <= bound for r, bound in zip(ranks, bounds, strict=True)
    )
    if not fits:
        raise ValueError(
            f"Expected {len(bounds)} TT-ranks, each at least 1 and at most {bounds} for "
            f"tt_input_shape={tuple(tt_input_shape)} and tt_output_shape={tuple(tt_output_shape)}. "
            f"Received: tt_ranks={ranks}. Pass an int to have the ranks clipped to the bound."
        )
    return ranks


def core_shapes(
    tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], tt_ranks: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Returns the shapes `(R_{n-1}, I_n, J_n, R_n)` of the `N` TT-cores.

    Example:
        >>> core_shapes((2, 3), (4, 5), (6,))
        [(1, 2, 4, 6), (6, 3, 5, 1)]
    """
    ranks = (1, *tt_ranks, 1)
    return list(zip(ranks[:-1], tt_input_shape, tt_output_shape, ranks[1:], strict=True))


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
    cores, rank, squared_error = [], 1, 0.0
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


def merge(cores: Sequence) -> Tensor:
    """Merges a run of cores into one block `(..., R_first, I, J, R_last)`, halves first.

    Each merger is one matrix product and one exchange of two axes; leading axes (heads) are carried
    along. Interleaving all axes at the end instead would be one transposition of `2 N` axes,
    which no backend has a fast kernel for.

    Example:
        >>> tuple(merge([ops.ones((1, 2, 4, 6)), ops.ones((6, 3, 5, 1))]).shape)
        (1, 6, 20, 1)
    """
    if len(cores) == 1:
        return cores[0]
    half = len(cores) // 2
    left, right = merge(cores[:half]), merge(cores[half:])
    *lead, first_rank, left_in, left_out, rank = left.shape
    _, right_in, right_out, last_rank = right.shape[-4:]
    merged = matmul(
        ops.reshape(left, (*lead, first_rank * left_in * left_out, rank)),
        ops.reshape(right, (*lead, rank, right_in * right_out * last_rank)),
    )
    merged = ops.reshape(
        merged, (*lead, first_rank * left_in, left_out, right_in, right_out * last_rank)
    )
    merged = ops.swapaxes(merged, -3, -2)
    return ops.reshape(
        merged, (*lead, first_rank, left_in * right_in, left_out * right_out, last_rank)
    )


def tt_to_matrix(cores: Sequence) -> Tensor:
    """Forms the matrix `W` of a TT-matrix.

    Args:
        cores: The `N` cores `(..., R_{n-1}, I_n, J_n, R_n)`; leading axes, the same for all, are
            carried along.

    Returns:
        Tensor `(..., I, J)`. Costs about `R I J` multiplications.

    Example:
        >>> tuple(tt_to_matrix([ops.ones((1, 2, 4, 6)), ops.ones((6, 3, 5, 1))]).shape)
        (6, 20)
    """
    merged = merge(cores)
    *lead, _, rows, columns, _ = merged.shape
    return ops.reshape(merged, (*lead, rows, columns))


@dataclasses.dataclass(frozen=True)
class ContractionPlan:
    """How `x @ W` is evaluated for a TT-matrix `W`.

    The cores are merged into one block (`split == 0`: `W` itself is formed) or into two, the left
    one with the cores before `split`. Multiplying by one core after the other would read and write
    the data `N` times.

    Attributes:
        split: Number of cores in the left block, 0 to form `W`.
        left_first: Whether the left block is applied before the right one.
        flops_per_row: Floating-point operations for each row of `x`, without merging.
        intermediate_size: Numbers held between the two products, for each row of `x`.
        dense_flops_per_row: `2 I J`, for comparison.
        parameters: Number of entries of all cores.
        cost: FLOPs and weighted memory traffic for each row of `x`, which the plan minimizes.

    Example:
        >>> contraction_plan((2,) * 10, (2,) * 10, (2,) * 9).split
        5
    """

    split: int
    left_first: bool
    flops_per_row: int
    intermediate_size: int
    dense_flops_per_row: int
    parameters: int
    cost: int = 0

    def __str__(self) -> str:
        if self.split == 0:
            how = "form W, then one matrix product"
        else:
            order = "left block first" if self.left_first else "right block first"
            how = f"two blocks, split after core {self.split}, {order}"
        return (
            f"{how}; {self.flops_per_row:,} FLOPs per row against {self.dense_flops_per_row:,} "
            f"({self.dense_flops_per_row / self.flops_per_row:.1f} times fewer), "
            f"{self.parameters:,} parameters"
        )


def contraction_plan(
    tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], tt_ranks: Sequence[int]
) -> ContractionPlan:
    """Chooses the cheapest evaluation of `x @ W` from the shapes alone.

    The cost of a plan is its FLOPs plus its memory traffic (weighted by the FLOPs a machine can do
    while it moves a byte) for each row of `x`; merging the cores has no batch axis and is left out.

    Example:
        >>> print(contraction_plan((2,) * 10, (2,) * 10, (2,) * 9))
        two blocks, split after core 5, ...
    """
    input_dim, output_dim = math.prod(tt_input_shape), math.prod(tt_output_shape)
    parameters = sum(math.prod(s) for s in core_shapes(tt_input_shape, tt_output_shape, tt_ranks))
    dense_flops = 2 * input_dim * output_dim

    def plan(split: int, left_first: bool, flops: int, intermediate: int) -> ContractionPlan:
        moved = input_dim + output_dim + 2 * intermediate
        cost = flops + _FLOPS_PER_BYTE * _BYTES_PER_FLOAT * moved
        return ContractionPlan(
            split, left_first, flops, intermediate, dense_flops, parameters, cost
        )

    plans = [plan(0, False, dense_flops, 0)]
    for split in range(1, len(tt_input_shape)):
        rank = tt_ranks[split - 1]
        left_in, left_out = math.prod(tt_input_shape[:split]), math.prod(tt_output_shape[:split])
        right_in, right_out = input_dim // left_in, output_dim // left_out
        held = left_out * rank * right_in
        plans.append(plan(split, True, 2 * held * (left_in + right_out), held))
        held = left_in * rank * right_out
        plans.append(plan(split, False, 2 * held * (right_in + left_out), held))
    return min(plans, key=lambda plan: plan.cost)


def plan_of(cores: Sequence) -> ContractionPlan:
    """Returns the `contraction_plan` for given cores `(..., R_{n-1}, I_n, J_n, R_n)`.

    Example:
        >>> plan_of([ops.ones((1, 2, 4, 6)), ops.ones((6, 3, 5, 1))]).parameters
        138
    """
    shapes = [tuple(core.shape[-4:]) for core in cores]
    return contraction_plan(
        [s[1] for s in shapes], [s[2] for s in shapes], [s[3] for s in shapes[:-1]]
    )


@dataclasses.dataclass(frozen=True)
class SuggestedShapes:
    """The result of `suggest_shapes`: arguments of `TTDense`, and their costs.

    Attributes:
        tt_input_shape: The factors `I_n`.
        tt_output_shape: The factors `J_n`.
        tt_ranks: The inner TT-ranks.
        plan: How a product with this TT-matrix is evaluated.
        relative_error: Relative Frobenius error of the given weight at these shapes; `None` without
            a weight.

    Example:
        >>> found = suggest_shapes(64, 64, max_parameters=512)
        >>> found.tt_input_shape, found.tt_ranks
        ((2, 2, 2, 2, 2, 2), (4, 6, 6, 6, 4))
    """

    tt_input_shape: tuple[int, ...]
    tt_output_shape: tuple[int, ...]
    tt_ranks: tuple[int, ...]
    plan: ContractionPlan
    relative_error: float | None = None

    def __str__(self) -> str:
        text = (
            f"input {self.tt_input_shape}, output {self.tt_output_shape}, "
            f"ranks {self.tt_ranks}: {self.plan}"
        )
        if self.relative_error is not None:
            text += f", relative error {self.relative_error:.2g}"
        return text


def suggest_shapes(
    input_dim: int,
    output_dim: int,
    max_parameters: int | None = None,
    max_error: float | None = None,
    weight: np.ndarray | None = None,
) -> SuggestedShapes:
    """Searches for the factors and ranks of a TT-matrix that is cheap to multiply by.

    All factorizations of both sizes into equally many factors are tried, in ascending and in
    descending order. The cost is that of `contraction_plan`, FLOPs plus memory traffic per row.
    (Xu et al., "A Tensorized Spectral Attention Mechanism", section 7, leave the ranks and factors
    of the least computation open: rank 2 has the fewest parameters, not the fewest FLOPs.)

    - Only `max_parameters`: each factorization gets the largest rank within the limit. The result
      is the cheapest one whose matrix can have full rank, `min(I, J)`; among equally cheap ones,
      the one with the most parameters. For a large matrix and a small limit this can be a rank of
      1, a Kronecker product, because this choice ignores how well a kernel is approximated: pass a
      `weight` if there is one.
    - `max_parameters` and `weight`: each factorization gets the largest rank within the limit. The
      result is the one that approximates the weight best.
    - `max_error` and `weight`: each factorization gets the ranks that TT-SVD needs for this error.
      The result is the cheapest one, if `max_parameters` is given among those within this limit.

    Args:
        input_dim: Int, the size `I`.
        output_dim: Int, the size `J`.
        max_parameters: Int, the largest number of entries of all cores.
        max_error: Float, the largest relative Frobenius error; needs `weight`.
        weight: Array `(I, J)`, the matrix to approximate.

    Returns:
        A `SuggestedShapes`; print it for an explanation. The TT-SVD of a weight costs an
        eigendecomposition for each way to cut both sizes in two: seconds for `1024 x 1024`.
        The number of factorizations grows with that of the divisors: the search takes seconds for
        `4096 x 4096`, and a minute for `5040 x 5040`.

    Raises:
        ValueError: If neither limit is given, or nothing satisfies them.

    Example:
        >>> found = suggest_shapes(64, 64, max_parameters=512)
        >>> found.plan.parameters <= 512
        True
    """
    if max_parameters is None and max_error is None:
        raise ValueError("Expected `max_parameters`, `max_error` or both. Received: neither")
    if max_error is not None and (weight is None or max_error < 0):
        raise ValueError(
            "Expected an error of at least 0 and a `weight` to measure it on. "
            f"Received: max_error={max_error}, weight={'None' if weight is None else 'an array'}"
        )
    if weight is not None and np.shape(weight) != (input_dim, output_dim):
        raise ValueError(
            f"Expected a weight of shape {(input_dim, output_dim)}. "
            f"Received: weight.shape={np.shape(weight)}"
        )
    tails = _Tails(weight) if weight is not None else None
    limit = math.inf if max_parameters is None else max_parameters
    best, best_key = None, (math.inf, math.inf)
    for factors in _factorizations(input_dim, output_dim):
        ranks: tuple[int, ...] | None
        if max_error is not None and tails is not None:
            ranks = tails.ranks(*factors, max_error)
        else:
            ranks = _largest_ranks(*factors, limit)
        if ranks is None or (weight is None and not _can_have_full_rank(*factors, ranks)):
            continue
        plan = contraction_plan(*factors, ranks)
        if plan.parameters > limit:
            continue
        key: tuple[float, float]
        if max_error is not None:
            key = (plan.cost, plan.parameters)
        elif tails is not None:
            key = (tails.error(*factors, ranks), plan.cost)
        else:
            key = (plan.cost, -plan.parameters)
        if best is None or key < best_key:
            best, best_key = SuggestedShapes(*factors, ranks, plan), key
    if best is None:
        raise ValueError(
            "Found no factors and ranks within the limits; allow more parameters or a larger "
            f"error. Received: input_dim={input_dim}, output_dim={output_dim}, "
            f"max_parameters={max_parameters}, max_error={max_error}"
        )
    if weight is None:
        return best
    shapes = best.tt_input_shape, best.tt_output_shape
    _, error = matrix_to_tt(weight, *shapes, tt_ranks=best.tt_ranks)
    return dataclasses.replace(best, relative_error=error)


def _factorizations(
    input_dim: int, output_dim: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns pairs of equally many factors; the shorter list is filled up with ones."""
    pairs = set()
    for inputs in _multiplicative_partitions(input_dim):
        for outputs in _multiplicative_partitions(output_dim):
            count = max(len(inputs), len(outputs))
            first = (1,) * (count - len(inputs)) + inputs
            second = (1,) * (count - len(outputs)) + outputs
            pairs |= {(first, second), (first, second[::-1])}
    return sorted(pairs)


def _multiplicative_partitions(size: int, smallest: int = 2) -> list[tuple[int, ...]]:
    """Returns all ascending lists of factors, at least `smallest`, whose product is `size`."""
    partitions: list[tuple[int, ...]] = [(size,)]
    for factor in range(smallest, math.isqrt(size) + 1):
        if size % factor == 0:
            rest = _multiplicative_partitions(size // factor, factor)
            partitions += [(factor, *factors) for factors in rest]
    return partitions


def _largest_ranks(
    tt_input_shape: tuple[int, ...], tt_output_shape: tuple[int, ...], max_parameters: float
) -> tuple[int, ...] | None:
    """Returns the ranks for the largest maximum rank that fits; `None` if rank 1 does not."""

    def ranks_at(rank: int) -> tuple[int, ...] | None:
        ranks = resolve_ranks(rank, tt_input_shape, tt_output_shape)
        shapes = core_shapes(tt_input_shape, tt_output_shape, ranks)
        return ranks if sum(math.prod(shape) for shape in shapes) <= max_parameters else None

    low, high = 1, max(rank_bounds(tt_input_shape, tt_output_shape), default=1)
    best = ranks_at(low)
    if best is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        ranks = ranks_at(middle)
        if ranks is None:
            high = middle - 1
        else:
            low, best = middle, ranks
    return best


def _can_have_full_rank(
    tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], tt_ranks: Sequence[int]
) -> bool:
    """Whether no bond limits the rank of the matrix to less than its smaller side.

    At a bond, a product passes through `(outputs done) x rank x (inputs left)` numbers, from the
    left or from the right.
    """
    input_dim, output_dim = math.prod(tt_input_shape), math.prod(tt_output_shape)
    for n, rank in enumerate(tt_ranks, 1):
        left_in, left_out = math.prod(tt_input_shape[:n]), math.prod(tt_output_shape[:n])
        from_left = left_out * rank * (input_dim // left_in)
        from_right = left_in * rank * (output_dim // left_out)
        if min(from_left, from_right) < min(input_dim, output_dim):
            return False
    return True


class _Tails:
    """Squared errors of truncating the unfoldings of a matrix, shared by all factorizations."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = np.asarray(matrix, "float64")
        self.square = max(float(np.sum(self.matrix**2)), np.finfo("float64").tiny)
        self.tails: dict[tuple[int, int], np.ndarray] = {}

    def tail(self, left_in: int, left_out: int) -> np.ndarray:
        """`tail[r]`, the relative squared error of rank `r` where both sizes are cut in two."""
        if (left_in, left_out) not in self.tails:
            rows, columns = self.matrix.shape
            unfolded = self.matrix.reshape(left_in, rows // left_in, left_out, columns // left_out)
            unfolded = unfolded.transpose(0, 2, 1, 3).reshape(left_in * left_out, -1)
            if len(unfolded) > unfolded.shape[1]:
                unfolded = unfolded.T
            squares = np.maximum(np.linalg.eigvalsh(unfolded @ unfolded.T), 0) / self.square
            # Ascending: sums of the smallest ones, read backwards.
            self.tails[left_in, left_out] = np.append(np.cumsum(squares)[::-1], 0.0)
        return self.tails[left_in, left_out]

    def bonds(
        self, tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]
    ) -> list[np.ndarray]:
        bonds = range(1, len(tt_input_shape))
        return [
            self.tail(math.prod(tt_input_shape[:n]), math.prod(tt_output_shape[:n])) for n in bonds
        ]

    def ranks(
        self, tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], error: float
    ) -> tuple[int, ...]:
        """The ranks with which TT-SVD keeps the relative error."""
        tails = self.bonds(tt_input_shape, tt_output_shape)
        allowed = error**2 / max(len(tails), 1)
        # Rounding: sums of squares are exact to about 1e-15.
        return tuple(max(1, int(np.argmax(tail <= max(allowed, 1e-15)))) for tail in tails)

    def error(
        self,
        tt_input_shape: Sequence[int],
        tt_output_shape: Sequence[int],
        tt_ranks: Sequence[int],
    ) -> float:
        """The bound of the relative error at these ranks (Oseledets 2011, theorem 2.2)."""
        tails = self.bonds(tt_input_shape, tt_output_shape)
        return math.sqrt(sum(tail[r] for tail, r in zip(tails, tt_ranks, strict=True)))


def tt_matmul(x: Tensor, cores: Sequence, plan: ContractionPlan | None = None) -> Tensor:
    """Multiplies by a TT-matrix: `y = x W`; forms `W` only if that is cheaper.

    The value does not depend on the plan, up to rounding.

    Args:
        x: Tensor `(..., I)`; the leading sizes may be unknown.
        cores: The `N` cores `(R_{n-1}, I_n, J_n, R_n)`.
        plan: How to contract; by default the `contraction_plan` of the cores.

    Returns:
        Tensor `(..., J)`.

    Example:
        >>> cores = [ops.ones((1, 2, 4, 6)), ops.ones((6, 3, 5, 1))]
        >>> tuple(tt_matmul(ops.ones((7, 6)), cores).shape)
        (7, 20)
    """
    plan = plan_of(cores) if plan is None else plan
    if plan.split == 0:
        return matmul(x, tt_to_matrix(cores))
    left, right = merge(cores[: plan.split]), merge(cores[plan.split :])
    _, left_in, left_out, rank = left.shape
    _, right_in, right_out, _ = right.shape
    if plan.left_first:
        # (left_out * rank, left_in) @ (rows, left_in, right_in), then
        # (rows * left_out, rank * right_in) @ (rank * right_in, right_out)
        left = ops.reshape(ops.transpose(left[0], (1, 2, 0)), (left_out * rank, left_in))
        right = ops.reshape(right, (rank * right_in, right_out))
        y = matmul(left, ops.reshape(x, (-1, left_in, right_in)))
        y = matmul(ops.reshape(y, (-1, rank * right_in)), right)
    else:
        # (rows * left_in, right_in) @ (right_in, rank * right_out), then
        # (left_out, left_in * rank) @ (rows, left_in * rank, right_out)
        right = ops.reshape(ops.transpose(right[..., 0], (1, 0, 2)), (right_in, rank * right_out))
        left = ops.reshape(ops.transpose(left[0], (1, 0, 2)), (left_out, left_in * rank))
        y = matmul(ops.reshape(x, (-1, right_in)), right)
        y = matmul(left, ops.reshape(y, (-1, left_in * rank, right_out)))
    return ops.reshape(y, (*ops.shape(x)[:-1], left_out * right_out))


def tt_matmul_heads(x: Tensor, cores: Sequence, plan: ContractionPlan | None = None) -> Tensor:
    """Multiplies by one TT-matrix for each head.

    Args:
        x: Tensor `(B, L, I)`.
        cores: The `N` cores `(H, R_{n-1}, I_n, J_n, R_n)`.
        plan: As for `tt_matmul`.

    Returns:
        Tensor `(B, H, L, J)`.

    Example:
        >>> cores = [ops.ones((8, 1, 2, 4, 6)), ops.ones((8, 6, 3, 5, 1))]
        >>> tuple(tt_matmul_heads(ops.ones((2, 7, 6)), cores).shape)
        (2, 8, 7, 20)
    """
    plan = plan_of(cores) if plan is None else plan
    num_heads = cores[0].shape[0]
    # A single head is computed below, because on a CPU TensorFlow 2.21 returns garbage for a
    # product (B, 1, L, I) @ (1, I, J).
    if plan.split == 0 and num_heads > 1:
        return matmul(ops.expand_dims(x, 1), tt_to_matrix(cores))
    heads = range(num_heads)
    return ops.stack([tt_matmul(x, [core[h] for core in cores], plan) for h in heads], axis=1)
