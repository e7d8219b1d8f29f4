"""Masks are boolean, `True` = a real token, and applied by selection, never by large numbers."""

from keras import ops


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


def masked_mean(x: object, mask: object) -> object:
    """Averages over the tokens that are not masked; 0 where all are.

    Args:
        x: Tensor `(B, L, ...)`.
        mask: Boolean tensor `(B, L)`, or `None` for no padding.

    Returns:
        Tensor `(B, ...)`.
    """
    if mask is None:
        return ops.mean(x, axis=1)
    # A product with the weights reads `x` once, where masking and adding would read it twice.
    weights = ops.cast(mask, "float32")
    weights = weights / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
    flat = ops.reshape(x, (*ops.shape(x)[:2], -1))
    mean = ops.matmul(ops.cast(weights, x.dtype)[:, None, :], flat)
    return ops.reshape(mean, (-1, *ops.shape(x)[2:]))
