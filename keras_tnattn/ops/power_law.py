"""Elementwise powers that stay finite, for the power law graph transformer."""

from keras import ops

from keras_tnattn.typing import Tensor

# exp(40) = 2e17 is far above the entries of a trained metric, and small enough that the products of
# a backward pass stay within float32.
_LARGEST_LOGARITHM = 40.0


def elementwise_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Returns `base ** exponent`, elementwise, clipped to `exp(-40)` and `exp(40)`.

    Args:
        base: Tensor of positive entries, in float32 or wider: `1e-9` is 0 in half precision.
        exponent: Tensor that broadcasts with `base`.

    Returns:
        Tensor of the broadcast shape. Where it is clipped, the gradient is 0.

    Example:
        >>> base, exponent = ops.convert_to_tensor([1.0, 4.0]), ops.convert_to_tensor(0.5)
        >>> powers = elementwise_power(base, exponent)
        >>> ops.convert_to_numpy(powers).round(3).tolist()
        [1.0, 2.0]
    """
    logarithm = ops.log(base) * exponent
    clipped = ops.abs(logarithm) >= _LARGEST_LOGARITHM
    # Not `exp(logarithm)`, which multiplies the rounding error of the logarithm by up to 40.
    power = ops.power(ops.where(clipped, ops.ones_like(logarithm), base), exponent)
    limit = ops.exp(_LARGEST_LOGARITHM * ops.sign(logarithm))
    return ops.where(clipped, ops.stop_gradient(limit), power)
