"""An attention layer with a residual sum, for stacks of attentions."""

from typing import Any, ClassVar

import keras

from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.layers.base_transformer import adapter_for
from keras_tnattn.typing import Masks, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class ResidualAttention(BaseLayer):
    """`x + attention(x)`; the mask of `x` is kept.

    With separate layers the sum would have no mask, because `keras.layers.MultiHeadAttention`
    removes the mask from its input tensor.

    Args:
        attention: An attention layer whose output has the shape of its input.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        training: Whether dropout is active.

    Returns:
        Tensor `(B, L, d)`.

    Raises:
        TypeError: If `attention` is not a layer.
        ValueError: If the outputs of the attention have another size than its inputs.

    Example:
        >>> import keras
        >>> from keras_tnattn.layers.residual_attention import ResidualAttention
        >>> layer = ResidualAttention(keras.layers.MultiHeadAttention(2, 4))
        >>> tuple(layer(keras.ops.ones((1, 3, 8))).shape)
        (1, 3, 8)
    """

    call_shapes: ClassVar = {"inputs": "B L d", "mask": "B? L"}

    def __init__(self, attention: keras.layers.Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._attend = adapter_for("attention", attention)
        self.attention = attention

    def build(self, input_shape: Shape) -> None:
        size = self._attend.build(input_shape, input_shape)
        if size != input_shape[-1]:
            raise ValueError(
                f"Expected an attention whose outputs have the size {input_shape[-1]} of its "
                "inputs, to which they are added; with several heads, for instance, one with "
                f"head_combination='project'. Received: {self.attention.name} with outputs of size "
                f"{size}"
            )
        self.built = True

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        return inputs + self._attend(inputs, inputs, Masks(mask, mask), training=training)[0]

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)
