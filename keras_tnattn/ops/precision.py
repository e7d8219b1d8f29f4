"""Wider dtypes for what half precision cannot hold: sums over long texts, powers, positions."""

import keras
from keras import ops

from keras_tnattn.typing import Tensor


def at_least_float32(dtype: str) -> str:
    """Returns float64 for float64, else float32.

    Args:
        dtype: Name of a floating-point dtype.

    Example:
        >>> from keras_tnattn.ops.precision import at_least_float32
        >>> at_least_float32("bfloat16"), at_least_float32("float64")
        ('float32', 'float64')
    """
    return "float64" if dtype == "float64" else "float32"


def widened(x: Tensor) -> Tensor:
    """Casts a tensor of half precision to float32; returns any other float tensor as it is.

    Args:
        x: Float tensor of any shape.

    Example:
        >>> import keras
        >>> from keras_tnattn.ops.precision import widened
        >>> keras.backend.standardize_dtype(widened(keras.ops.ones(3, dtype="float16")).dtype)
        'float32'
    """
    return ops.cast(x, at_least_float32(keras.backend.standardize_dtype(x.dtype)))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Returns the matrix product of the last two axes, in float64 if both factors are.

    On the PyTorch backend `keras.ops.matmul` computes it in float32, `keras.ops.einsum` does not.

    Args:
        a: Tensor `(..., M, K)`.
        b: Tensor `(..., K, N)`; the leading sizes broadcast.

    Returns:
        Tensor `(..., M, N)`.

    Example:
        >>> import keras
        >>> from keras_tnattn.ops.precision import matmul
        >>> tuple(matmul(keras.ops.ones((2, 3)), keras.ops.ones((3, 4))).shape)
        (2, 4)
    """
    if all(keras.backend.standardize_dtype(x.dtype) == "float64" for x in (a, b)):
        return ops.einsum("...mk,...kn->...mn", a, b)
    return ops.matmul(a, b)
