"""The decoder layer of the transformer, around two attentions."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.base_transformer import BaseTransformerLayer, adapter_for, project_back
from keras_tnattn.typing import Chunk, Masks, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TransformerDecoder(BaseTransformerLayer):
    """Decoder layer of the transformer (Vaswani et al., section 3.1) around two attentions.

    Causal self-attention, attention to the memory (the encoder's output) and a feed-forward net,
    each with dropout, residual sum and normalization as in `TransformerEncoder`. The layer costs
    the FLOPs of the attentions plus `4 B T d f`, or plus those of two `TTDense` layers with
    `feedforward="tensor_train"`.

    Without a cross-attention this is the layer of a decoder-only language model: it is called with
    `inputs` only.

    The layer can compute a token from a state of the earlier ones, instead of from all of them, if
    its attentions can (`keeps_state`): `keras.layers.MultiHeadAttention` (without `use_gate` and
    `sliding_window`) and `MetricAttention` keep keys and values, `PowerLawGraphAttention` with
    `causal_metric` the sum of products of its queries, too, `GraphTensorNetwork` one vector,
    `TensorizedSpectralAttention` the keys and values of its window, `TNAttention` one matrix.
    `empty_state`, `extend` and `memory_state` are for `keras_tnattn.search`.

    Args:
        self_attention: The attention of the target to itself. It has to take `use_causal_mask`,
            like `keras.layers.MultiHeadAttention` and `PowerLawGraphAttention`, or to be causal by
            construction, like `GraphTensorNetwork(receive_from="earlier")`.
        cross_attention: The attention of the target to the memory. It has to be called with query
            and value, like `keras.layers.MultiHeadAttention` and `PowerLawGraphAttention`.
        feedforward_dim: Hidden size `f` of the feed-forward net.
        dropout: Dropout rate of the output of each attention and of the feed-forward net, before
            the residual sum. Defaults to 0.
        activation: Activation function of the feed-forward net. Defaults to `"relu"`.
        norm_first: Whether to normalize the inputs of attentions and feed-forward net instead of
            the residual sums. Defaults to `False`.
        epsilon: Small number that the normalizations add to the variance. Defaults to 1e-6.
        feedforward: `"dense"` (default), or `"tensor_train"` for a feed-forward net of `TTDense`
            layers, or `"swiglu"` for a `SwiGLU` net, which has no `activation`.
        feedforward_tt_ranks: Int, the maximum TT-rank of these layers. Defaults to 8.

    Call arguments:
        inputs: Float tensor `(B, T, d)`.
        memory: Float tensor `(B, S, d)`, the encoder's output; `None` without a cross-attention.
        inputs_mask: Boolean tensor `(B, T)`, `True` for a real token.
        memory_mask: Boolean tensor `(B, S)`, `True` for a real token.
        training: Whether dropout is active.
        return_details: Whether to also return details of the attentions. Defaults to `False`.
        positions: Integers `(B, T)`, the positions of the tokens for an attention that rotates
            them. Default: from 0 on.
        mask: Same as `inputs_mask`; Keras fills it in if only `inputs` is passed.

    Returns:
        Tensor `(B, T, d)`; with `return_details` also a dict with the keys `self` and `cross`,
        whose values are those that `TransformerEncoder` returns. The key of an attention that
        cannot return details, such as `GraphTensorNetwork`, is left out.

    Raises:
        TypeError: If an attention is not a layer.
        ValueError: If the self-attention cannot be causal, the cross-attention cannot attend to
            another sequence, a size or rate is out of range, or a memory is passed without a
            cross-attention or the other way round.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> decoder = keras_tnattn.TransformerDecoder(
        ...     keras.layers.MultiHeadAttention(2, 8),
        ...     keras_tnattn.PowerLawGraphAttention(2, residual_units=1, residual_dim=8),
        ...     feedforward_dim=32,
        ... )
        >>> tuple(decoder(keras.ops.ones((1, 5, 16)), keras.ops.ones((1, 7, 16))).shape)
        (1, 5, 16)
    """

    def __init__(
        self,
        self_attention: keras.layers.Layer,
        cross_attention: keras.layers.Layer | None,
        feedforward_dim: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(feedforward_dim, **kwargs)
        self._attend_to_itself = adapter_for("self_attention", self_attention)
        self._attend_to_memory = (
            None if cross_attention is None else adapter_for("cross_attention", cross_attention)
        )
        if not self._attend_to_itself.can_be_causal:
            raise ValueError(
                "Expected an attention that can be causal, such as "
                "keras.layers.MultiHeadAttention. "
                f"Received: self_attention={self_attention!r}"
            )
        if self._attend_to_memory is not None and not self._attend_to_memory.takes_memory:
            raise ValueError(
                "Expected an attention that is called with query and value, such as "
                "keras.layers.MultiHeadAttention. "
                f"Received: cross_attention={cross_attention!r}"
            )
        self.self_attention = self_attention
        self.cross_attention = cross_attention

    def build(self, inputs_shape: Shape, memory_shape: Shape | None = None) -> None:
        self.self_projection = self._build_attention(
            self._attend_to_itself, "self_projection", inputs_shape, inputs_shape
        )
        self.cross_projection = None
        if self._attend_to_memory is not None:
            self.cross_projection = self._build_attention(
                self._attend_to_memory,
                "cross_projection",
                inputs_shape,
                memory_shape or inputs_shape,
            )
        num_attentions = 1 if self._attend_to_memory is None else 2
        self._build_branches(inputs_shape, num_attentions)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        memory: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        return_details: bool = False,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Any:
        if (memory is None) != (self._attend_to_memory is None):
            raise ValueError(
                "Expected a memory for a cross-attention, and only then. Received: "
                f"memory={memory}, cross_attention={self.cross_attention}"
            )
        inputs_mask = mask if inputs_mask is None else inputs_mask
        place = {} if positions is None else {"positions": positions}
        details: dict[str, Any] = {}
        to_memory: Any = self._attend_to_memory

        def attend_to_itself(x: Tensor) -> Tensor:
            outputs, detail = self._attend_to_itself(
                x,
                x,
                Masks(inputs_mask, inputs_mask),
                training=training,
                use_causal_mask=True,
                return_details=return_details and self._attend_to_itself.has_details,
                **(place if self._attend_to_itself.takes_positions else {}),
            )
            if detail is not None:
                details["self"] = detail
            return project_back(outputs, self.self_projection)

        def attend_to_memory(x: Tensor) -> Tensor:
            outputs, detail = to_memory(
                x,
                memory,
                Masks(inputs_mask, memory_mask),
                training=training,
                return_details=return_details and to_memory.has_details,
            )
            if detail is not None:
                details["cross"] = detail
            return project_back(outputs, self.cross_projection)

        inputs = ops.cast(inputs, self.compute_dtype)
        cross = None if to_memory is None else attend_to_memory
        x = self._branches(inputs, attend_to_itself, cross, training)
        return (x, details) if return_details else x

    def _branches(
        self,
        x: Tensor,
        attend_to_itself: Callable[[Tensor], Tensor],
        attend_to_memory: Callable[[Tensor], Tensor] | None,
        training: bool | None,
    ) -> Tensor:
        x = self._add(0, x, attend_to_itself, training)
        if attend_to_memory is not None:
            x = self._add(1, x, attend_to_memory, training)
        return self._add(len(self.norms) - 1, x, self._feed_forward, training)

    @property
    def can_extend(self) -> bool:
        """Whether `extend` works, be it with the metric of the first tokens for all others."""
        cross = self._attend_to_memory
        return self._attend_to_itself.can_extend and (cross is None or cross.keeps_memory)

    @property
    def keeps_state(self) -> bool:
        """Whether `extend` gives what the layer gives for the whole sequence."""
        return self.can_extend and self._attend_to_itself.extends_exactly

    def empty_state(self, size: Tensor, length: Tensor) -> dict[str, Any]:
        """Returns the state of `size` sequences without tokens, with room for `length`."""
        state: dict[str, Any] = {"self": self._attend_to_itself.empty_state(size, length)}
        if self._attend_to_memory is not None:
            state["cross"] = {"tokens": {}, "context": self._attend_to_memory.empty_context(size)}
        return state

    def memory_state(self, memory: Tensor, memory_mask: Tensor) -> dict[str, Tensor]:
        """Returns the part of the state that depends on the memory `(B, S, d)` alone.

        `memory_mask` `(B, S)` marks real tokens.
        """
        if self._attend_to_memory is None:
            return {}
        return self._attend_to_memory.memory_state(memory, memory_mask)

    def extend(
        self,
        inputs: Tensor,
        state: dict[str, Any],
        chunk: Chunk,
        memory: dict[str, Tensor] | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Computes the layer for new tokens of `N` sequences.

        Args:
            inputs: Float tensor `(N, T, d)`; `T = 1` with a cross-attention.
            state: What `empty_state` returned, or the last call, with room for the tokens.
            chunk: Where the new tokens are.
            memory: What `memory_state` returned, for `B` memories; sequence `n` attends to memory
                `n // (N / B)`.
            memory_mask: Boolean tensor `(B, S)`, `True` for real tokens.

        Returns:
            Outputs `(N, T, d)`, and the state with the new tokens.
        """
        new_state: dict[str, Any] = {}
        to_memory: Any = self._attend_to_memory

        def attend_to_itself(x: Tensor) -> Tensor:
            outputs, new_state["self"] = self._attend_to_itself.extend(x, state["self"], chunk)
            return project_back(outputs, self.self_projection)

        def attend_to_memory(x: Tensor) -> Tensor:
            # The hypotheses of a sentence are as many queries to the same memory.
            batch, dim = ops.shape(memory_mask)[0], x.shape[-1]
            grouped = ops.reshape(x, (batch, -1, dim))
            outputs, context = to_memory.attend_to_memory(
                grouped, state["cross"]["context"], memory, memory_mask
            )
            new_state["cross"] = {"tokens": {}, "context": context}
            outputs = project_back(outputs, self.cross_projection)
            return ops.reshape(outputs, ops.shape(x))

        cross = None if to_memory is None else attend_to_memory
        return self._branches(inputs, attend_to_itself, cross, training=False), new_state
