"""Attention as a polynomial filter on a graph over time.

With keys `K` and values `V`, both `(..., L, J)`, and the bidirectional time adjacency `Omega`:

    Theta = relu(K K^T), diagonal 0        Psi = Omega * Theta, elementwise
    Y = (alpha_0 I + alpha_1 Psi + ... + alpha_{F-1} Psi^{F-1}) V

(equation 1 of Xu et al., "A Tensorized Spectral Attention Mechanism"; its factor `1 / sqrt(J)` is
the caller's: keys scaled by `J^(-1/4)` keep the products in the range of half precision.)

Sequences are cut into blocks of `b` rows, and `Psi` is held as its block diagonals `0..m`, each
one batched product over all pairs of blocks: the graph has `O(m)` operations whatever `L` is. The
direct form is the case of one block, `b = L` and `m = 0`. As `Omega` decays geometrically, beyond
the bandwidth `w <= m b` nothing is left in float32, and the banded form costs `O(L w J)` FLOPs and
`O(L w)` memory instead of `O(L^2 J)` and `O(L^2)`.

`Psi` is symmetric, so each block serves twice, and the gradient needs no products that the
forward pass does not have: with the partial sums `U_k` of Horner's rule (`U_{F-1} = alpha_{F-1} V`,
`U_k = alpha_k V + Psi U_{k+1}`, `Y = U_0`) and `G_0 = dY`, `G_{k+1} = Psi G_k`,

    dV = sum_k alpha_k G_k                            d alpha_k = <G_k, V>
    dK = (Omega * (Theta > 0) * P) K                  d Omega = Theta * P / 2
    P = sum_{k=0}^{F-2} (G_k U_{k+1}^T + U_{k+1} G_k^T)
"""

import math
import numbers

import keras
from keras import ops

from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.ops.time_graph import bandwidth, bidirectional_adjacency
from keras_tnattn.typing import Tensor

_METHODS = ("auto", "direct", "banded")


def check_method(method: str, trained: bool) -> str:
    """Returns `method` if it is one, and not the banded one for a trained damping."""
    if method not in _METHODS:
        raise ValueError(f"Expected one of {_METHODS}. Received: method={method!r}")
    if trained and method == "banded":
        raise ValueError(
            "Expected method='auto' or 'direct' for a trained damping, whose bandwidth is not "
            f"known beforehand. Received: method={method!r}"
        )
    return method


def attention_graph(keys: Tensor, damping: Tensor) -> Tensor:
    """Returns `Psi = Omega * relu(K K^T)` with a zero diagonal.

    Args:
        keys: Float tensor `(..., L, J)`, scaled by `J^(-1/4)`.
        damping: The damping `c`: a number or a scalar tensor.

    Returns:
        Tensor `(..., L, L)`: symmetric, not negative, 0 on the diagonal.
    """
    adjacency = bidirectional_adjacency(ops.shape(keys)[-2], damping, _dtype(keys))
    return _damp(ops.relu(matmul(keys, _transpose(keys))), adjacency)


