"""Average over the real tokens of a text."""

from typing import ClassVar

import keras

from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.masking import masked_mean
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MaskedAveragePooling1D(BaseLayer):
    """Averages over the tokens that are not masked; the average of an empty text is 0.

    `keras.layers.GlobalAveragePooling1D` divides by the number of unmasked tokens. For a text
    without tokens the result is NaN and, through the gradient, all weights become NaN.

    Call arguments:
        inputs: Float tensor `(B, L, ...)`: batch, tokens, any feature axes.
        mask: Boolean tensor `(B, L)`, `True` for a real token. Default: all tokens are real.

    Returns:
        Tensor `(B, ...)`, without a mask.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> pooling = keras_tnattn.MaskedAveragePooling1D()
        >>> mask = keras.ops.array([[True, True, False]])
        >>> tuple(pooling(keras.ops.ones((1, 3, 4)), mask=mask).shape)
        (1, 4)
    """

    call_shapes: ClassVar = {"inputs": "B L I ...", "mask": "B? L"}
    fixes_sizes = False

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return masked_mean(inputs, mask)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (input_shape[0], *input_shape[2:])
