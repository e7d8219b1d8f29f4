"""Graphs over time: adjacency with geometric damping, and how far it reaches.

The `L` time-steps of a sequence are the nodes; the weight of an edge decays with the distance in
time (sections 2.2 to 2.4 of Xu et al., "A Tensorized Spectral Attention Mechanism").
"""

import math

from keras import ops

_FLOAT32_HALF_ULP = 2.0**-24


def time_adjacency(length: object, damping: object, dtype: str = "float32") -> object:
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
    length: object, damping: object, dtype: str = "float32", offset: object = 0
) -> object:
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


def _damped(distance: object, largest: object, damping: object, dtype: str) -> object:
    """`damping ** distance` where the distance, at most `largest`, is positive, else 0."""
    # Powers of a damping rounded to half precision would be off by far more than their rounding.
    compute = at_least_float32(dtype)
    steps = ops.arange(largest + 1, dtype="int32")
    # Looked up among the few that differ: powers cost many times more than the products they damp.
    powers = ops.power(ops.cast(damping, compute), ops.cast(ops.maximum(steps, 1), compute))
    powers = ops.cast(ops.where(steps > 0, powers, ops.zeros_like(powers)), dtype)
    return ops.take(powers, distance)


def at_least_float32(dtype: str) -> str:
    """Returns the dtype for what half precision is too coarse for: float32, or float64 if given."""
    return "float64" if dtype == "float64" else "float32"


def bandwidth(damping: float) -> int:
    """Returns the distance beyond which `c^distance` is below half a float32 rounding error.

    `w = 1 + ceil(ln(2^-24) / ln(c))`: 25 at 0.5, 159 at 0.9, 548 at 0.97.
    """
    if not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1). Received: damping={damping}")
    if damping == 0:
        return 1
    return 1 + math.ceil(math.log(_FLOAT32_HALF_ULP) / math.log(damping))
