"""Search for the factors and ranks of a TT-matrix that is cheap to multiply by."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from keras_tnattn.ops.tensor_train.contraction import ContractionPlan, contraction_plan
from keras_tnattn.ops.tensor_train.decomposition import matrix_to_tt
from keras_tnattn.ops.tensor_train.factors import core_shapes, rank_bounds, resolve_ranks


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
        >>> shapes = suggest_shapes(64, 64, max_parameters=512)
        >>> shapes.tt_input_shape, shapes.tt_ranks
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
        >>> shapes = suggest_shapes(64, 64, max_parameters=512)
        >>> shapes.plan.parameters <= 512
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
        self, tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], tt_ranks: Sequence[int]
    ) -> float:
        """The bound of the relative error at these ranks (Oseledets 2011, theorem 2.2)."""
        tails = self.bonds(tt_input_shape, tt_output_shape)
        return math.sqrt(sum(tail[r] for tail, r in zip(tails, tt_ranks, strict=True)))
