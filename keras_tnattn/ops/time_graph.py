"""Graphs over time: adjacency with geometric damping, how far it reaches, and its product.

The `L` time-steps of a sequence are the nodes; the weight of an edge decays with the distance in
time (sections 2.2 to 2.4 of Xu et al., "A Tensorized Spectral Attention Mechanism").

As the weights are geometric, a product with the adjacency is a first-order linear recurrence: the
sums over all later time-steps obey `h[i] = x[i+1] + c h[i+1]`. `time_filter` cuts the sequence into
blocks of `b = 32` steps. Within a block the sums are one product with a triangular `(b, b)` matrix;
what a block receives from those behind it is the same recurrence over the totals of the blocks,
damped by `c^b`, and so on until one block is left or the damping is 0 in float32.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Tensor

_FLOAT32_HALF_ULP = 2.0**-24
_FLOAT32_SMALLEST = 2.0**-149
_BLOCK = 32
_DIRECTIONS = {"later": ("later",), "earlier": ("earlier",), "both": ("later", "earlier")}


def time_adjacency(length: Tensor, damping: Tensor, dtype: str = "float32") -> Tensor:
    """Returns the directed time adjacency `A`: `A[i, j] = c^(j - i)` for `j > i`, else 0.

    Args:
        length: Number of time-steps `L`; an int or a scalar int tensor.
        damping: The damping `c`, `0 <= c < 1`: a number or a scalar tensor.
        dtype: Of the result.

    Returns:
        Tensor `(L, L)`.
    """
    steps = ops.arange(length, dtype="int32")
    distance = ops.maximum(steps[None, :] - steps[:, None], 0)
    return _damped(distance, length, damping, dtype)


def bidirectional_adjacency(
    length: Tensor, damping: Tensor, dtype: str = "float32", offset: Tensor = 0
) -> Tensor:
    """Returns `Omega = (A^T + A) / 2`: `c^|i - j| / 2` off the diagonal, 0 on it.

    Args:
        length: Number of time-steps `L`; an int or a scalar int tensor.
        damping: The damping `c`, `0 <= c < 1`: a number or a scalar tensor.
        dtype: Of the result.
        offset: The rows stand for the time-steps `offset + i`: a block off the diagonal.

    Returns:
        Tensor `(L, L)`.
    """
    steps = ops.arange(length, dtype="int32")
    distance = ops.abs(offset + steps[:, None] - steps[None, :])
    return 0.5 * _damped(distance, offset + length, damping, dtype)


def _damped(distance: Tensor, largest: Tensor, damping: Tensor, dtype: str) -> Tensor:
    """`damping ** distance` where the distance, at most `largest`, is positive, else 0."""
    # Powers of a damping rounded to half precision would be off by far more than their rounding.
    compute = at_least_float32(dtype)
    steps = ops.arange(largest + 1, dtype="int32")
    # Looked up among the few that differ: powers cost many times more than the products they damp.
    powers = ops.power(ops.cast(damping, compute), ops.cast(ops.maximum(steps, 1), compute))
    powers = ops.cast(ops.where(steps > 0, powers, ops.zeros_like(powers)), dtype)
    return ops.take(powers, distance)


def bandwidth(damping: float) -> int:
    """Returns the distance beyond which `c^distance` is below half a float32 rounding error.

    `w = 1 + ceil(ln(2^-24) / ln(c))`: 25 at 0.5, 159 at 0.9, 548 at 0.97.
    """
    check_damping(damping)
    if damping == 0:
        return 1
    return 1 + math.ceil(math.log(_FLOAT32_HALF_ULP) / math.log(damping))


def check_damping(damping: float) -> float:
    """Returns `damping` if it is in [0, 1)."""
    if not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1). Received: damping={damping}")
    return float(damping)


def check_receive_from(receive_from: str) -> str:
    """Returns `receive_from` if it is one of those that `time_filter` knows."""
    if receive_from not in _DIRECTIONS:
        raise ValueError(
            f"Expected one of {tuple(_DIRECTIONS)}. Received: receive_from={receive_from!r}"
        )
    return receive_from


def time_filter(x: Tensor, damping: float, receive_from: str = "later") -> Tensor:
    """Multiplies by a time adjacency that is never formed.

    Costs `2 b + 4` FLOPs an entry of `x` with `b = 32`, whatever `L` is, and memory for a few
    tensors like `x`; half precision is computed in float32.

    Args:
        x: Float tensor `(B, L, J)`; `B` and `L` may be unknown.
        damping: The damping `c`, `0 <= c < 1`, a float.
        receive_from: `"later"` for `A X`: time-step `i` receives `c^(j - i) x[j]` from every
            `j > i`; `"earlier"` for `A^T X`; `"both"` for `Omega X = (A + A^T) X / 2`.

    Returns:
        Tensor as `x`.

    Raises:
        ValueError: For a damping outside [0, 1) or another `receive_from`.
    """
    damping = check_damping(damping)
    directions = _DIRECTIONS[check_receive_from(receive_from)]
    dtype = keras.backend.standardize_dtype(x.dtype)
    x = ops.cast(x, at_least_float32(dtype))
    # c^d = c c^(d - 1): the sums have powers from 0 on, and nothing is divided by c.
    return ops.cast(_damped_sums(x, damping, damping / len(directions), directions), dtype)


def _damped_sums(x: Tensor, damping: float, scale: float, directions: tuple[str, ...]) -> Tensor:
    """`scale` times the sums of `c^(distance - 1) x` over the time-steps in the directions."""
    batch, length, width = ops.shape(x)
    if damping < _FLOAT32_SMALLEST:
        # Only the next neighbour is left.
        near = {
            "later": lambda: ops.pad(x, [(0, 0), (0, 1), (0, 0)])[:, 1:],
            "earlier": lambda: ops.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :-1],
        }
        return scale * sum(near[direction]() for direction in directions)
    known = isinstance(length, int)
    block = max(min(_BLOCK, length), 1) if known else _BLOCK
    count = -(-length // block)
    if not known or count * block > length:
        x = ops.pad(x, [(0, 0), (0, count * block - length), (0, 0)])
    blocks = ops.reshape(x, (batch, count, block, width))

    steps = np.arange(block)
    distance = steps[None, :] - steps[:, None]
    later = np.where(distance > 0, damping ** np.maximum(distance - 1, 0), 0.0)
    powers = damping**steps
    # In the block itself; from a block to its total; from the totals to each step of a block.
    maps = {"later": (later, powers, powers[::-1]), "earlier": (later.T, powers[::-1], powers)}
    within, gather, spread = zip(*(maps[direction] for direction in directions), strict=True)

    def constant(matrix: Tensor) -> Tensor:
        return ops.convert_to_tensor(matrix, x.dtype)

    sums = matmul(constant(scale * sum(within)), blocks)
    if not known or count > 1:
        totals = matmul(constant(np.stack(gather)), blocks)
        received = [
            _damped_sums(totals[:, :, n], damping**block, 1.0, (direction,))
            for n, direction in enumerate(directions)
        ]
        spread = constant(scale * np.stack(spread, axis=1))
        sums = sums + matmul(spread, ops.stack(received, axis=2))
    return ops.reshape(sums, (batch, count * block, width))[:, :length]
