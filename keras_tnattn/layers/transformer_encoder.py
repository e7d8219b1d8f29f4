"""The encoder layer of the transformer, around any self-attention."""

from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.base_transformer import BaseTransformerLayer, adapter_for, project_back
from keras_tnattn.typing import Masks, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TransformerEncoder(BaseTransformerLayer):
    """Encoder layer of the transformer (Vaswani et al., section 3.1) around any self-attention.

    `x <- LayerNorm(x + Dropout(Attention(x)))`, then the same with the feed-forward net
    `Dense(d)(relu(Dense(f)(x)))` in place of the attention. Outputs of another size than the
    inputs, such as the concatenated heads of a `TensorizedSpectralAttention(2)`, are mapped back by
    a dense layer without bias. Costs the attention's FLOPs and
    `4 B L d f`; with `feedforward="tensor_train"` those of two `TTDense` layers instead.

    Args:
        attention: The attention layer: `keras.layers.MultiHeadAttention`,
            `keras.layers.GroupQueryAttention`, any attention of this package, or another layer
            `(B, L, d) -> (B, L, d)` that is called with `inputs` and, if it supports masking,
            `mask`.
        feedforward_dim: Hidden size `f` of the feed-forward net.
        dropout: Rate on the output of the attention and of the feed-forward net, before the
            residual sum. Defaults to 0.
        activation: Activation function of the feed-forward net. Defaults to `"relu"`.
        norm_first: Whether to normalize the inputs of attention and feed-forward net instead of
            the residual sums. Defaults to `False`.
        epsilon: Small number that the normalizations add to the variance. Defaults to 1e-6.
        feedforward: `"dense"` (default), or `"tensor_train"` for a feed-forward net of `TTDense`
            layers, or `"swiglu"` for a `SwiGLU` net, which has no `activation`.
        feedforward_tt_ranks: Int, the maximum TT-rank of these layers. Defaults to 8.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        training: Whether dropout is active.
        return_details: Whether to also return details of the attention: the deductive outputs of
            a `PowerLawGraphAttention`, `{"local_weights": ...}` of a `TNAttention`, `{"scores":
            ...}` of other attentions. Defaults to `False`.

    Returns:
        Tensor `(B, L, d)`; with `return_details` also a dict.

    Raises:
        TypeError: If `attention` is not a layer.
        ValueError: If a size or rate is out of range, or if `return_details` is set and the
            attention cannot return its scores.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> attention = keras_tnattn.TensorizedSpectralAttention(2, head_combination="project")
        >>> encoder = keras_tnattn.TransformerEncoder(attention, feedforward_dim=32)
        >>> outputs, details = encoder(keras.ops.ones((1, 5, 16)), return_details=True)
        >>> tuple(outputs.shape), tuple(details["scores"].shape)
        ((1, 5, 16), (1, 2, 5, 5))
    """

    def __init__(self, attention: keras.layers.Layer, feedforward_dim: int, **kwargs: Any) -> None:
        super().__init__(feedforward_dim, **kwargs)
        self._attend = adapter_for("attention", attention)
        self.attention = attention

    def build(self, input_shape: Shape) -> None:
        self.attention_projection = self._build_attention(
            self._attend, "attention_projection", input_shape, input_shape
        )
        self._build_branches(input_shape, num_attentions=1)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        return_details: bool = False,
    ) -> Any:
        details = None

        def attend(x: Tensor) -> Tensor:
            nonlocal details
            outputs, details = self._attend(
                x, x, Masks(mask, mask), training=training, return_details=return_details
            )
            return project_back(outputs, self.attention_projection)

        inputs = ops.cast(inputs, self.compute_dtype)
        x = self._add(0, inputs, attend, training)
        x = self._add(1, x, self._feed_forward, training)
        return (x, details) if return_details else x

    @property
    def has_details(self) -> bool:
        """Whether the attention can return details."""
        return self._attend.has_details
