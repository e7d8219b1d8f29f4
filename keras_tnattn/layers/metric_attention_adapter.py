"""How transformer layers call attentions with a metric, and decode with them token by token."""

from typing import Any

from keras import ops

from keras_tnattn.layers import token_state
from keras_tnattn.layers.base_attention import AttentionAdapter
from keras_tnattn.layers.token_state import Chunk, State
from keras_tnattn.ops.masking import apply_mask, masked_softmax
from keras_tnattn.typing import Shape, Tensor


class MetricAttentionAdapter(AttentionAdapter):
    """Adapter of `PowerLawGraphAttention` and `MetricAttention`.

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
        return not self._is_learned or self.layer.causal_metric

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
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        outputs = self.layer(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            training=training,
            use_causal_mask=use_causal_mask,
            return_details=return_details,
            positions=positions,
        )
        return outputs if return_details else (outputs, None)

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        layer = self.layer
        heads, dim = layer.num_heads, layer.head_dim
        return token_state.empty(
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
        tokens = token_state.write(state["tokens"], chunk, new)
        if self.extends_exactly or not chunk.is_prompt:
            metric, context = self._metric(q, state["context"], chunk.mask)
        else:
            counted = q if layer.metric_from == "query" else k
            counted = layer.sum_of_products(apply_mask(counted, chunk.mask))
            metric = layer.deductive(counted)["G_LM"]
            context = {"G_LM": metric}
        energy = layer.energy(ops.transpose(q, (0, 2, 1, 3)), tokens["keys"], metric)
        scores = masked_softmax(energy, token_state.visible(chunk)[:, None])
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
        self,
        x: Tensor,
        context: dict[str, Tensor],
        memory: dict[str, Tensor],
        memory_mask: Tensor,
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