def spectral_filter(
    keys: Tensor,
    values: Tensor,
    damping: Tensor,
    coefficients: Tensor | None = None,
    method: str = "auto",
) -> Tensor:
    """Filters the values over the attention graph of the keys.

    Args:
        keys: Float tensor `(..., L, J)`, scaled by `J^(-1/4)`; `L` may be unknown.
        values: Float tensor `(..., L, M)`, the same leading sizes.
        damping: The damping `c`, `0 <= c < 1`: a float, or a scalar tensor, which is differentiated
            and known too late for a bandwidth: it takes the direct path.
        coefficients: Float tensor `(F,)`, `F >= 2`, the `alpha_k`. Default: `F = 2` and `(1, 1)`.
        method: `"direct"`, `"banded"`, or `"auto"`: banded where the length makes it cheaper.

    Returns:
        Tensor `(..., L, M)`. The band leaves out terms of at most
        `c^(w+1) / (1 - c) max(Theta) max(|V|) / 2` in all: for scores of comparable size the two
        paths agree within float32.
    """
    fixed_damping = isinstance(damping, numbers.Real)
    check_method(method, trained=not fixed_damping)
    if fixed_damping and not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1). Received: damping={damping}")
    if coefficients is not None and coefficients.shape[0] < 2:
        raise ValueError(
            "Expected at least two coefficients. "
            f"Received: coefficients.shape={tuple(coefficients.shape)}"
        )
    length = ops.shape(keys)[-2]

    def direct() -> Tensor:
        return _blocked_filter(keys, values, damping, coefficients, length, 0)

    if not fixed_damping or method == "direct":
        return direct()
    least_block, num_offsets, shortest = banded_plan(damping)

    def banded() -> Tensor:
        # As many blocks as fit, a little longer than they must be: the length is hardly filled up.
        block = -(-length // _at_least(length // least_block, 1))
        block = _at_least(block, least_block)
        return _blocked_filter(keys, values, damping, coefficients, block, num_offsets)

    if method == "banded":
        return banded()
    if isinstance(length, int):
        return direct() if length < shortest else banded()
    return ops.cond(length < shortest, direct, banded)


def banded_plan(damping: float) -> tuple[int, int, int]:
    """Returns `(b, m, shortest)`: least block size, number of block diagonals, least length.

    `m b` covers the bandwidth, with blocks of 24 to 128 rows, as many block diagonals as that takes
    and no more. Below `shortest` the direct form is faster: there the moves of small blocks cost
    more than they save.
    """
    width = bandwidth(damping)
    num_offsets = math.ceil(width / 128)
    block = max(math.ceil(width / num_offsets), 24)
    return block, num_offsets, 2 * width + 5 * block


def _at_least(size: Tensor, least: int) -> Tensor:
    return max(size, least) if isinstance(size, int) else ops.maximum(size, least)


def _blocked_filter(
    keys: Tensor,
    values: Tensor,
    damping: Tensor,
    coefficients: Tensor,
    block: Tensor,
    num_offsets: int,
) -> Tensor:
    fixed_damping = isinstance(damping, numbers.Real)
    tensors = [keys, values]
    # Few numbers that many terms add up to in the gradient: not in half precision.
    precise = at_least_float32(_dtype(keys))
    if coefficients is not None:
        tensors.append(ops.cast(coefficients, precise))
    if not fixed_damping:
        tensors.append(ops.cast(damping, precise))
    order = 2 if coefficients is None else coefficients.shape[0]

    @ops.custom_gradient
    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        keys, values, *rest = tensors
        alpha = rest[0] if coefficients is not None else None
        c = damping if fixed_damping else rest[-1]
        cut = _Blocks(keys, block, num_offsets)
        k, v = cut.split(keys), cut.split(values)
        adjacency = [
            bidirectional_adjacency(block, c, _dtype(keys), o * block)
            for o in range(num_offsets + 1)
        ]
        psi = [
            _damp(ops.relu(matmul(a, _transpose(b))), adjacency[o])
            for o, (a, b) in enumerate(cut.pairs(k))
        ]

        def weighted(n: int, x: Tensor) -> Tensor:
            return x if alpha is None else ops.cast(alpha[n], x.dtype) * x

        partial_sums = [weighted(order - 1, v)]
        for n in reversed(range(order - 1)):
            y = weighted(n, v) + cut.multiply(psi, partial_sums[0])
            partial_sums.insert(0, y)

        def grad(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            upstream = args[0] if upstream is None else upstream
            grads = [cut.split(upstream)]
            for _ in range(order - 1):
                grads.append(cut.multiply(psi, grads[-1]))
            d_values = weighted(0, grads[0])
            for n, g in enumerate(grads[1:], 1):
                d_values = d_values + weighted(n, g)
            left, right = _side_by_side(grads[:-1]), _side_by_side(partial_sums[1:])
            pairs = list(zip(cut.pairs(left), cut.pairs(right), strict=True))
            # The diagonal blocks of P by one of its two terms, the others by both.
            products = [matmul(left, _transpose(right))]
            for (later_g, earlier_g), (later_u, earlier_u) in pairs[1:]:
                product = matmul(later_g, _transpose(earlier_u))
                products.append(product + matmul(later_u, _transpose(earlier_g)))
            d_scores = [
                ops.sign(p) * (d * a) for p, d, a in zip(psi, products, adjacency, strict=True)
            ]
            d_keys = cut.multiply(d_scores, k) + matmul(_transpose(d_scores[0]), k)
            result = [cut.join(d_keys), cut.join(d_values)]
            if alpha is not None:
                wide = ops.cast(v, precise)
                result.append(ops.stack([ops.sum(ops.cast(g, precise) * wide) for g in grads]))
            if not fixed_damping:
                scores = ops.relu(matmul(k, _transpose(k)))
                slope = _adjacency_slope(block, c, precise)
                terms = ops.cast(products[0], precise) * ops.cast(scores, precise)
                result.append(ops.sum(terms * slope))
            return tuple(result)

        return cut.join(partial_sums[0]), grad

    return run(*tensors)


class _Blocks:
    """The rows of `(..., L, J)` as one axis of blocks, `(blocks, b, J)`.

    Each sequence is filled up to whole blocks and followed by `m` blocks of zeros, so that the
    pairs of blocks at a distance of up to `m` are two plain slices of the whole axis: the pairs
    that cross into the next sequence meet zeros.
    """

    def __init__(self, example: Tensor, block: Tensor, num_offsets: int) -> None:
        *self.lead, self.length, _ = ops.shape(example)
        self.block, self.num_offsets = block, num_offsets
        self.padded = self.length
        if num_offsets > 0:
            self.padded = (-(-self.length // block) + num_offsets) * block

    def split(self, x: Tensor) -> Tensor:
        """`(..., L, J)` to `(blocks, b, J)`."""
        if self.num_offsets > 0:
            rank = len(self.lead)
            x = ops.pad(x, [(0, 0)] * rank + [(0, self.padded - self.length), (0, 0)])
        return ops.reshape(x, (-1, self.block, x.shape[-1]))

    def join(self, x: Tensor) -> Tensor:
        """`(blocks, b, J)` to `(..., L, J)`."""
        x = ops.reshape(x, (*self.lead, self.padded, x.shape[-1]))
        return x[..., : self.length, :] if self.num_offsets > 0 else x

    def pairs(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each distance `o` the blocks `o, o + 1, ...` and their partners `0, 1, ...`."""
        count = ops.shape(x)[0]
        return [(x[o:], x[: count - o]) for o in range(self.num_offsets + 1)]

    def multiply(self, matrix: list[Tensor], x: Tensor) -> Tensor:
        """Multiplies by the symmetric matrix whose block diagonals are given."""
        total = matmul(matrix[0], x)
        for o, (later, earlier) in list(enumerate(self.pairs(x)))[1:]:
            down = matmul(matrix[o], earlier)
            up = matmul(_transpose(matrix[o]), later)
            total = total + ops.pad(down, [(o, 0), (0, 0), (0, 0)])
            total = total + ops.pad(up, [(0, o), (0, 0), (0, 0)])
        return total


def _damp(scores: Tensor, adjacency: Tensor) -> Tensor:
    """`scores * adjacency`, 0 where the adjacency is 0 even if a half-precision score is inf."""
    damped = scores * adjacency
    if _dtype(scores) == "float16":
        damped = ops.where(adjacency > 0, damped, ops.zeros_like(damped))
    return damped


def _adjacency_slope(length: Tensor, damping: Tensor, dtype: str) -> Tensor:
    """The derivative of `Omega` by the damping: `|i - j| c^(|i - j| - 1) / 2`."""
    steps = ops.arange(length, dtype="int32")
    distance = ops.abs(steps[None, :] - steps[:, None])
    powers = ops.power(damping, ops.cast(ops.maximum(distance - 1, 0), dtype))
    return 0.5 * ops.cast(distance, dtype) * powers


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)


def _transpose(x: Tensor) -> Tensor:
    return ops.swapaxes(x, -1, -2)


def _dtype(x: Tensor) -> str:
    return keras.backend.standardize_dtype(x.dtype)
