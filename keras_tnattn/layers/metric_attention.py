"""Multi-head attention with a fixed metric: power law attention whose metric is cached."""

from typing import Any

import keras

from keras_tnattn.layers.base_metric_attention import BaseMetricAttention
from keras_tnattn.ops.rotary import check_rotary
from keras_tnattn.typing import Initializer, Shape, Tensor


def _identity(shape: Shape, dtype: str) -> Tensor:
    # Repeated, not broadcast: PyTorch cannot assign to a variable whose entries share memory.
    return keras.ops.tile(keras.ops.eye(shape[-1], dtype=dtype), (*shape[:-2], 1, 1))


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MetricAttention(BaseMetricAttention):
    """Multi-head attention whose scores have a metric `G` of weights, one for each head.

        softmax(LeakyReLU(Q G K^T / sqrt(k))) V

    This is what remains of a `PowerLawGraphAttention` whose metric is the same for all inputs:
    `keras_tnattn.freeze_metric` makes it. With the identity for `G`, which is the default, and
    `negative_slope=1` it is scaled dot-product attention, and with `rotary` that of current
    language models, which `keras.layers.MultiHeadAttention` does not offer.

    Costs, for heads of size `k`, `4 B T H k S` FLOPs for scores and outputs, `2 B T H k^2` for the
    metric and `4 B H k d (T + S)` for the dense maps. Scores are computed in float32 under every
    dtype policy. A masked token neither sends nor receives; its output is 0.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `k` of each head. Defaults to the size of the query over `num_heads`.
        dropout: Dropout rate of the scores. Defaults to 0.
        use_metric: Whether there are weights `G`, `(H, k, k)`, initially the identity; without them
            `G` is the identity and costs nothing. Defaults to `False`.
        query_dropout: Dropout rate of the projected queries. Defaults to 0.
        key_dropout: Dropout rate of the projected keys. Defaults to 0.
        kernel_initializer: Initializer of the dense kernels. Defaults to `"glorot_uniform"`.
        rotary: The pairs of features of queries and keys that are rotated by their position,
            `"neighbors"` or `"halves"`. Defaults to `None`.
        negative_slope: Slope of the LeakyReLU below zero, up to 1 (default), with which there is
            none.

    Call arguments:
        query, value, key, query_mask, value_mask, key_mask, attention_mask,
            return_attention_scores, training, use_causal_mask, return_details, mask, positions:
            As in `PowerLawGraphAttention`; the deductive outputs are `E`, `E_LM` and, with
            `use_metric`, `G_LM`, `(1, H, k, k)`.

    Returns:
        Tensor `(B, T, d)`; with `return_attention_scores` also `(B, H, T, S)`; with
        `return_details` also a dict.

    Raises:
        ValueError: If a size or a rate is out of range, or `num_heads` does not divide the size of
            the query and `key_dim` is not given.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.MetricAttention(num_heads=2, rotary="neighbors")
        >>> tuple(layer(keras.ops.ones((1, 5, 16)), use_causal_mask=True).shape)
        (1, 5, 16)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        use_metric: bool = False,
        query_dropout: float = 0.0,
        key_dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        rotary: str | None = None,
        negative_slope: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads, key_dim, dropout, query_dropout, key_dropout, kernel_initializer, **kwargs
        )
        self.rotary = check_rotary(rotary)
        if not 0 <= negative_slope <= 1:
            raise ValueError(
                f"Expected a slope from 0 to 1. Received: negative_slope={negative_slope!r}"
            )
        self.negative_slope = float(negative_slope)
        self.use_metric = bool(use_metric)
        self.metric_weight: keras.Variable | None = None

    def _build_metric(self) -> None:
        if self.use_metric:
            self.metric_weight = self.add_weight(
                shape=(self.num_heads, self.head_dim, self.head_dim),
                initializer=_identity,
                autocast=False,
                name="metric",
            )

    def _metric(
        self,
        query: Tensor,
        key: Tensor,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
        training: bool | None,
    ) -> dict[str, Tensor]:
        if self.metric_weight is None:
            return {}
        # One for all inputs: with an axis for the batch.
        return {"G_LM": keras.ops.convert_to_tensor(self.metric_weight)[None]}

    def set_metric(self, metric: Tensor) -> None:
        """Sets the weights `G`, `(H, k, k)`, of a built layer with `use_metric`."""
        if self.metric_weight is None:
            raise ValueError(
                f"Expected a built layer with use_metric=True. Received: {self.name}, "
                f"built={self.built}, use_metric={self.use_metric}"
            )
        self.metric_weight.assign(metric)
