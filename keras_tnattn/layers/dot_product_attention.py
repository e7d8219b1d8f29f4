"""The dot-product baseline (DPA), composed of Keras parts."""

from collections.abc import Sequence

import keras

from keras_tnattn.layers.self_attention import SelfAttention
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MultiHeadDotProductAttention(SelfAttention):
    """Luong-style multi-head self-attention: `softmax(Q K^T / sqrt(J)) V`, mapped back to `I`.

    `keras.layers.MultiHeadAttention` without biases, of one sequence with itself, as the baseline
    DPA of Xu et al. ("A Tensorized Spectral Attention Mechanism", sections 2.3 and 6) and a
    `keras.Sequential` citizen. `4 H I J` parameters: 288 for `H = 2`, `I = J = 6`. Costs
    `O(L^2 J)` FLOPs and `O(L^2)` memory a head.

    A masked token neither sends nor receives: its output is 0.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `J` of each head. Defaults to the size `I` of the input.
        kernel_initializer: Of the four maps.

    Call arguments:
        inputs: Float tensor `(B, L, I)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return the scores too. Defaults to `False`.
        training: Taken as Keras' attentions do; the layer computes the same in training.

    Returns:
        Tensor `(B, L, I)`; with `return_attention_scores` also the scores `(B, H, L, L)`.
    """

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.attention = keras.layers.MultiHeadAttention(
            self.num_heads,
            input_shape[-1] if self.key_dim is None else self.key_dim,
            use_bias=False,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.attention.build(input_shape, input_shape)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        inputs = apply_mask(inputs, mask)
        outputs = self.attention(
            inputs,
            inputs,
            attention_mask=None if mask is None else mask[:, None, :],
            return_attention_scores=return_attention_scores,
        )
        outputs, *scores = outputs if return_attention_scores else (outputs,)
        outputs = apply_mask(outputs, mask)
        return (outputs, *scores) if return_attention_scores else outputs
