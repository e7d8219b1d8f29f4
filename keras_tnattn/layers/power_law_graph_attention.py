"""Power law graph attention: scores from a metric that is learned from the query or the key."""

import numbers
from typing import Any

import keras
from keras import ops

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.base_attention import AttentionAdapter, adapter_of
from keras_tnattn.layers.base_metric_attention import BaseMetricAttention
from keras_tnattn.layers.metric_attention_adapter import MetricAttentionAdapter
from keras_tnattn.layers.residual_unit import ResidualUnit
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.power_law import elementwise_power
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Initializer, Tensor

_METRICS = ("query", "key")
_NETS = ("relu", "swiglu")
_SMALLEST_EPSILON = 1e-30  # above 0 in float32


def _check_epsilon(value: Any) -> float:
    if not isinstance(value, numbers.Real) or not _SMALLEST_EPSILON <= float(value) < 1:
        raise ValueError(
            f"Expected a number in [{_SMALLEST_EPSILON}, 1). Received: epsilon={value!r}"
        )
    return float(value)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class PowerLawGraphAttention(BaseMetricAttention):
    """Multi-head power law graph attention (PLGA) of Gokden, "Power Law Graph Transformer".

    With `Q, K, V` the projected inputs, per head of size `k` (equations 1 to 7):

        D_Q  = Q^T Q                                  metric of the sentence, (k, k)
        A    = residual units on the rows of D_Q: A <- LayerNorm(A + Dense(ReLU(... A)))
        A_LM = ReLU(W A + b) + epsilon
        G_LM = a (A_LM ** P) + b_a                    power elementwise
        E    = LeakyReLU(Q G_LM K^T / sqrt(k))        slope 0.2 below zero
        E_LM = softmax(E),  V_LM = E_LM V             heads merged, then a dense layer

    `W, b, a, P, b_a`, each `(H, k, k)`, and the residual units, shared by the heads, do not depend
    on the sentence; the paper reads them as knowledge of the language. `return_details=True`
    returns the intermediate results, with `P`, `a` and `b_a` among them.

    In the published code padding changes the result, because padded queries contribute to `D_Q`.
    Here they do not, and their output is 0; `padding_in_metric=True` restores the published
    behavior. As in the paper, `D_Q` sums over *all* queries, so that an early output of a decoder
    depends on later tokens even with a causal mask. With `causal_metric=True` the metric at
    position `t` is computed from the queries up to `t`, at the cost of one pass through the
    residual units per position.

    Two options depart from the paper, and bring translators of this attention close to those of
    scaled dot-product attention (docs/studies/translators.md). At the start of training about half
    of `A_LM` is `epsilon`. The power turns the published 1e-9 into `exp(-21 P)`: where `P` is
    negative, these entries drown all others; `epsilon=0.01` keeps them within bounds. With
    `metric_from="key"` the metric is that of the sentence attended to, `K^T K`. In the
    cross-attention of a decoder it is complete before the first token is decoded, and does not
    depend on later tokens of the target. A metric that does tells the decoder, in training, the
    words that it should predict. The self-attention of a decoder needs `causal_metric` for the same
    reason.

    The last three arguments turn the layer into that of the author's language models (Gokden,
    "PLDR-LLM", https://arxiv.org/abs/2502.13502): queries and keys are rotated before the metric,
    which is normalized before the residual units; these are `SwiGLU` nets; `A_LM` is `x^2
    sigmoid(x)` of `W A + b`, plus `epsilon`; and `E` has no LeakyReLU.

    Costs, for `R` rows of metrics, `R = B H k` (`B H k T` with `causal_metric`): `2 R u (2 k f +
    (n - 1) f^2)` FLOPs for `u` units of `n` layers of width `f`, which is most of it, `4 R k^2` for
    equations 2 and 3, `4 B T H k (k + S)` for the products of queries, metric, keys and values, and
    `4 B H k d (T + S)` for the dense maps; memory `R (k + u n f)` for the gradient and `B H T S`
    for the scores.

    The metric, the power and the scores are computed in float32 under every dtype policy; the
    dense layers of the residual units in bfloat16 if that is the compute dtype. `A_LM ** P` is
    clipped to `exp(-40)` and `exp(40)`; with the published `epsilon` this does not affect exponents
    below 1.9 in magnitude.
    Train this attention with a small learning rate, such as a peak of 1e-3 at `d = 128`.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `k` of each head. Defaults to the size of the query over `num_heads`.
        residual_units: Number of residual units `u`, which may be 0. Defaults to 9, as the paper's
            model #2.
        residual_dense_layers: Layers `n` with ReLU in each unit, which may be 0. Defaults to 2.
        residual_dim: Width `f` of these layers, the paper's A-dff. Defaults to 256.
        dropout: Dropout rate of `E_LM`. Defaults to 0.
        residual_dropout: Dropout rate in each residual unit, before its sum. Defaults to 0.
        padding_in_metric: Whether padded tokens contribute to the metric, as published;
            `query_mask` then has no effect. Defaults to `False`.
        causal_metric: Whether the metric at position `t` is computed from positions up to `t` only.
            Defaults to `False`.
        kernel_initializer: Initializer of the dense kernels. Defaults to `"glorot_uniform"`.
        power_law_initializer: Initializer of `W`, `a` and `P`. Defaults to `"glorot_normal"`, whose
            standard deviation for a shape `(H, k, k)` is `1 / sqrt(H k)`.
        query_dropout: Dropout rate of the projected queries, before the metric. Defaults to 0, as
            in the paper (section 5).
        key_dropout: Dropout rate of the projected keys. Defaults to 0, as in the paper.
        metric_from: The tokens of which the metric is computed: `"query"` (default), as published,
            or `"key"`, which cannot have a `causal_metric`.
        epsilon: Number that is added to the entries of `A_LM`. Defaults to 1e-9, as published.
        metric_net: `"relu"` (default), or `"swiglu"` for the net of the language models.
        rotary: The pairs of features of queries and keys that are rotated by their position,
            `"neighbors"` or `"halves"`, as in `keras_tnattn.ops.rotary.rotate`. Defaults to `None`:
            the tokens carry their positions.
        negative_slope: Slope of the LeakyReLU of equation 5 below zero, up to 1, with which there
            is none. Defaults to 0.2.

    Call arguments:
        query: Float tensor `(B, T, d)`.
        value: Float tensor `(B, S, d')`. Defaults to the query, for self-attention.
        key: Float tensor `(B, S, d'')`. Defaults to the value.
        query_mask, value_mask, key_mask: Boolean tensors `(B, T)` or `(B, S)`, `True` for a real
            token; Keras fills them in.
        attention_mask: Boolean tensor `(B, T, S)`, sizes of 1 broadcast, `True` = attend. A query
            that may attend to nothing counts as padding, and so does, in self-attention, a token
            that nothing may attend to; a key that no real query may attend to does not contribute
            to a metric of keys.
        return_attention_scores: Whether to return `E_LM`, too. Defaults to `False`.
        training: Whether dropout is active.
        use_causal_mask: Whether position `t` may attend to positions up to `t` only. Defaults to
            `False`. The metric still depends on later tokens unless `causal_metric` is set.
        return_details: Whether to return the deductive outputs, too. Defaults to `False`.
        mask: Same as `query_mask`; Keras fills it in if only a query is passed.
        positions: Integers `(T,)` or `(B, T)`, the positions for `rotary`. Default: from 0 on.

    Returns:
        Tensor `(B, T, d)`; with `return_attention_scores` also `(B, H, T, S)`; with
        `return_details` also a dict of `D_Q` (`K^T K` with `metric_from="key"`), `A`, `A_LM`,
        `G_LM`, each `(B, H, k, k)` (`(B, H, T, k, k)` with `causal_metric`), `P`, `a`, `b_a`, each
        `(H, k, k)`, and `E` (before the mask) and `E_LM`, each `(B, H, T, S)`.

    Raises:
        ValueError: If a size is not an int, `num_heads`, `key_dim` or `residual_dim` is not
            positive, another size is negative, a rate is not in [0, 1), `epsilon` is not in
            [1e-30, 1), `metric_from` is unknown or `"key"` with a `causal_metric`,
            another option is unknown, or `num_heads` does not divide the size of the query and
            `key_dim` is not given.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> layer = keras_tnattn.PowerLawGraphAttention(
        ...     num_heads=2, residual_units=1, residual_dim=8
        ... )
        >>> outputs, deductive = layer(keras.ops.ones((1, 5, 16)), return_details=True)
        >>> tuple(outputs.shape), tuple(deductive["G_LM"].shape)
        ((1, 5, 16), (1, 2, 8, 8))
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        residual_units: int = 9,
        residual_dense_layers: int = 2,
        residual_dim: int = 256,
        dropout: float = 0.0,
        residual_dropout: float = 0.0,
        padding_in_metric: bool = False,
        causal_metric: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        power_law_initializer: Initializer = "glorot_normal",
        query_dropout: float = 0.0,
        key_dropout: float = 0.0,
        metric_from: str = "query",
        epsilon: float = 1e-9,
        metric_net: str = "relu",
        rotary: str | None = None,
        negative_slope: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            dropout,
            query_dropout,
            key_dropout,
            kernel_initializer,
            rotary,
            negative_slope,
            **kwargs,
        )
        self.residual_units = check_int("residual_units", residual_units, at_least=0)
        self.residual_dense_layers = check_int(
            "residual_dense_layers", residual_dense_layers, at_least=0
        )
        self.residual_dim = check_int("residual_dim", residual_dim)
        self.residual_dropout = check_rate("residual_dropout", residual_dropout)
        self.padding_in_metric = padding_in_metric
        self.causal_metric = causal_metric
        if metric_from not in _METRICS:
            raise ValueError(f"Expected one of {_METRICS}. Received: metric_from={metric_from!r}")
        self.metric_from = metric_from
        if metric_net not in _NETS:
            raise ValueError(f"Expected one of {_NETS}. Received: metric_net={metric_net!r}")
        self.metric_net = metric_net
        self.epsilon = _check_epsilon(epsilon)
        if causal_metric and metric_from == "key":
            raise ValueError(
                "Expected metric_from='query' with causal_metric, which is computed from the "
                "queries up to each position. Received: metric_from='key', causal_metric=True"
            )
        self.power_law_initializer = keras.initializers.get(power_law_initializer)

    def _build_metric(self) -> None:
        self.metric_norm = None
        if self.metric_net == "swiglu":
            self.metric_norm = keras.layers.LayerNormalization(
                epsilon=1e-6, dtype=self.wide_dtype, name="metric_norm"
            )
            self.metric_norm.build((None, self.head_dim))
        self.residuals = [
            ResidualUnit(
                self.residual_dim,
                self.residual_dense_layers,
                self.residual_dropout,
                self.kernel_initializer,
                gated=self.metric_net == "swiglu",
                dtype=self.dtype_policy,
                name=f"residual_{i}",
            )
            for i in range(self.residual_units)
        ]
        for unit in self.residuals:
            unit.build((None, self.head_dim))
        self.power_law_W = self._power_law_weight("W", self.power_law_initializer)
        self.power_law_b = self._power_law_weight("b", keras.initializers.Zeros())
        self.power_law_a = self._power_law_weight("a", self.power_law_initializer)
        self.power_law_P = self._power_law_weight("P", self.power_law_initializer)
        self.power_law_b_a = self._power_law_weight("b_a", keras.initializers.Zeros())

    def _power_law_weight(
        self, name: str, initializer: keras.initializers.Initializer
    ) -> keras.Variable:
        return self.add_weight(
            shape=(self.num_heads, self.head_dim, self.head_dim),
            # Clone the initializer: used twice, it returns the same values.
            initializer=initializer.clone(),
            autocast=False,
            name=name,
        )

    def _metric(
        self,
        query: Tensor,
        key: Tensor,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
        training: bool | None,
    ) -> dict[str, Tensor]:
        if self.metric_from == "query":
            counted = apply_mask(query, query_mask)
        else:
            counted = apply_mask(key, key_mask)
        return self.deductive(self.sum_of_products(counted), training)

    def sum_of_products(self, tokens: Tensor) -> Tensor:
        """Equation 1 from queries or keys `(B, T, H, k)`: `(B, H, k, k)`, or `(B, H, T, k, k)`."""
        q = ops.transpose(tokens, (0, 2, 1, 3))
        if self.causal_metric:
            return ops.cumsum(q[..., :, None] * q[..., None, :], axis=2)
        return matmul(ops.swapaxes(q, -1, -2), q)

    def deductive(self, metric: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Equations 2 and 3 from what `sum_of_products` returns: the deductive outputs."""
        # One row of one head's metric after the other: plain products of matrices.
        rows = ops.reshape(metric, (-1, self.head_dim))
        if self.metric_norm is not None:
            rows = self.metric_norm(rows)
        for unit in self.residuals:
            rows = unit(rows, training=training)
        learned = ops.reshape(rows, ops.shape(metric))
        per_head = (self.num_heads, *[1] * (len(metric.shape) - 4), self.head_dim, self.head_dim)

        def weight(variable: keras.Variable) -> Tensor:
            return ops.reshape(variable, per_head)

        hidden = matmul(weight(self.power_law_W), learned) + weight(self.power_law_b)
        if self.metric_net == "swiglu":
            positive = ops.square(hidden) * ops.sigmoid(hidden) + self.epsilon
        else:
            positive = ops.relu(hidden) + self.epsilon
        powers = elementwise_power(positive, weight(self.power_law_P))
        curvature = matmul(weight(self.power_law_a), powers) + weight(self.power_law_b_a)
        return {
            "D_Q": metric,
            "A": learned,
            "A_LM": positive,
            "G_LM": curvature,
            "P": ops.convert_to_tensor(self.power_law_P),
            "a": ops.convert_to_tensor(self.power_law_a),
            "b_a": ops.convert_to_tensor(self.power_law_b_a),
        }

    def get_config(self) -> dict[str, Any]:
        names = (
            "residual_units",
            "residual_dense_layers",
            "residual_dim",
            "residual_dropout",
            "padding_in_metric",
            "causal_metric",
            "metric_from",
            "epsilon",
            "metric_net",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "power_law_initializer": keras.initializers.serialize(self.power_law_initializer),
        }


@adapter_of.register
def _(layer: PowerLawGraphAttention) -> AttentionAdapter:
    return MetricAttentionAdapter(layer)
