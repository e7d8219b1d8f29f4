"""Norms of matrices whose squares would leave the range of floating point."""

from keras import ops

from keras_tnattn.typing import Tensor

# A largest entry that counts as 0; its inverse is in the range of float32.
_TINY = 1e-37


def divide_by_norm(x: Tensor) -> Tensor:
    """Divides matrices `(..., D, E)` by their Frobenius norms; a matrix of norm 0 gives 0.

    Example:
        >>> ops.convert_to_numpy(divide_by_norm(ops.array([[3.0, 4.0]]))).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    # Rescaling first keeps squares and the derivative of the inverse root in range.
    x = divide_by_largest(x)
    square = ops.sum(ops.square(x), axis=(-2, -1), keepdims=True)
    # `where` differentiates both branches, so the unused one must be finite too.
    return x * ops.rsqrt(ops.where(square > 0, square, ops.ones_like(square)))


def divide_by_largest(x: Tensor) -> Tensor:
    """Divides matrices by their largest magnitudes, which count as constants for the gradient.

    Args:
        x: Float tensor `(..., D, E)`.

    Example:
        >>> ops.convert_to_numpy(divide_by_largest(ops.array([[2.0, -4.0]]))).tolist()
        [[0.5, -1.0]]
    """
    return x * ops.stop_gradient(inverse_largest(x))


def inverse_largest(x: Tensor) -> Tensor:
    """Returns the inverse of the largest magnitude in each matrix, and 0 for a matrix of zeros.

    Args:
        x: Float tensor `(..., D, E)`.

    Returns:
        Tensor `(..., 1, 1)`.

    Example:
        >>> ops.convert_to_numpy(inverse_largest(ops.array([[2.0, -4.0]]))).tolist()
        [[0.25]]
    """
    largest = ops.max(ops.abs(x), axis=(-2, -1), keepdims=True, initial=0)
    inverse = 1 / ops.where(largest > _TINY, largest, ops.ones_like(largest))
    return ops.where(largest > _TINY, inverse, ops.zeros_like(inverse))
