"""Dot-product and additive attention with heads of the size of the input, as in the papers."""

from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.self_attention import SelfAttention
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MultiHeadDotProductAttention(SelfAttention):
    """Luong-style multi-head self-attention: `softmax(Q K^T / sqrt(J)) V`, mapped back to `I`.

    The baseline DPA of Xu et al. ("A Tensorized Spectral Attention Mechanism", sections 2.3 and
    6): self-attention by `keras.layers.MultiHeadAttention` without biases. It takes a single input,
    so you can use it in a `keras.Sequential`. It has `4 H I J` parameters, 288 for `H = 2`,
    `I = J = 6`, and costs `O(L^2 J)` FLOPs and `O(L^2)` memory per head.

    A masked token neither sends nor receives: its output is 0.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `J` of each head. Defaults to the size `I` of the input.
        kernel_initializer: Initializer of the four kernels. Defaults to `"glorot_uniform"`.

    Call arguments:
        inputs: Float tensor `(B, L, I)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return the scores, too. Defaults to `False`.
        training: Has no effect; accepted as in Keras' attention layers.
        use_causal_mask: Whether a token attends to itself and earlier tokens only. Defaults to
            `False`.

    Returns:
        Tensor `(B, L, I)`; with `return_attention_scores` also the scores `(B, H, L, L)`.

    Raises:
        ValueError: If `num_heads` or `key_dim` is not a positive int.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.MultiHeadDotProductAttention(num_heads=2)
        >>> tuple(layer(keras.ops.ones((1, 5, 6))).shape)
        (1, 5, 6)
        >>> layer.count_params()
        288
    """

    supports_causal_mask = True

    def build(self, input_shape: Shape) -> None:
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
        use_causal_mask: bool = False,
    ) -> Any:
        inputs = apply_mask(inputs, mask)
        outputs = self.attention(
            inputs,
            inputs,
            attention_mask=None if mask is None else mask[:, None, :],
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
        )
        outputs, *scores = outputs if return_attention_scores else (outputs,)
        outputs = apply_mask(outputs, mask)
        return (outputs, *scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MultiHeadAdditiveAttention(SelfAttention):
    """Bahdanau-style multi-head self-attention: score `v^T tanh(q_i + k_j)`, mapped back to `I`.

    The baseline ADA of Xu et al. ("A Tensorized Spectral Attention Mechanism", section 6): each
    head is a `keras.layers.AdditiveAttention` with dense maps without biases before and after it.
    It has `4 H I J + H J`
    parameters, 300 for `H = 2`, `I = J = 6`. It costs `O(L^2 J)` FLOPs and, unlike the dot
    product, `O(L^2 J)` memory per head.

    A masked token neither sends nor receives: its output is 0.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `J` of each head. Defaults to the size `I` of the input.
        kernel_initializer: Initializer of the four kernels. Defaults to `"glorot_uniform"`.

    Call arguments:
        inputs: Float tensor `(B, L, I)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return the scores, too. Defaults to `False`.
        training: Has no effect; accepted as in Keras' attention layers.
        use_causal_mask: Whether a token attends to itself and earlier tokens only. Defaults to
            `False`.

    Returns:
        Tensor `(B, L, I)`; with `return_attention_scores` also the scores `(B, H, L, L)`.

    Raises:
        ValueError: If `num_heads` or `key_dim` is not a positive int.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.MultiHeadAdditiveAttention(num_heads=2)
        >>> tuple(layer(keras.ops.ones((1, 5, 6))).shape)
        (1, 5, 6)
        >>> layer.count_params()
        300
    """

    supports_causal_mask = True

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        key_dim = width if self.key_dim is None else self.key_dim

        def linear_map(equation: str, output_shape: tuple, name: str) -> keras.layers.Layer:
            return keras.layers.EinsumDense(
                equation,
                output_shape,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        heads = (self.num_heads, None, key_dim)
        self.query_map = linear_map("bli,ihj->bhlj", heads, "query")
        self.key_map = linear_map("bli,ihj->bhlj", heads, "key")
        self.value_map = linear_map("bli,ihj->bhlj", heads, "value")
        self.output_map = linear_map("bhlj,hji->bli", (None, width), "output")
        for layer in (self.query_map, self.key_map, self.value_map):
            layer.build(input_shape)
        self.output_map.build((input_shape[0], self.num_heads, input_shape[1], key_dim))
        self.heads = [
            keras.layers.AdditiveAttention(dtype=self.dtype_policy, name=f"head_{h}")
            for h in range(self.num_heads)
        ]
        for head in self.heads:
            head.build([(*input_shape[:2], key_dim)] * 3)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        inputs = apply_mask(inputs, mask)
        query, key, value = (m(inputs) for m in (self.query_map, self.key_map, self.value_map))
        outputs = []
        scores = []
        for h, head in enumerate(self.heads):
            output, score = head(
                [query[:, h], value[:, h], key[:, h]],
                mask=None if mask is None else [mask, mask],
                return_attention_scores=True,
                use_causal_mask=use_causal_mask,
            )
            outputs.append(output)
            scores.append(score)
        outputs = apply_mask(self.output_map(ops.stack(outputs, axis=1)), mask)
        return (outputs, ops.stack(scores, axis=1)) if return_attention_scores else outputs
