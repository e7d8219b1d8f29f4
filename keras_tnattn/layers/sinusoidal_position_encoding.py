"""The position encoding of the transformer."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class SinusoidalPositionEncoding(BaseLayer):
    """Adds a fixed vector to each token, depending on its position (Vaswani et al., section 3.5).

    `PE[p, 2 i] = sin(p / w^(2 i / d))` and `PE[p, 2 i + 1] = cos(p / w^(2 i / d))`, where `w` is
    the largest wavelength divided by `2 pi`. The vectors are computed, not looked up, so that any
    length works. Costs `O(L d)` FLOPs.

    Args:
        max_wavelength: The `w` of the formula. Defaults to 10,000.
        scale: Whether to multiply the inputs by `sqrt(d)` first, as transformers do with
            embeddings. Defaults to `False`.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        start_index: Position of the first token: an int, a scalar tensor, or a tensor `(B, 1)`.
            Defaults to 0.

    Returns:
        Tensor `(B, L, d)`: `inputs`, scaled if requested, plus the vectors. The mask is kept.

    Raises:
        ValueError: If `max_wavelength` is not positive.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> positions = keras_tnattn.SinusoidalPositionEncoding(scale=True)
        >>> tuple(positions(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    call_shapes: ClassVar = {"inputs": "B L d"}
    fixes_sizes = False

    def __init__(
        self, max_wavelength: float = 10_000.0, scale: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not max_wavelength > 0:
            raise ValueError(
                f"Expected a positive wavelength. Received: max_wavelength={max_wavelength}"
            )
        self.max_wavelength = float(max_wavelength)
        self.scale = scale
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Tensor, start_index: Tensor = 0) -> Tensor:
        length, dim = ops.shape(inputs)[1], inputs.shape[-1]
        # Half precision is too coarse for positions above 2,048 and for their angles.
        dtype = at_least_float32(self.compute_dtype)
        features = np.arange(dim)
        rates = self.max_wavelength ** (-2.0 * (features // 2) / dim)
        positions = ops.cast(ops.arange(length) + start_index, dtype)
        angles = positions[..., None] * ops.convert_to_tensor(rates, dtype)
        pattern = ops.where(features % 2 == 0, ops.sin(angles), ops.cos(angles))
        if self.scale:
            inputs = inputs * dim**0.5
        return inputs + ops.cast(pattern, inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scale": self.scale,
        }
