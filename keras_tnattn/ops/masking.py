"""Operations with masks, which are boolean (`True` for a real token) and applied by selection."""

import math

import numpy as np
from keras import ops

from keras_tnattn.ops.precision import widen
from keras_tnattn.typing import Tensor

_LOWEST = float(np.finfo("float32").min)
# TensorFlow broadcasts tensors of at most 8 axes.
_MOST_AXES = 8


def apply_mask(x: Tensor, mask: Tensor | None) -> Tensor:
    """Sets the masked tokens to zero.

    Args:
        x: Tensor `(B, L, ...)`.
        mask: Boolean tensor `(B, L)`, or `None` for no padding.

    Returns:
        Tensor in the shape of `x`, without the values of masked tokens, even if they were NaN.

    Example:
        >>> x = ops.convert_to_tensor([[1.0, 2.0, 3.0]])
        >>> mask = ops.convert_to_tensor([[True, True, False]])
        >>> ops.convert_to_numpy(apply_mask(x, mask)).tolist()
        [[1.0, 2.0, 0.0]]
    """
    if mask is None:
        return x
    if len(x.shape) > _MOST_AXES:
        return ops.reshape(apply_mask(_flat_tokens(x), mask), ops.shape(x))
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(x.shape) - 2)))
    return ops.where(mask, x, ops.zeros_like(x))


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Averages over the tokens that are not masked; returns 0 if there are none.

    Args:
        x: Tensor `(B, L, ...)`.
        mask: Boolean tensor `(B, L)`, or `None` for no padding.

    Returns:
        Tensor `(B, ...)`.

    Example:
        >>> x = ops.convert_to_tensor([[[1.0], [2.0], [6.0]]])
        >>> mask = ops.convert_to_tensor([[True, True, False]])
        >>> ops.convert_to_numpy(masked_mean(x, mask)).tolist()
        [[1.5]]
    """
    if len(x.shape) > _MOST_AXES:
        mean = masked_mean(_flat_tokens(x), mask)
        return ops.reshape(mean, (ops.shape(x)[0], *x.shape[2:]))
    total = ops.sum(widen(apply_mask(x, mask)), axis=1)
    if mask is None:
        count = ops.maximum(ops.shape(x)[1], 1)
    else:
        count = ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=1), 1)
        count = ops.reshape(count, (-1, *[1] * (len(x.shape) - 2)))
    return ops.cast(total / ops.cast(count, total.dtype), x.dtype)


def _flat_tokens(x: Tensor) -> Tensor:
    """Returns tokens that are tensors as vectors, `(B, L, I)`."""
    return ops.reshape(x, (*ops.shape(x)[:2], math.prod(x.shape[2:])))


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis without masked entries, which get 0; so do fully masked rows.

    Args:
        scores: Finite float tensor `(..., L)`.
        mask: Boolean tensor that broadcasts to `scores`, `False` for masked entries, or `None`.

    Returns:
        Tensor as `scores`, computed in float32 if they are of half precision; value and gradient
        are finite.

    Example:
        >>> scores = ops.convert_to_tensor([1.0, 1.0, 9.0])
        >>> mask = ops.convert_to_tensor([True, True, False])
        >>> ops.convert_to_numpy(masked_softmax(scores, mask)).tolist()
        [0.5, 0.5, 0.0]
    """
    shares = widen(scores)
    if mask is not None:
        shares = ops.where(mask, shares, ops.full_like(shares, _LOWEST))
    # Keras warns about a softmax over a single entry.
    shares = ops.ones_like(shares) if shares.shape[-1] == 1 else ops.softmax(shares, axis=-1)
    if mask is not None:
        # Mask again, because the softmax of a fully masked row is uniform.
        shares = ops.where(mask, shares, ops.zeros_like(shares))
    return ops.cast(shares, scores.dtype)
