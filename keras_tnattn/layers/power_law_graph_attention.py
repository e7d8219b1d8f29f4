"""Power law graph attention: scores from a metric that is learned from the query or the key."""

import functools
import numbers
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.base_attention import AttentionAdapter, adapter_of
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.layers.residual_unit import ResidualUnit
from keras_tnattn.ops.masking import apply_mask, masked_softmax
from keras_tnattn.ops.power_law import elementwise_power
from keras_tnattn.ops.precision import at_least_float32, leaky_relu, matmul
from keras_tnattn.typing import Initializer, Shape, Tensor

_SLOPE = 0.2  # of equation 5, below zero
_METRICS = ("query", "key")
_SMALLEST_EPSILON = 1e-30  # above 0 in float32


def _check_epsilon(value: Any) -> float:
    if not isinstance(value, numbers.Real) or not _SMALLEST_EPSILON <= float(value) < 1:
        raise ValueError(
            f"Expected a number in [{_SMALLEST_EPSILON}, 1). Received: epsilon={value!r}"
        )
    return float(value)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class PowerLawGraphAttention(BaseLayer):
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

    Returns:
        Tensor `(B, T, d)`; with `return_attention_scores` also `(B, H, T, S)`; with
        `return_details` also a dict of `D_Q` (`K^T K` with `metric_from="key"`), `A`, `A_LM`,
        `G_LM`, each `(B, H, k, k)` (`(B, H, T, k, k)` with `causal_metric`), `P`, `a`, `b_a`, each
        `(H, k, k)`, and `E` (before the mask) and `E_LM`, each `(B, H, T, S)`.

    Raises:
        ValueError: If a size is not an int, `num_heads`, `key_dim` or `residual_dim` is not
            positive, another size is negative, a rate is not in [0, 1), `epsilon` is not in
            [1e-30, 1), `metric_from` is unknown or `"key"` with a `causal_metric`, or `num_heads`
            does not divide the size of the query and `key_dim` is not given.

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

    call_shapes: ClassVar = {
        "query": "B T d",
        "value": "B S e",
        "key": "B S f",
        "query_mask": "B? T",
        "mask": "B? T",
        "value_mask": "B? S",
        "key_mask": "B? S",
        "attention_mask": "B? T? S?",
    }
    old_call_names: ClassVar = {"return_deductive": "return_details"}

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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_dim = None if key_dim is None else check_int("key_dim", key_dim)
        self.residual_units = check_int("residual_units", residual_units, at_least=0)
        self.residual_dense_layers = check_int(
            "residual_dense_layers", residual_dense_layers, at_least=0
        )
        self.residual_dim = check_int("residual_dim", residual_dim)
        self.dropout = check_rate("dropout", dropout)
        self.residual_dropout = check_rate("residual_dropout", residual_dropout)
        self.query_dropout = check_rate("query_dropout", query_dropout)
        self.key_dropout = check_rate("key_dropout", key_dropout)
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
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.power_law_initializer = keras.initializers.get(power_law_initializer)
        self.supports_masking = True

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        dim = query_shape[-1]
        if self.key_dim is None and dim % self.num_heads:
            raise ValueError(
                "Expected num_heads to divide the size of the query, or key_dim. "
                f"Received: num_heads={self.num_heads}, size={dim}"
            )
        self.head_dim = self.key_dim or dim // self.num_heads
        value_shape = value_shape or query_shape
        merged = self.num_heads * self.head_dim
        self.query_dense = self._dense(merged, query_shape, "query")
        self.key_dense = self._dense(merged, key_shape or value_shape, "key")
        self.value_dense = self._dense(merged, value_shape, "value")
        self.output_dense = self._dense(dim, (*query_shape[:-1], merged), "attention_output")
        self.score_dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="score_dropout"
        )
        self.query_dropout_layer = keras.layers.Dropout(
            self.query_dropout, dtype=self._wide_dtype, name="query_dropout"
        )
        self.key_dropout_layer = keras.layers.Dropout(
            self.key_dropout, dtype=self._wide_dtype, name="key_dropout"
        )
        self.residuals = [
            ResidualUnit(
                self.residual_dim,
                self.residual_dense_layers,
                self.residual_dropout,
                self.kernel_initializer,
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
        self.built = True

    @property
    def units(self) -> list[list[keras.layers.Layer]]:
        """The sublayers of each residual unit: where older `.keras` files hold their weights."""
        return [unit.sublayers for unit in self.residuals]

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

    def _dense(self, units: int, input_shape: Shape, name: str) -> keras.layers.Dense:
        dense = keras.layers.Dense(
            units,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(input_shape)
        return dense

    @property
    def _wide_dtype(self) -> str:
        return at_least_float32(self.variable_dtype)

    def _tensors(self, arguments: dict[str, Any]) -> dict[str, Any]:
        # What stands in for a missing value has its length.
        value = arguments["query"] if arguments["value"] is None else arguments["value"]
        return {**arguments, "value": value}

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
        mask: Tensor | None = None,
    ) -> Any:
        self_attention = value is None or value is query
        value = query if value is None else value
        key = value if key is None else key
        query_mask = mask if query_mask is None else query_mask
        if value_mask is None and self_attention:
            value_mask = query_mask
        key_mask = value_mask if key_mask is None else key_mask
        if attention_mask is not None:
            attention_mask = ops.cast(attention_mask, "bool")
        query_mask = self._real_queries(query_mask, attention_mask, self_attention)

        # The published energies are those of padded keys too.
        real_keys = None if self.padding_in_metric else key_mask
        # (B, T, H, k) and (B, S, H, k), in the wide dtype but for the value.
        q = self._heads(self.query_dense(apply_mask(query, query_mask)), self._wide_dtype)
        k = self._heads(self.key_dense(apply_mask(key, real_keys)), self._wide_dtype)
        q = self.query_dropout_layer(q, training=training)
        k = self.key_dropout_layer(k, training=training)
        v = self._heads(self.value_dense(apply_mask(value, real_keys)), self.compute_dtype)
        if self.metric_from == "query":
            counted = apply_mask(q, query_mask)
        else:
            mask = self._real_keys(real_keys, query_mask, attention_mask, self_attention)
            counted = apply_mask(k, mask)
        deductive = self._deductive(ops.transpose(counted, (0, 2, 1, 3)), training)
        energy = self._energy(q, k, deductive["G_LM"])
        scores = masked_softmax(
            energy, self._attention_mask(energy, attention_mask, key_mask, use_causal_mask)
        )
        dropped = self.score_dropout_layer(ops.cast(scores, self.compute_dtype), training=training)
        outputs = matmul(dropped, ops.transpose(v, (0, 2, 1, 3)))
        outputs = ops.transpose(outputs, (0, 2, 1, 3))
        outputs = ops.reshape(outputs, (*ops.shape(query)[:2], self.num_heads * self.head_dim))
        outputs = apply_mask(self.output_dense(outputs), query_mask)
        extra = [ops.cast(scores, self.compute_dtype)] if return_attention_scores else []
        extra += [{**deductive, "E": energy, "E_LM": scores}] if return_details else []
        return (outputs, *extra) if extra else outputs

    def _real_queries(
        self, query_mask: Tensor, attention_mask: Tensor, self_attention: bool
    ) -> Tensor:
        """The mask of the queries that contribute to the metric and have an output."""
        if self.padding_in_metric:
            return None
        if attention_mask is None:
            return query_mask
        real = ops.any(attention_mask, axis=-1)
        if self_attention:
            real = ops.logical_and(real, ops.any(attention_mask, axis=-2))
        return real if query_mask is None else ops.logical_and(real, query_mask)

    def _real_keys(
        self, key_mask: Tensor, query_mask: Tensor, attention_mask: Tensor, self_attention: bool
    ) -> Tensor:
        """The mask of the keys that are not padding and that a real query may attend to."""
        if self.padding_in_metric:
            return None
        real = None
        if self_attention:
            real = query_mask
        elif attention_mask is not None:
            if query_mask is not None:
                attention_mask = ops.logical_and(attention_mask, query_mask[:, :, None])
            real = ops.any(attention_mask, axis=-2)
        masks = [ops.cast(mask, "bool") for mask in (real, key_mask) if mask is not None]
        return functools.reduce(ops.logical_and, masks) if masks else None

    def _heads(self, x: Tensor, dtype: str) -> Tensor:
        x = ops.reshape(x, (*ops.shape(x)[:2], self.num_heads, self.head_dim))
        return ops.cast(x, dtype)

    def _deductive(self, q: Tensor, training: bool | None) -> dict[str, Tensor]:
        """Equations 1 to 3 from the projected queries or keys `(B, H, T, k)`."""
        if self.causal_metric:
            metric = ops.cumsum(q[..., :, None] * q[..., None, :], axis=2)
        else:
            metric = matmul(ops.swapaxes(q, -1, -2), q)
        # One row of one head's metric after the other: plain products of matrices.
        rows = ops.reshape(metric, (-1, self.head_dim))
        for unit in self.residuals:
            rows = unit(rows, training=training)
        learned = ops.reshape(rows, ops.shape(metric))
        per_head = (self.num_heads, *[1] * (len(metric.shape) - 4), self.head_dim, self.head_dim)

        def weight(variable: keras.Variable) -> Tensor:
            return ops.reshape(variable, per_head)

        hidden = matmul(weight(self.power_law_W), learned) + weight(self.power_law_b)
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

    def _energy(self, q: Tensor, k: Tensor, curvature: Tensor) -> Tensor:
        """Equations 4 and 5: `(B, H, T, S)`."""
        q = ops.transpose(q, (0, 2, 1, 3))
        if self.causal_metric:
            curved = ops.squeeze(matmul(q[..., None, :], curvature), -2)
        else:
            curved = matmul(q, curvature)
        energy = matmul(curved, ops.transpose(k, (0, 2, 3, 1)))
        return leaky_relu(energy / self.head_dim**0.5, _SLOPE)

    def _attention_mask(
        self, energy: Tensor, attention_mask: Tensor, key_mask: Tensor, causal: bool
    ) -> Tensor:
        """All masks in one that broadcasts to `(B, H, T, S)`, or `None`."""
        masks = []
        if attention_mask is not None:
            masks.append(attention_mask[:, None])
        if key_mask is not None:
            masks.append(ops.cast(key_mask, "bool")[:, None, None, :])
        if causal:
            queries, keys = ops.shape(energy)[2:]
            masks.append(ops.arange(queries)[:, None] >= ops.arange(keys)[None, :])
        merged = None
        for mask in masks:
            merged = mask if merged is None else ops.logical_and(merged, mask)
        return merged

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> tuple[int | None, ...]:
        return tuple(query_shape)

    def compute_output_spec(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Traces the call: the scores and the deductive outputs are optional.
        return keras.Operation.compute_output_spec(self, query, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        names = (
            "num_heads",
            "key_dim",
            "residual_units",
            "residual_dense_layers",
            "residual_dim",
            "dropout",
            "residual_dropout",
            "padding_in_metric",
            "causal_metric",
            "metric_from",
            "epsilon",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "query_dropout": self.query_dropout,
            "key_dropout": self.key_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "power_law_initializer": keras.initializers.serialize(self.power_law_initializer),
        }


class _PowerLaw(AttentionAdapter):
    """The details of this attention are its deductive outputs."""

    takes_memory = True
    can_be_causal = True

    def _build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.layer.build(query_shape, value_shape)

    def __call__(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        outputs = self.layer(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            training=training,
            use_causal_mask=use_causal_mask,
            return_details=return_details,
        )
        return outputs if return_details else (outputs, None)


@adapter_of.register
def _(layer: PowerLawGraphAttention) -> AttentionAdapter:
    return _PowerLaw(layer)
