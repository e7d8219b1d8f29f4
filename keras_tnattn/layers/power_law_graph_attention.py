"""Power law graph attention: scores from a metric that is learned from the query or the key."""

import numbers
import warnings
from typing import Any

import keras
from keras import ops

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.base_layer import built_dense
from keras_tnattn.layers.base_metric_attention import BaseMetricAttention
from keras_tnattn.layers.swiglu import SwiGLU
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.power_law import elementwise_power
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Initializer, Shape, Tensor

_METRICS = ("query", "key")
_SMALLEST_EPSILON = 1e-30  # above 0 in float32
_READS_LATER_TOKENS = (
    "Power law attention with use_causal_mask=True still reads later tokens: as published, its "
    "metric is computed from all tokens, or all keys. Set causal_metric=True to prevent this, or "
    "causal_metric=False if you want it"
)


def _check_epsilon(value: Any) -> float:
    if not isinstance(value, numbers.Real) or not _SMALLEST_EPSILON <= float(value) < 1:
        raise ValueError(
            f"Expected a number in [{_SMALLEST_EPSILON}, 1). Received: epsilon={value!r}"
        )
    return float(value)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class ResidualUnit(keras.layers.Layer):
    """`x <- LayerNorm(x + Dropout(Dense(k)(ReLU(Dense(f)(... x)))))` on vectors of size `k`.

    The step of Gokden, "Power Law Graph Transformer" (section 3.1 and Figure 1), that learns the
    metric tensor. With `gated=True` the branch is `n` `SwiGLU` nets, as in his language models. The
    sum and its normalization are computed in float32 under every dtype policy; with float16 the
    dense layers are, too, because a metric is a sum over a sentence and can overflow.

    Args:
        hidden_dim: Width `f` of the hidden layers.
        num_hidden: Number of hidden layers, which may be 0. Defaults to 2.
        dropout: Dropout rate before the residual sum. Defaults to 0.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        gated: Whether the branch is `num_hidden` nets `SwiGLU(f)`, one after the other, instead of
            dense layers. Defaults to `False`.

    Call arguments:
        inputs: Float tensor `(N, k)` in float32 or wider.
        training: Whether dropout is active.

    Returns:
        Tensor `(N, k)` in the dtype of `inputs`.

    Raises:
        ValueError: If a size or the rate is out of range.

    Example:
        >>> import keras
        >>> from keras_tnattn.layers.power_law_graph_attention import ResidualUnit
        >>> tuple(ResidualUnit(hidden_dim=16)(keras.ops.ones((3, 4))).shape)
        (3, 4)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_hidden: int = 2,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        gated: bool = False,
        **kwargs: Any,
    ) -> None:
        # The metric arrives in float32 and leaves in float32.
        super().__init__(autocast=False, **kwargs)
        self.hidden_dim = check_int("hidden_dim", hidden_dim)
        self.num_hidden = check_int("num_hidden", num_hidden, at_least=0)
        self.dropout = check_rate("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated = bool(gated)

    def build(self, input_shape: Shape) -> None:
        dtype = "float32" if self.compute_dtype == "float16" else self.dtype_policy

        # Assign the list at once instead of appending, so that `compress` can replace its layers.
        if self.gated:
            self.hidden = [
                SwiGLU(
                    self.hidden_dim,
                    self.kernel_initializer,
                    dtype=dtype,
                    name=f"{self.name}_gated_{j}",
                )
                for j in range(self.num_hidden)
            ]
            for layer in self.hidden:
                layer.build(input_shape)
            self.projection = None
        else:
            sizes = [input_shape[-1], *[self.hidden_dim] * self.num_hidden]
            self.hidden = [
                built_dense(
                    self,
                    self.hidden_dim,
                    (None, size),
                    f"{self.name}_dense_{j}",
                    activation="relu",
                    dtype=dtype,
                )
                for j, size in enumerate(sizes[:-1])
            ]
            self.projection = built_dense(
                self, input_shape[-1], (None, sizes[-1]), f"{self.name}_projection", dtype=dtype
            )
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=dtype, name=f"{self.name}_dropout"
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=at_least_float32(self.variable_dtype), name=f"{self.name}_norm"
        )
        self.norm.build(input_shape)
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        branch = inputs
        for layer in self.hidden:
            branch = layer(branch)
        if self.projection is not None:
            branch = self.projection(branch)
        branch = self.dropout_layer(branch, training=training)
        return self.norm(inputs + keras.ops.cast(branch, inputs.dtype))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_hidden": self.num_hidden,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "gated": self.gated,
        }


@keras.saving.register_keras_serializable(package="keras_tnattn")
class PowerLawGraphAttention(BaseMetricAttention):
    """Power law graph attention (PLGA) of Gokden, "Power Law Graph Transformer".

    Letters: `B` sentences, `T` queries, `S` keys and values, `H` heads of size `k`, tokens of size
    `d`. With the projected inputs `Q, K, V` of a head (arXiv 2107.02039, equations 1 to 7):

        D_Q  = Q^T Q                                  metric of the sentence, (k, k)
        A    = residual units on the rows of D_Q: A <- LayerNorm(A + Dense(ReLU(... A)))
        A_LM = ReLU(W A + b) + epsilon
        G_LM = a (A_LM ** P) + b_a                    power elementwise
        E    = LeakyReLU(Q G_LM K^T / sqrt(k))        slope 0.2 below zero
        E_LM = softmax(E),  V_LM = E_LM V             heads merged, then a dense layer

    The residual units, shared by the heads, and `W, b, a, P, b_a`, each `(H, k, k)`, do not depend
    on the sentence.

    The published metric sums over all queries. An early output of a decoder therefore depends on
    later tokens, even with a causal mask, unless `causal_metric` is set; the layer warns of this
    once if `causal_metric` is left out. Padding does not count, other than in the published code
    (`padding_in_metric`).

    The layer has many weights: with the default residual units 675,376 for `d = 32` and 2 heads,
    where `keras.layers.MultiHeadAttention(2, 16)` has 4,224. `residual_units=1, residual_dim=8`
    makes 7,168.

    Nearly all of the cost is that of the residual units: `4 R u (k f + (n - 1) f^2 / 2)` FLOPs and
    `R (k + u n f)` numbers for the gradient, with `R = B H k` rows of metrics, `B H k T` with
    `causal_metric`. The metric and the scores are computed in float32 under every dtype policy, and
    `A_LM ** P` is clipped to `exp(-40)` and `exp(40)`. docs/mechanisms/power_law_graph_attention.md
    has the other costs, and says how to train this attention.

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
        causal_metric: Whether the metric at position `t` is computed from positions up to `t` only,
            at the cost of one pass through the residual units per position. Defaults to `None`: not
            so, as published, with a warning when the layer is called with `use_causal_mask=True`.
            `False` does the same without the warning.
        kernel_initializer: Initializer of the dense kernels. Defaults to `"glorot_uniform"`.
        power_law_initializer: Initializer of `W`, `a` and `P`. Defaults to `"glorot_normal"`, whose
            standard deviation for a shape `(H, k, k)` is `1 / sqrt(H k)`.
        query_dropout: Dropout rate of the projected queries, before the metric. Defaults to 0, as
            in the paper (section 5).
        key_dropout: Dropout rate of the projected keys. Defaults to 0, as in the paper.
        metric_from: The tokens of which the metric is computed: `"query"` (default), as published,
            or `"key"`, for `K^T K`, which cannot have a `causal_metric`.
        epsilon: Number that is added to the entries of `A_LM`. Defaults to 1e-9, as published;
            0.01 trains better.

    Call arguments:
        query: Float tensor `(B, T, d)`.
        value: Float tensor `(B, S, d_v)`. Defaults to the query, for self-attention.
        key: Float tensor `(B, S, d_k)`. Defaults to the value.
        query_mask, value_mask, key_mask: Boolean tensors `(B, T)` or `(B, S)`, `True` for a real
            token; Keras fills them in.
        attention_mask: Boolean tensor `(B, T, S)`, sizes of 1 broadcast, `True` = attend. A query
            that may attend to nothing counts as padding, and so does, in self-attention, a token
            that nothing may attend to; a key that no real query may attend to does not contribute
            to a metric of keys.
        return_attention_scores: Whether to return `E_LM`, too. Defaults to `False`.
        training: Whether dropout is active.
        use_causal_mask: Whether position `t` may attend to positions up to `t` only. Defaults to
            `False`. The metric ignores it: see `causal_metric`.
        return_details: Whether to return the deductive outputs, too. Defaults to `False`.
        mask: Same as `query_mask`; Keras fills it in if only a query is passed.
        positions: Integers `(T,)` or `(B, T)`; unused here (see `PLDRAttention`).

    Returns:
        Tensor `(B, T, d)`; with `return_attention_scores` also `(B, H, T, S)`; with
        `return_details` also a dict of `D_Q`, `A`, `A_LM`, `G_LM`, each `(B, H, k, k)`, or
        `(B, H, T, k, k)` with `causal_metric`; `P`, `a`, `b_a`, each `(H, k, k)`; `E`, before the
        mask, and `E_LM`, each `(B, H, T, S)`.

    Raises:
        ValueError: If a size, rate or `epsilon` is out of range, `metric_from` is unknown or
            `"key"` with a `causal_metric`, or `num_heads` does not divide the size of the query and
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

    gated_units = False

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
        causal_metric: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        power_law_initializer: Initializer = "glorot_normal",
        query_dropout: float = 0.0,
        key_dropout: float = 0.0,
        metric_from: str = "query",
        epsilon: float = 1e-9,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads, key_dim, dropout, query_dropout, key_dropout, kernel_initializer, **kwargs
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
        self.epsilon = _check_epsilon(epsilon)
        if causal_metric and metric_from == "key":
            raise ValueError(
                "Expected metric_from='query' with causal_metric, which is computed from the "
                "queries up to each position. Received: metric_from='key', causal_metric=True"
            )
        self.power_law_initializer = keras.initializers.get(power_law_initializer)
        self._has_warned = False

    def _build_metric(self) -> None:
        self.residuals = [
            ResidualUnit(
                self.residual_dim,
                self.residual_dense_layers,
                self.residual_dropout,
                self.kernel_initializer,
                gated=self.gated_units,
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

    def _check_causal(self) -> None:
        if self.causal_metric is None and not self._has_warned:
            self._has_warned = True
            warnings.warn(_READS_LATER_TOKENS, stacklevel=2)

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
        learned = ops.reshape(self._learned_rows(rows, training), ops.shape(metric))
        per_head = (self.num_heads, *[1] * (len(metric.shape) - 4), self.head_dim, self.head_dim)

        def weight(variable: keras.Variable) -> Tensor:
            return ops.reshape(variable, per_head)

        hidden = matmul(weight(self.power_law_W), learned) + weight(self.power_law_b)
        positive = self._positive(hidden) + self.epsilon
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

    def _learned_rows(self, rows: Tensor, training: bool | None) -> Tensor:
        """Returns what the residual units make of the rows `(R, k)` of metrics."""
        for unit in self.residuals:
            rows = unit(rows, training=training)
        return rows

    def _positive(self, x: Tensor) -> Tensor:
        """Returns `A_LM` without `epsilon` from `W A + b`."""
        return ops.relu(x)
