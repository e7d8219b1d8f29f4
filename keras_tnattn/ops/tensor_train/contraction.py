"""Products with a TT-matrix, and the order in which they are cheapest to evaluate."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_tnattn.ops.precision import matmul
from keras_tnattn.ops.tensor_train.factors import core_shapes
from keras_tnattn.typing import Tensor

# Moving one byte takes about as long as this many floating-point operations, a value between those
# of server CPUs and GPUs. Only the comparison of plans depends on it.
_FLOPS_PER_BYTE = 32
_BYTES_PER_FLOAT = 4
# How many rows the gradient of a left block sums in one matrix product.
_ROWS_PER_PRODUCT = 32


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
        left_first = plan(split, True, 2 * held * (left_in + right_out), held)
        held = left_in * rank * right_out
        right_first = plan(split, False, 2 * held * (right_in + left_out), held)
        # `min` takes the first of equals, and of these the right block first is faster.
        plans += [right_first, left_first]
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
        return _matmul_rows(x, tt_to_matrix(cores))
    left, right = merge(cores[: plan.split]), merge(cores[plan.split :])
    _, left_in, left_out, rank = left.shape
    _, right_in, right_out, _ = right.shape
    if plan.left_first:
        # (left_out * rank, left_in) @ (rows, left_in, right_in), then
        # (rows * left_out, rank * right_in) @ (rank * right_in, right_out)
        left = ops.reshape(ops.transpose(left[0], (1, 2, 0)), (left_out * rank, left_in))
        right = ops.reshape(right, (rank * right_in, right_out))
        y = _matmul_each(left, ops.reshape(x, (-1, left_in, right_in)))
        y = matmul(ops.reshape(y, (-1, rank * right_in)), right)
    else:
        # (rows * left_in, right_in) @ (right_in, rank * right_out), then
        # (left_out, left_in * rank) @ (rows, left_in * rank, right_out)
        right = ops.reshape(ops.transpose(right[..., 0], (1, 0, 2)), (right_in, rank * right_out))
        left = ops.reshape(ops.transpose(left[0], (1, 0, 2)), (left_out, left_in * rank))
        y = matmul(ops.reshape(x, (-1, right_in)), right)
        y = _matmul_each(left, ops.reshape(y, (-1, left_in * rank, right_out)))
    return ops.reshape(y, (*ops.shape(x)[:-1], left_out * right_out))


def _matmul_each(left: Tensor, x: Tensor) -> Tensor:
    """Returns `left @ x_m` for each row `x_m`, `(M, K, C)` to `(M, J, C)`.

    The gradient by `left` is `sum_m d_m x_m^T`. TensorFlow would form a matrix for each row before
    it sums them; here a matrix product sums a group of rows. On JAX and PyTorch that is no faster.
    """
    if keras.backend.backend() != "tensorflow":
        return matmul(left, x)

    @ops.custom_gradient
    def run(left: Tensor, x: Tensor) -> tuple[Tensor, Callable]:
        def gradient(d: Tensor) -> tuple[Tensor, Tensor]:
            return _sum_of_products(d, x), matmul(ops.transpose(left), d)

        return matmul(left, x), gradient

    return run(left, x)


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Returns `sum_m a_m b_m^T`, `(J, K)`, for `(M, J, C)` and `(M, K, C)`."""
    rows = _ROWS_PER_PRODUCT
    grouped = ops.shape(a)[0] // rows * rows

    def side_by_side(x: Tensor) -> Tensor:
        _, size, columns = x.shape
        x = ops.reshape(x[:grouped], (-1, rows, size, columns))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, size, rows * columns))

    def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
        return ops.sum(matmul(a, ops.swapaxes(b, -2, -1)), axis=0)

    return ops.add(
        sum_of_products(side_by_side(a), side_by_side(b)), sum_of_products(a[grouped:], b[grouped:])
    )


def tt_matmul_heads(
    x: Tensor, maps: Sequence[Sequence], plan: ContractionPlan | None = None
) -> list[Tensor]:
    """Multiplies by several maps, each one TT-matrix for each head.

    Where the plan forms the matrices, those of all maps and heads stand side by side in one, so
    that there is a single matrix product, and one transposition that lays out each map by itself.

    Args:
        x: Tensor `(B, L, I)`.
        maps: For each map its `N` cores `(H, R_{n-1}, I_n, J_n, R_n)`, of the same shapes for all.
        plan: As for `tt_matmul`, the same for all.

    Returns:
        For each map a tensor `(B, H, L, J)`.

    Example:
        >>> cores = [ops.ones((8, 1, 2, 4, 6)), ops.ones((8, 6, 3, 5, 1))]
        >>> keys, values = tt_matmul_heads(ops.ones((2, 7, 6)), [cores, cores])
        >>> tuple(keys.shape)
        (2, 8, 7, 20)
    """
    plan = plan_of(maps[0]) if plan is None else plan
    num_heads = maps[0][0].shape[0]
    if plan.split > 0:
        heads = range(num_heads)
        return [
            ops.stack([tt_matmul(x, [core[h] for core in cores], plan) for h in heads], axis=1)
            for cores in maps
        ]
    kernels = ops.stack([tt_to_matrix(cores) for cores in maps])
    *_, rows, columns = kernels.shape
    kernel = ops.reshape(
        ops.transpose(kernels, (2, 0, 1, 3)), (rows, len(maps) * num_heads * columns)
    )
    y = _matmul_rows(x, kernel)
    y = ops.reshape(y, (*ops.shape(x)[:2], len(maps), num_heads, columns))
    # Slices of the first axis need no copies.
    return ops.unstack(ops.transpose(y, (2, 0, 3, 1, 4)), len(maps))


def _matmul_rows(x: Tensor, kernel: Tensor) -> Tensor:
    """Returns `x @ kernel`, `(..., I)` by `(I, J)`, as a product of two matrices.

    With a batch axis, TensorFlow would form the gradient of the kernel for each sequence.
    """
    rows, columns = kernel.shape
    y = matmul(ops.reshape(x, (-1, rows)), kernel)
    return ops.reshape(y, (*ops.shape(x)[:-1], columns))
