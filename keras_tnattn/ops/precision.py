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


def widen(x: Tensor) -> Tensor:
    """Casts a tensor of half precision to float32; returns any other float tensor as it is.

    Args:
        x: Float tensor of any shape.

    Example:
        >>> import keras
        >>> from keras_tnattn.ops.precision import widen
        >>> keras.backend.standardize_dtype(widen(keras.ops.ones(3, dtype="float16")).dtype)
        'float32'
    """
    return ops.cast(x, at_least_float32(keras.backend.standardize_dtype(x.dtype)))


def leaky_relu(x: Tensor, slope: float) -> Tensor:
    """Returns `x` where it is positive, else `slope * x`, in the precision of `x`.

    TensorFlow's own function has the slope in float32, also for float64.

    Args:
        x: Float tensor of any shape.
        slope: The slope below zero.

    Example:
        >>> import keras
        >>> from keras_tnattn.ops.precision import leaky_relu
        >>> keras.ops.convert_to_numpy(leaky_relu(keras.ops.array([-1.0, 2.0]), 0.5)).tolist()
        [-0.5, 2.0]
    """
    if keras.backend.standardize_dtype(x.dtype) == "float64":
        return ops.where(x > 0, x, slope * x)
    return ops.leaky_relu(x, negative_slope=slope)


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
