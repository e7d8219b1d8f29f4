"""Average over the real tokens of a text."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_tnattn.ops.masking import masked_mean
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MaskedAveragePooling1D(keras.layers.Layer):
    """Averages over the tokens that are not masked; an empty text gives 0.

    `keras.layers.GlobalAveragePooling1D` divides by the number of unmasked tokens, so that one text
    without any turns the batch, and by the gradient all weights, into NaN.

    Call arguments:
        inputs: Float tensor `(B, L, ...)`: batch, tokens, any feature axes.
        mask: Boolean tensor `(B, L)`, `True` for a real token. Default: all are.

    Returns:
        Tensor `(B, ...)`, without a mask.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(min_ndim=3)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return masked_mean(inputs, mask)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (input_shape[0], *input_shape[2:])
