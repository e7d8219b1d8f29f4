"""One way to call every attention layer: the adapters that the transformer layers use.

Attention layers are called in different ways. `keras.layers.MultiHeadAttention` takes a query and a
value, `TensorizedSpectralAttention` takes one sequence, and the arguments that request the scores
have different names. An `AttentionAdapter` hides this: it takes query, value and masks, and returns
outputs and details. `adapter_of` returns the adapter of a layer. A layer that returns other details
registers an adapter in its own file:

```python notest
@adapter_of.register
def _(layer: MyAttention) -> AttentionAdapter:
    return SequenceAttention(layer, "weights", "return_my_weights")
```

A decoder computes later tokens by themselves, from a state of the earlier ones. A state is a dict
of two dicts of tensors, whose first axis is that of the sequences, `N`:

    tokens      one entry for each token so far, `(N, ..., L, F)`: keys, values; `L` is the room
                for tokens, and grows with `with_room`
    context     what does not grow: a recurrent state, a window, a metric, `(N, ...)`
"""

import abc
import functools
import inspect
from typing import Any

import keras
from keras import ops
from keras.tree import map_structure

from keras_tnattn.ops.masking import masked_softmax
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import NO_MASKS, Chunk, Masks, Shape, Tensor

State = dict[str, dict[str, Tensor]]


def new_state(
    tokens: dict[str, Tensor] | None = None, context: dict[str, Tensor] | None = None
) -> State:
    """Returns a state with the given tensors."""
    return {"tokens": tokens or {}, "context": context or {}}


def with_room(state: State, num_tokens: Tensor) -> State:
    """Returns a state with room for more tokens."""

    def pad(x: Tensor) -> Tensor:
        widths = [(0, 0)] * len(x.shape)
        widths[-2] = (0, num_tokens)
        return ops.pad(x, widths)

    return {**state, "tokens": map_structure(pad, state["tokens"])}


