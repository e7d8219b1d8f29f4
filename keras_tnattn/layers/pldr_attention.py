"""The power law attention of PLDR-LLM, the language models of the author of PLGA."""

from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.power_law_graph_attention import PowerLawGraphAttention
from keras_tnattn.ops.rotary import check_rotary
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class PLDRAttention(PowerLawGraphAttention):
    """Power law attention of PLDR-LLM, with rotated queries and keys and a gated net.

    Gokden, "PLDR-LLM: Large Language Model from Power Law Decoder Representations"
    (https://arxiv.org/abs/2410.16703) and "PLDR-LLMs Learn A Generalizable Tensor Operator That Can
    Replace Its Own Deep Neural Net At Inference" (https://arxiv.org/abs/2502.13502). It differs
    from `PowerLawGraphAttention`, whose costs and other properties it has, in four places:

        Q, K = rotated by their positions             before the metric
        A    = residual units on LayerNorm(D_Q)       each of SwiGLU nets
        A_LM = x^2 sigmoid(x) + epsilon               of x = W A + b
        E    = Q G_LM K^T / sqrt(k)                   no LeakyReLU

    As published, the metric sums over the whole sequence, padding and later tokens included. Here
    padding does not count unless `padding_in_metric=True`. For generation set `causal_metric=True`,
    or freeze the metric of a trained model with `keras_tnattn.freeze_metric`.

    Args:
        num_heads: Number of heads `H`.
        rotary: The pairs of features that are rotated, `"neighbors"` (default) or `"halves"`, as in
            `keras_tnattn.ops.rotary.rotate`; `None` if the tokens carry their positions.
        **kwargs: The other arguments of `PowerLawGraphAttention`.

    Call arguments:
        query, value, key, query_mask, value_mask, key_mask, attention_mask,
            return_attention_scores, training, use_causal_mask, return_details, mask: As in
            `PowerLawGraphAttention`.
        positions: Integers `(T,)` or `(B, T)`, by which queries and keys are rotated. Default: from
            0 on.

    Returns:
        As `PowerLawGraphAttention`.

    Raises:
        ValueError: As `PowerLawGraphAttention`, or if `rotary` is unknown or the size of a head is
            odd.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.PLDRAttention(
        ...     2, residual_units=1, residual_dim=8, causal_metric=True
        ... )
        >>> tuple(layer(keras.ops.ones((1, 5, 16)), use_causal_mask=True).shape)
        (1, 5, 16)
    """

    negative_slope = 1.0
    gated_units = True

    def __init__(self, num_heads: int, rotary: str | None = "neighbors", **kwargs: Any) -> None:
        super().__init__(num_heads, **kwargs)
        self.rotary = check_rotary(rotary)

    def _build_metric(self) -> None:
        self.metric_norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=self.wide_dtype, name="metric_norm"
        )
        self.metric_norm.build((None, self.head_dim))
        super()._build_metric()

    def _learned_rows(self, rows: Tensor, training: bool | None) -> Tensor:
        return super()._learned_rows(self.metric_norm(rows), training)

    def _positive(self, x: Tensor) -> Tensor:
        return ops.square(x) * ops.sigmoid(x)
