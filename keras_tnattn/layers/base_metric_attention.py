"""Multi-head attention with a metric between queries and keys, whatever the metric is.

`MetricAttentionAdapter` is how the transformer layers call it, and decode with it token by token.
"""

import functools
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.base_attention import (
    AttentionAdapter,
    State,
    adapter_of,
    new_state,
    visible_tokens,
    write_tokens,
)
from keras_tnattn.layers.base_layer import BaseLayer, built_dense
from keras_tnattn.ops.masking import apply_mask, masked_softmax
from keras_tnattn.ops.precision import at_least_float32, leaky_relu, matmul
from keras_tnattn.ops.rotary import rotate
from keras_tnattn.typing import NO_MASKS, Chunk, Initializer, Masks, Shape, Tensor


class BaseMetricAttention(BaseLayer):
    """`softmax(LeakyReLU(Q G K^T / sqrt(k))) V` in heads of size `k`, merged by a dense layer.

    A subclass defines `_build_metric` and `_metric`.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `k` of each head, or `None` for the size of the query over `num_heads`.
        dropout: Dropout rate of the scores.
        query_dropout: Dropout rate of the projected queries.
        key_dropout: Dropout rate of the projected keys.
        kernel_initializer: Initializer of the dense kernels.

    Attributes:
        rotary: The pairs of features of queries and keys that are rotated by their position,
            `"neighbors"` or `"halves"`, or `None`.
        negative_slope: Slope of the LeakyReLU below zero; with 1 there is none.
    """

    rotary: str | None = None
    negative_slope = 0.2
    padding_in_metric = False
    call_shapes: ClassVar = {
        "query": "B T d",
        "value": "B S e",
        "key": "B S f",
        "query_mask": "B? T",
        "mask": "B? T",
        "value_mask": "B? S",
        "key_mask": "B? S",
        "positions": "T | B? T",
        "attention_mask": "B? T? S?",
    }

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None,
        dropout: float,
        query_dropout: float,
        key_dropout: float,
        kernel_initializer: Initializer,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_dim = None if key_dim is None else check_int("key_dim", key_dim)
        self.dropout = check_rate("dropout", dropout)
        self.query_dropout = check_rate("query_dropout", query_dropout)
        self.key_dropout = check_rate("key_dropout", key_dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> None:
        dim = query_shape[-1]
        if self.key_dim is None and dim % self.num_heads:
            raise ValueError(
                "Expected num_heads to divide the size of the query, or key_dim. "
                f"Received: num_heads={self.num_heads}, size={dim}"
            )
        self.head_dim = self.key_dim or dim // self.num_heads
        if self.rotary is not None and self.head_dim % 2:
            raise ValueError(
                "Expected heads of an even size, whose features are rotated in pairs. "
                f"Received: rotary={self.rotary!r}, key_dim={self.head_dim}"
            )
        value_shape = value_shape or query_shape
        merged = self.num_heads * self.head_dim
        self.query_dense = built_dense(self, merged, query_shape, "query")
        self.key_dense = built_dense(self, merged, key_shape or value_shape, "key")
        self.value_dense = built_dense(self, merged, value_shape, "value")
        self.output_dense = built_dense(self, dim, (*query_shape[:-1], merged), "attention_output")
        self.score_dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="score_dropout"
        )
        self.query_dropout_layer = keras.layers.Dropout(
            self.query_dropout, dtype=self.wide_dtype, name="query_dropout"
        )
        self.key_dropout_layer = keras.layers.Dropout(
            self.key_dropout, dtype=self.wide_dtype, name="key_dropout"
        )
        self._build_metric()
        self.built = True

    def _build_metric(self) -> None:
        raise NotImplementedError

    def _metric(
        self,
        query: Tensor,
        key: Tensor,
        query_mask: Tensor | None,
        key_mask: Tensor | None,
        training: bool | None,
    ) -> dict[str, Tensor]:
        """Returns `G_LM`, which broadcasts to `(B, H, k, k)`, or nothing for the identity.

        Queries and keys are projected, `(B, T, H, k)` and `(B, S, H, k)`; masks are `True` for
        those that count.
        """
        raise NotImplementedError

    def _check_causal(self) -> None:
        """Warns if the outputs depend on later tokens in spite of a causal mask."""

    @property
    def wide_dtype(self) -> str:
        """The dtype of queries, keys, metric and scores: float32, or float64."""
        return at_least_float32(self.variable_dtype)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # `call` gets copies, of which it cannot tell that they are one tensor.
        if len(args) > 1 and args[1] is args[0]:
            args = (args[0], None, *args[2:])
        elif kwargs.get("value") is not None and kwargs["value"] is kwargs.get("query", *args[:1]):
            kwargs["value"] = None
        return super().__call__(*args, **kwargs)

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
        positions: Tensor | None = None,
    ) -> Any:
        if use_causal_mask:
            self._check_causal()
        self_attention = value is None
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
        q = self.project_query(apply_mask(query, query_mask), positions, training)
        k = self.project_key(apply_mask(key, real_keys), positions, training)
        v = self.project_value(apply_mask(value, real_keys))
        counted_keys = self._real_keys(real_keys, query_mask, attention_mask, self_attention)
        deductive = self._metric(q, k, query_mask, counted_keys, training)
        q, k, v = (ops.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        energy = self.energy(q, k, deductive.get("G_LM"))
        scores = masked_softmax(
            energy, _merged_mask(energy, attention_mask, key_mask, use_causal_mask)
        )
        outputs = apply_mask(self.mix(scores, v, training), query_mask)
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

    def project_query(
        self, query: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Returns the queries `(B, T, H, k)` of tokens `(B, T, d)`, rotated if the layer does."""
        q = self.query_dropout_layer(self._heads(self.query_dense(query)), training=training)
        return self._rotate(q, positions)

    def project_key(
        self, key: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Returns the keys `(B, S, H, k)` of tokens `(B, S, d)`, rotated if the layer does."""
        k = self.key_dropout_layer(self._heads(self.key_dense(key)), training=training)
        return self._rotate(k, positions)

    def project_value(self, value: Tensor) -> Tensor:
        """Returns the values `(B, S, H, k)` of tokens `(B, S, d)`."""
        v = self.value_dense(value)
        return ops.reshape(v, (*ops.shape(v)[:2], self.num_heads, self.head_dim))

    def _heads(self, x: Tensor) -> Tensor:
        x = ops.reshape(x, (*ops.shape(x)[:2], self.num_heads, self.head_dim))
        return ops.cast(x, self.wide_dtype)

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        if positions is None:
            positions = ops.arange(ops.shape(x)[1])
        return rotate(x, positions, self.rotary)

    def energy(self, q: Tensor, k: Tensor, metric: Tensor | None) -> Tensor:
        """Equations 4 and 5.

        Args:
            q: Queries `(B, H, T, k)`.
            k: Keys `(B, H, S, k)`.
            metric: The metric, `(B, H, k, k)`, `(H, k, k)`, or one for each query, `(B, H, T, k,
                k)`; `None` for the identity.

        Returns:
            Tensor `(B, H, T, S)`.
        """
        if metric is not None and len(metric.shape) == 5:
            q = ops.squeeze(matmul(q[..., None, :], metric), -2)
        elif metric is not None:
            q = matmul(q, metric)
        energy = matmul(q, ops.swapaxes(k, -1, -2)) / self.head_dim**0.5
        if self.negative_slope == 1:
            return energy
        return leaky_relu(energy, self.negative_slope)

    def mix(self, scores: Tensor, v: Tensor, training: bool | None = None) -> Tensor:
        """Returns the outputs `(B, T, d)` for scores `(B, H, T, S)`, values `(B, H, S, k)`."""
        dropped = self.score_dropout_layer(ops.cast(scores, self.compute_dtype), training=training)
        outputs = ops.transpose(matmul(dropped, v), (0, 2, 1, 3))
        merged = self.num_heads * self.head_dim
        return self.output_dense(ops.reshape(outputs, (*ops.shape(outputs)[:2], merged)))

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None
    ) -> tuple[int | None, ...]:
        return tuple(query_shape)

    def compute_output_spec(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Traces the call: the scores and the deductive outputs are optional.
        return keras.Operation.compute_output_spec(self, query, *args, **kwargs)


def _merged_mask(energy: Tensor, attention_mask: Tensor, key_mask: Tensor, causal: bool) -> Tensor:
    """All masks in one that broadcasts to `(B, H, T, S)`, or `None`."""
    masks = []
    if attention_mask is not None:
        masks.append(attention_mask[:, None])
    if key_mask is not None:
        masks.append(ops.cast(key_mask, "bool")[:, None, None, :])
    if causal:
        queries, keys = ops.shape(energy)[2:]
        masks.append(ops.arange(queries)[:, None] >= ops.arange(keys)[None, :])
    return functools.reduce(ops.logical_and, masks) if masks else None


class MetricAttentionAdapter(AttentionAdapter):
    """Adapter of attentions with a metric.

    The details of these attentions are their deductive outputs. Keys and values are kept with any
    metric that does not change with later tokens: a fixed one, a causal one, of which the sum of
    products is kept, too, and in cross-attention one of the keys. The published metric of a decoder
    does change; `extend` then takes the metric of the first tokens for all others, as the published
    caches do.
    """

    takes_memory = True
    can_be_causal = True
    can_extend = True
    takes_positions = True

    @property
    def _is_learned(self) -> bool:
        """Whether the metric depends on the tokens."""
        return hasattr(self.layer, "causal_metric")

    @property
    def extends_exactly(self) -> bool:
        return not self._is_learned or bool(self.layer.causal_metric)

    @property
    def keeps_memory(self) -> bool:
        if self.layer.rotary is not None:
            return False
        return self.extends_exactly or self.layer.metric_from == "key"

    def _build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.layer.build(query_shape, value_shape)

    def __call__(
        self,
        query: Tensor,
        value: Tensor,
        masks: Masks = NO_MASKS,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        outputs = self.layer(
            query,
            value,
            query_mask=masks.query,
            value_mask=masks.value,
            training=training,
            use_causal_mask=use_causal_mask,
            return_details=return_details,
            positions=positions,
        )
        return outputs if return_details else (outputs, None)

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        layer = self.layer
        heads, dim = layer.num_heads, layer.head_dim
        return new_state(
            {
                "keys": ops.zeros((size, heads, length, dim), layer.wide_dtype),
                "values": ops.zeros((size, heads, length, dim), layer.compute_dtype),
            },
            self._empty_context(size),
        )

    def _empty_context(self, size: Tensor) -> dict[str, Tensor]:
        if not self._is_learned:
            return {}
        name = "D_Q" if self.layer.causal_metric else "G_LM"
        shape = (size, self.layer.num_heads, self.layer.head_dim, self.layer.head_dim)
        return {name: ops.zeros(shape, self.layer.wide_dtype)}

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        layer = self.layer
        x = apply_mask(x, chunk.mask)
        q = layer.project_query(x, chunk.positions)
        k = layer.project_key(x, chunk.positions)
        new = {"keys": k, "values": layer.project_value(x)}
        new = {name: ops.transpose(y, (0, 2, 1, 3)) for name, y in new.items()}
        tokens = write_tokens(state["tokens"], chunk, new)
        if self.extends_exactly or not chunk.is_prompt:
            metric, context = self._metric(q, state["context"], chunk.mask)
        else:
            counted = q if layer.metric_from == "query" else k
            counted = layer.sum_of_products(apply_mask(counted, chunk.mask))
            metric = layer.deductive(counted)["G_LM"]
            context = {"G_LM": metric}
        energy = layer.energy(ops.transpose(q, (0, 2, 1, 3)), tokens["keys"], metric)
        scores = masked_softmax(energy, visible_tokens(chunk)[:, None])
        outputs = layer.mix(scores, tokens["values"])
        return apply_mask(outputs, chunk.mask), {"tokens": tokens, "context": context}

    def _metric(
        self, q: Tensor, context: dict[str, Tensor], mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The metric of queries `(N, T, H, k)` after those that the context knows."""
        if not self._is_learned:
            return self.layer.metric_weight, {}
        if not self.layer.causal_metric:
            return context["G_LM"], context
        sums = context["D_Q"][:, :, None] + self.layer.sum_of_products(apply_mask(q, mask))
        return self.layer.deductive(sums)["G_LM"], {"D_Q": sums[:, :, -1]}

    def memory_state(self, memory: Tensor, memory_mask: Tensor) -> dict[str, Tensor]:
        layer = self.layer
        memory = apply_mask(memory, memory_mask)
        k = layer.project_key(memory)
        state: dict[str, Any] = {"keys": k, "values": layer.project_value(memory)}
        state = {name: ops.transpose(y, (0, 2, 1, 3)) for name, y in state.items()}
        if self._is_learned and layer.metric_from == "key":
            counted = layer.sum_of_products(apply_mask(k, memory_mask))
            state["G_LM"] = layer.deductive(counted)["G_LM"]
        return state

    def empty_context(self, size: Tensor) -> dict[str, Tensor]:
        causal = self._is_learned and self.layer.causal_metric
        return self._empty_context(size) if causal else {}

    def attend_to_memory(
        self, x: Tensor, context: dict[str, Tensor], memory: dict[str, Tensor], memory_mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        layer = self.layer
        batch, num_beams, _ = ops.shape(x)
        q = layer.project_query(x)  # (B, K, H, k)
        heads, dim = layer.num_heads, layer.head_dim
        metric: Tensor | None
        if "G_LM" in memory:
            metric = memory["G_LM"]
        else:
            # Each hypothesis is a sequence of its own, with one new token.
            single = ops.reshape(q, (batch * num_beams, 1, heads, dim))
            metric, context = self._metric(single, context, None)
            if context:
                metric = ops.reshape(metric, (batch, num_beams, heads, dim, dim))
                metric = ops.transpose(metric, (0, 2, 1, 3, 4))
        energy = layer.energy(ops.transpose(q, (0, 2, 1, 3)), memory["keys"], metric)
        scores = masked_softmax(energy, memory_mask[:, None, None, :])
        return layer.mix(scores, memory["values"]), context


@adapter_of.register
def _(layer: BaseMetricAttention) -> AttentionAdapter:
    return MetricAttentionAdapter(layer)