def write_tokens(old: dict[str, Tensor], chunk: Chunk, new: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns `tokens` with the entries `(N, ..., T, F)` of new tokens.

    Example:
        >>> import keras
        >>> old, mask = {"keys": keras.ops.zeros((1, 3, 1))}, keras.ops.ones((1, 1), "bool")
        >>> chunk = Chunk(1, None, mask, mask, is_prompt=False)
        >>> new = write_tokens(old, chunk, {"keys": keras.ops.ones((1, 1, 1))})
        >>> keras.ops.convert_to_numpy(new["keys"])[0, :, 0].tolist()
        [0.0, 1.0, 0.0]
    """

    def update(name: str) -> Tensor:
        x = old[name]
        entries = ops.cast(new[name], x.dtype)
        if chunk.is_prompt:
            return entries
        place = [0] * len(x.shape)
        place[-2] = chunk.start
        return ops.slice_update(x, place, entries)

    return {name: update(name) for name in old}


def visible_tokens(chunk: Chunk) -> Tensor:
    """Returns which of the `L` places each new token may attend to, `(N, T, L)`."""
    length, count = ops.shape(chunk.prefix_mask)[1], ops.shape(chunk.mask)[1]
    last = chunk.start + ops.arange(count)
    earlier = ops.arange(length)[None, :] <= last[:, None]
    return ops.logical_and(chunk.prefix_mask[:, None, :], earlier[None])


class AttentionAdapter(abc.ABC):
    """Calls one kind of attention layer as the transformer layers do.

    Attributes:
        layer: The attention layer.
        takes_memory: Whether query and value may be different sequences (cross-attention).
        can_be_causal: Whether attention to later positions can be prevented.
        can_extend: Whether tokens can be computed from a state of earlier tokens, with `extend`.
        extends_exactly: Whether that gives what the attention of the whole sequence does.
        keeps_memory: Whether tokens can be computed from a state of the memory, with
            `attend_to_memory`.
        takes_positions: Whether the call takes `positions`, integers `(B, T)`.
        has_details: Whether it can return details.
    """

    takes_memory = False
    can_be_causal = False
    takes_positions = False
    has_details = True

    def __init__(self, layer: keras.layers.Layer) -> None:
        self.layer = layer

    @property
    def can_extend(self) -> bool:
        return False

    def compares_pairs(self, length: int, dim: int) -> bool:
        """Returns whether the cost of attention to itself grows with the square of the length.

        Args:
            length: The number of tokens.
            dim: The number of features of a token.
        """
        return True

    @property
    def extends_exactly(self) -> bool:
        return self.can_extend

    @property
    def keeps_memory(self) -> bool:
        return False

    def build(self, query_shape: Shape, value_shape: Shape) -> int:
        """Builds the layer if it is not built yet.

        Args:
            query_shape: Shape `(B, T, d)` of the query.
            value_shape: Shape `(B, S, d)` of the value.

        Returns:
            The size of its outputs; that of the query if the layer has no `compute_output_shape` of
            these shapes.
        """
        if not self.layer.built:
            self._build(query_shape, value_shape)
        try:
            return self._output_shape(query_shape, value_shape)[-1]
        except NotImplementedError:
            return query_shape[-1]

    @abc.abstractmethod
    def _build(self, query_shape: Shape, value_shape: Shape) -> None: ...

    def _output_shape(self, query_shape: Shape, value_shape: Shape) -> Shape:
        compute = self.layer.compute_output_shape
        try:
            inspect.signature(compute).bind(query_shape)
        except TypeError as error:
            raise NotImplementedError from error
        return compute(query_shape)

    @abc.abstractmethod
    def __call__(
        self,
        query: Tensor,
        value: Tensor,
        masks: Masks = NO_MASKS,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Computes the attention of `query` to `value`.

        Args:
            query: Float tensor `(B, T, d)`.
            value: Float tensor `(B, S, d)`; the same tensor as `query` for self-attention.
            masks: The masks of both.
            training: Whether dropout is active.
            use_causal_mask: Whether a position attends only to itself and earlier positions.
            return_details: Whether to also return intermediate results, such as the scores.

        Returns:
            Outputs `(B, T, d)`, and a dict of details, or `None` unless `return_details`.
        """

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        """Returns the state of `size` sequences without tokens, with room for `length`."""
        raise NotImplementedError

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        """Computes the causal self-attention of new tokens.

        Args:
            x: Float tensor `(N, T, d)`, the new tokens.
            state: The state of the earlier tokens, with room for the new ones.
            chunk: Where the new tokens are.

        Returns:
            Outputs `(N, T, d)`, and the state with the new tokens.
        """
        raise NotImplementedError

    def memory_state(self, memory: Tensor, memory_mask: Tensor) -> dict[str, Tensor]:
        """Returns the part of the state that depends on the memory `(B, S, d)` alone.

        `memory_mask` `(B, S)` marks real tokens.
        """
        raise NotImplementedError

    def empty_context(self, size: Tensor) -> dict[str, Tensor]:
        """Returns the part of the state that depends on earlier queries, before the first one."""
        return {}

    def attend_to_memory(
        self, x: Tensor, context: dict[str, Tensor], memory: dict[str, Tensor], memory_mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the attention of one token of each of `K` hypotheses to the memory.

        Args:
            x: Float tensor `(B, K, d)`.
            context: What `empty_context(B K)` returned, or the last call.
            memory: What `memory_state` returned.
            memory_mask: Boolean tensor `(B, S)`, `True` for a real token.

        Returns:
            Outputs `(B, K, d)`, and the context with these queries.
        """
        raise NotImplementedError


class KerasAttention(AttentionAdapter):
    """Adapter of `keras.layers.MultiHeadAttention` and `keras.layers.GroupQueryAttention`."""

    takes_memory = True
    can_be_causal = True

    @property
    def can_extend(self) -> bool:
        if type(self.layer) is not keras.layers.MultiHeadAttention:
            return False
        # In its config, too, but Keras imports TensorFlow, if it is installed, to make one.
        gate, window = (getattr(self.layer, f"_{x}", None) for x in ("use_gate", "sliding_window"))
        return not gate and window is None

    @property
    def keeps_memory(self) -> bool:
        return self.can_extend

    def _build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.layer.build(query_shape, value_shape)

    def _output_shape(self, query_shape: Shape, value_shape: Shape) -> Shape:
        return self.layer.compute_output_shape(query_shape, value_shape)

    def __call__(
        self,
        query: Tensor,
        value: Tensor,
        masks: Masks = NO_MASKS,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        # Pass copies: these layers remove the masks from their input tensors, so that later layers
        # would not see them.
        copied = ops.copy(query)
        outputs = self.layer(
            copied,
            copied if value is query else ops.copy(value),
            query_mask=masks.query,
            attention_mask=(
                None if masks.value is None else ops.cast(masks.value, "bool")[:, None, :]
            ),
            return_attention_scores=return_details,
            training=training,
            use_causal_mask=use_causal_mask,
        )
        return (outputs[0], {"scores": outputs[1]}) if return_details else (outputs, None)

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        sizes = {"keys": self.layer.key_dim, "values": self.layer.value_dim}
        heads = self.layer.num_heads
        dtype = self.layer.compute_dtype
        return new_state(
            {name: ops.zeros((size, heads, length, dim), dtype) for name, dim in sizes.items()}
        )

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        new = self._keys_and_values(x)
        tokens = write_tokens(state["tokens"], chunk, new)
        mask = visible_tokens(chunk)[:, None]
        return self._attend(x, tokens, mask), {**state, "tokens": tokens}

    def memory_state(self, memory: Tensor, memory_mask: Tensor) -> dict[str, Tensor]:
        return self._keys_and_values(memory)

    def attend_to_memory(
        self, x: Tensor, context: dict[str, Tensor], memory: dict[str, Tensor], memory_mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self._attend(x, memory, memory_mask[:, None, None, :]), context

    def _keys_and_values(self, x: Tensor) -> dict[str, Tensor]:
        """Returns `keys` `(N, H, T, k)` and `values` `(N, H, T, v)` of tokens `(N, T, d)`."""
        both = {"keys": self.layer.key_dense(x), "values": self.layer.value_dense(x)}
        return {name: ops.transpose(y, (0, 2, 1, 3)) for name, y in both.items()}

    def _attend(self, x: Tensor, tokens: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Attends with tokens `(N, T, d)` to keys and values, masked by `(N, 1, T or 1, L)`."""
        query = ops.transpose(self.layer.query_dense(x) / self.layer.key_dim**0.5, (0, 2, 1, 3))
        scores = ops.cast(matmul(query, ops.swapaxes(tokens["keys"], -1, -2)), self._wide_dtype)
        weights = ops.cast(masked_softmax(scores, mask), tokens["values"].dtype)
        outputs = matmul(weights, tokens["values"])
        return self.layer.output_dense(ops.transpose(outputs, (0, 2, 1, 3)))

    @property
    def _wide_dtype(self) -> str:
        return at_least_float32(self.layer.variable_dtype)


class SequenceAttention(AttentionAdapter):
    """Adapter of layers `(B, L, d) -> (B, L, d)` that relate the tokens of one sequence.

    The layer is called with `inputs`, and with `mask` if it supports masking.

    Args:
        layer: The layer.
        detail: Name for the details that the layer can return, for instance `"scores"`.
        detail_argument: Call argument that requests them. Defaults to
            `"return_attention_scores"`.
        takes_causal_mask: Whether the layer's call takes `use_causal_mask`. Defaults to `False`.
        is_causal: Whether the layer is always causal. Defaults to `False`.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        detail: str | None = None,
        detail_argument: str = "return_attention_scores",
        takes_causal_mask: bool = False,
        is_causal: bool = False,
    ) -> None:
        super().__init__(layer)
        self.detail = detail
        self.detail_argument = detail_argument
        self.has_details = detail is not None
        self.takes_causal_mask = takes_causal_mask
        self.can_be_causal = takes_causal_mask or is_causal
        # Keras' `Identity`, for one, supports masks but does not take any.
        parameters = inspect.signature(layer.call).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.takes_mask = takes_any or "mask" in parameters

    def _build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.layer.build(query_shape)

    def __call__(
        self,
        query: Tensor,
        value: Tensor,
        masks: Masks = NO_MASKS,
        training: bool | None = None,
        use_causal_mask: bool = False,
        return_details: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        # Keras passes `training` on to layers that accept it.
        options: dict[str, Any] = {}
        if self.layer.supports_masking and self.takes_mask:
            options["mask"] = masks.value
        if use_causal_mask and self.takes_causal_mask:
            options["use_causal_mask"] = True
        if not return_details:
            return self.layer(query, **options), None
        if self.detail is None:
            raise ValueError(
                "Expected an attention that can return its scores. "
                f"Received: return_details=True with {self.layer!r}"
            )
        outputs, detail = self.layer(query, **{self.detail_argument: True}, **options)
        return outputs, detail if isinstance(detail, dict) else {self.detail: detail}


@functools.singledispatch
def adapter_of(layer: Any) -> AttentionAdapter:
    """Returns the adapter of an attention layer, chosen by its class.

    Args:
        layer: A layer. If no adapter is registered for its class, the adapter is a
            `SequenceAttention`.

    Raises:
        TypeError: If `layer` is not a Keras layer.

    Example:
        >>> import keras
        >>> from keras_tnattn.layers.base_attention import adapter_of
        >>> adapter = adapter_of(keras.layers.MultiHeadAttention(2, 4))
        >>> x = keras.ops.ones((1, 3, 8))
        >>> outputs, details = adapter(x, x, return_details=True)
        >>> tuple(outputs.shape), tuple(details["scores"].shape)
        ((1, 3, 8), (1, 2, 3, 3))
    """
    raise TypeError(f"Expected an attention layer. Received: {layer!r}")


@adapter_of.register
def _(layer: keras.layers.Layer) -> AttentionAdapter:
    return SequenceAttention(layer)


class _Identity(SequenceAttention):
    """No attention: there is nothing to keep."""

    can_extend = True

    def compares_pairs(self, length: int, dim: int) -> bool:
        return False

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        return new_state()

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        return self.layer(x), state


@adapter_of.register
def _(layer: keras.layers.Identity) -> AttentionAdapter:
    return _Identity(layer, is_causal=True)


@adapter_of.register(keras.layers.MultiHeadAttention)
@adapter_of.register(keras.layers.GroupQueryAttention)
def _(layer: keras.layers.Layer) -> AttentionAdapter:
    return KerasAttention(layer)
