"""A residual sum that starts as the identity."""

from typing import Any

import keras

from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class GatedSum(keras.layers.Layer):
    """`x + g * y` with a trained weight `g` for each feature, which starts at 0.

    A model with an attention `y` of `x` then starts as the model without it, and the attention is
    added as far as it reduces the loss (Bachlechner et al., "ReZero is all you need", with one
    weight for each feature as in Touvron et al., "Going deeper with image transformers").

    Call arguments:
        inputs: List of two float tensors `(..., d)` of the same shape, `x` and `y`.

    Returns:
        Tensor `(..., d)`, with the mask of `x` or, if it has none, of `y`.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.GatedSum()
        >>> x, y = keras.ops.ones((1, 3, 4)), keras.ops.ones((1, 3, 4))
        >>> float(layer([x, y])[0, 0, 0])
        1.0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: list[Shape]) -> None:
        first, second = (tuple(shape) for shape in input_shape)
        if first != second or first[-1] is None:
            raise ValueError(
                "Expected two inputs of the same shape, with a known last axis. "
                f"Received: input_shape={input_shape}"
            )
        self.gate = self.add_weight((first[-1],), "zeros", name="gate")
        self.built = True

    def call(self, inputs: list[Tensor]) -> Tensor:
        return inputs[0] + self.gate * inputs[1]

    def compute_mask(self, inputs: list[Tensor], mask: list[Tensor | None] | None = None) -> Any:
        return next((m for m in mask or () if m is not None), None)

    def compute_output_shape(self, input_shape: list[Shape]) -> tuple[int | None, ...]:
        return tuple(input_shape[0])
