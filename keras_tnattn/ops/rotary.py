"""Rotary position embeddings: each pair of features is turned by an angle that grows with time."""

from typing import Any

import numpy as np
from keras import ops

from keras_tnattn.ops.precision import widen
from keras_tnattn.typing import Tensor

ROTARY_PAIRS = ("neighbors", "halves")


def check_rotary(rotary: Any) -> str | None:
    """Returns `rotary` if it is `None`, `"neighbors"` or `"halves"`."""
    if rotary is not None and rotary not in ROTARY_PAIRS:
        raise ValueError(f"Expected None or one of {ROTARY_PAIRS}. Received: rotary={rotary!r}")
    return rotary


def rotate(
    x: Tensor, positions: Tensor, pairs: str = "neighbors", max_wavelength: float = 10_000.0
) -> Tensor:
    """Turns each pair of features `i` of a token at position `p` by `p w^(-2 i / k)`.

    (Su et al., "RoFormer", section 3.4, https://arxiv.org/abs/2104.09864). The product of a query
    and a key then depends on the distance of their positions only. Costs 3 FLOPs per entry.

    Args:
        x: Float tensor `(B, T, H, k)` with an even `k`.
        positions: Integers `(T,)` or `(B, T)`.
        pairs: `"neighbors"` (default) for the pairs `(2 i, 2 i + 1)`, or `"halves"` for
            `(i, i + k / 2)`.
        max_wavelength: The `w` of the formula. Defaults to 10,000.

    Returns:
        Tensor in the shape and dtype of `x`; computed in float32 if `x` is of half precision.

    Example:
        >>> import keras
        >>> x = keras.ops.ones((1, 3, 2, 4))
        >>> rotated = rotate(x, keras.ops.arange(3))
        >>> bool(keras.ops.all(rotated[:, 0] == x[:, 0]))
        True
    """
    check_rotary(pairs)
    dim = x.shape[-1]
    wide = widen(x)
    rates = max_wavelength ** (-2.0 * np.arange(dim // 2) / dim)
    positions = ops.cast(positions, wide.dtype)
    # (B or 1, T, 1, k / 2)
    angles = positions[..., None, None] * ops.convert_to_tensor(rates, wide.dtype)
    sine, cosine = ops.sin(angles), ops.cos(angles)
    if pairs == "neighbors":
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = wide[..., : dim // 2], wide[..., dim // 2 :]
    parts = [first * cosine - second * sine, first * sine + second * cosine]
    if pairs == "halves":
        outputs = ops.concatenate(parts, axis=-1)
    else:
        outputs = ops.reshape(ops.stack(parts, axis=-1), ops.shape(x))
    return ops.cast(outputs, x.dtype)
