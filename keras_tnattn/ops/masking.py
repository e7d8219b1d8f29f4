"""Masks are boolean, `True` = a real token, and applied by selection, never by large numbers."""

import keras
from keras import ops

from keras_tnattn.ops.time_graph import at_least_float32


def apply_mask(x: object, mask: object) -> object:
    """Sets the masked tokens to zero.

    Args:
        x: Tensor `(B, L, ...)`.
        mask: Boolean tensor `(B, L)`, or `None` for no padding.

    Returns:
        Tensor as `x`; whatever a masked token holds, NaN included, is gone.
    """
    if mask is None:
        return x
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(x.shape) - 2)))
    return ops.where(mask, x, ops.zeros_like(x))


def masked_softmax(scores: object, mask: object) -> object:
    """Normalises over the keys that may be attended to; 0 where there is none.

    Args:
        scores: Tensor `(..., S)`, in float32 or wider.
        mask: Boolean tensor that broadcasts with `scores`, `True` = attend, or `None` for all.

    Returns:
        Tensor as `scores`, each row with the sum 1, or 0 if the mask leaves no key.
    """
    if mask is None:
        return ops.softmax(scores, axis=-1)
    lowest = ops.convert_to_tensor(-1e30, scores.dtype)
    weights = ops.softmax(ops.where(mask, scores, lowest), axis=-1)
    return ops.where(mask, weights, ops.zeros_like(weights))


def masked_mean(x: object, mask: object) -> object:
    """Averages over the tokens that are not masked; 0 where all are, or where there is none.

    Args:
        x: Tensor `(B, L, ...)`.
        mask: Boolean tensor `(B, L)`, or `None` for no padding.

    Returns:
        Tensor `(B, ...)`.
    """
    total = ops.sum(_wide(apply_mask(x, mask)), axis=1)
    if mask is None:
        count = ops.maximum(ops.shape(x)[1], 1)
    else:
        count = ops.maximum(ops.sum(ops.cast(mask, "int32"), axis=1), 1)
        count = ops.reshape(count, (-1, *[1] * (len(x.shape) - 2)))
    return ops.cast(total / ops.cast(count, total.dtype), x.dtype)


def _wide(x: object) -> object:
    """Half precision cannot hold the sum of a long text."""
    return ops.cast(x, at_least_float32(keras.backend.standardize_dtype(x.dtype)))
