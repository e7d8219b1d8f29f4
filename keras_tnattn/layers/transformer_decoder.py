"""The decoder layer of the transformer, around two attentions."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.base_attention import AttentionAdapter, KerasAttention
from keras_tnattn.layers.base_transformer import (
    OLD_NAMES,
    BaseTransformerLayer,
    adapter_for,
    projected,
)
from keras_tnattn.renaming import new_names
from keras_tnattn.typing import Activation, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TransformerDecoder(BaseTransformerLayer):
    """Decoder layer of the transformer (Vaswani et al., section 3.1) around two attentions.

    Causal self-attention, attention to the memory (the encoder's output) and a feed-forward net,
    each with dropout, residual sum and normalization as in `TransformerEncoder`. The layer costs
    the FLOPs of the attentions plus `4 B T d f`, or plus those of two `TTDense` layers with
    `feedforward="tensor_train"`.

    If both attentions are `keras.layers.MultiHeadAttention` (without `use_gate` and
    `sliding_window`), the layer can decode one token at a time from the keys and values of the
    earlier ones: `keeps_keys` is `True`, and `memory_keys`, `no_keys` and `decode_token` work.

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
            layers.
        feedforward_tt_ranks: Int, the maximum TT-rank of these layers. Defaults to 8.

    Call arguments:
        inputs: Float tensor `(B, T, d)`.
        memory: Float tensor `(B, S, d)`, the encoder's output.
        inputs_mask: Boolean tensor `(B, T)`, `True` for a real token.
        memory_mask: Boolean tensor `(B, S)`, `True` for a real token.
        training: Whether dropout is active.
        return_details: Whether to also return details of the attentions. Defaults to `False`.

    Returns:
        Tensor `(B, T, d)`; with `return_details` also a dict with the keys `self` and `cross`,
        whose values are those that `TransformerEncoder` returns. The key of an attention that
        cannot return details, such as `GraphTensorNetwork`, is left out.

    Raises:
        TypeError: If an attention is not a layer.
        ValueError: If the self-attention cannot be causal, the cross-attention cannot attend to
            another sequence, or a size or rate is out of range.

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
        cross_attention: keras.layers.Layer,
        feedforward_dim: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        norm_first: bool = False,
        epsilon: float = 1e-6,
        feedforward: str = "dense",
        feedforward_tt_ranks: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            feedforward_dim,
            dropout,
            activation,
            norm_first,
            epsilon,
            feedforward,
            feedforward_tt_ranks,
            **kwargs,
        )
        self._attend_to_itself = adapter_for("self_attention", self_attention)
        self._attend_to_memory = adapter_for("cross_attention", cross_attention)
        if not self._attend_to_itself.can_be_causal:
            raise ValueError(
                "Expected an attention that can be causal, such as "
                "keras.layers.MultiHeadAttention. "
                f"Received: self_attention={self_attention!r}"
            )
        if not self._attend_to_memory.takes_memory:
            raise ValueError(
                "Expected an attention that is called with query and value, such as "
                "keras.layers.MultiHeadAttention. "
                f"Received: cross_attention={cross_attention!r}"
            )
        self.self_attention = self_attention
        self.cross_attention = cross_attention

    def build(self, inputs_shape: Shape, memory_shape: Shape) -> None:
        self.self_projection = self._build_attention(
            self._attend_to_itself, "self_projection", inputs_shape, inputs_shape
        )
        self.cross_projection = self._build_attention(
            self._attend_to_memory, "cross_projection", inputs_shape, memory_shape
        )
        self._build_branches(inputs_shape, num_attentions=2)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        memory: Tensor,
        inputs_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        return_details: bool = False,
    ) -> Any:
        details: dict[str, Any] = {}

        def attend_to_itself(x: Tensor) -> Tensor:
            outputs, detail = self._attend_to_itself(
                x,
                x,
                inputs_mask,
                inputs_mask,
                training=training,
                use_causal_mask=True,
                return_details=return_details and self._attend_to_itself.has_details,
            )
            if detail is not None:
                details["self"] = detail
            return projected(outputs, self.self_projection)

        def attend_to_memory(x: Tensor) -> Tensor:
            outputs, detail = self._attend_to_memory(
                x,
                memory,
                inputs_mask,
                memory_mask,
                training=training,
                return_details=return_details and self._attend_to_memory.has_details,
            )
            if detail is not None:
                details["cross"] = detail
            return projected(outputs, self.cross_projection)

        inputs = ops.cast(inputs, self.compute_dtype)
        x = self._branches(inputs, attend_to_itself, attend_to_memory, training)
        return (x, details) if return_details else x

    def _branches(
        self,
        x: Tensor,
        attend_to_itself: Callable[[Tensor], Tensor],
        attend_to_memory: Callable[[Tensor], Tensor],
        training: bool | None,
    ) -> Tensor:
        x = self._add(0, x, attend_to_itself, training)
        x = self._add(1, x, attend_to_memory, training)
        return self._add(2, x, self._feed_forward, training)

    @property
    def keeps_keys(self) -> bool:
        """Whether the layer can decode a token from the keys and values of earlier tokens."""
        return self._attend_to_itself.keeps_keys and self._attend_to_memory.keeps_keys

    def memory_keys(self, memory: Tensor) -> dict[str, Tensor]:
        """Returns `keys` and `values`, `(B, S, H, k)`, of the memory `(B, S, d)`."""
        return _with_keys(self._attend_to_memory).keys_and_values(memory)

    def no_keys(self, shape: Any) -> dict[str, Tensor]:
        """Returns zeros for `keys` and `values`, `(*shape, H, k)`, of the target tokens."""
        return _with_keys(self._attend_to_itself).no_keys(shape)

    def decode_token(
        self,
        inputs: Tensor,
        position: Tensor,
        cache: dict[str, Tensor],
        memory_keys: dict[str, Tensor],
        cache_mask: Tensor,
        memory_mask: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the layer at one position of `K` hypotheses for each of `B` sentences.

        Args:
            inputs: Float tensor `(B, K, d)`: the tokens at the position.
            position: Scalar integer, the position.
            cache: Keys and values `(B, K, L, H, k)` of the target, made by `no_keys` and filled by
                earlier calls.
            memory_keys: What `memory_keys` returns.
            cache_mask: Boolean tensor `(B, K, L)`, `True` for real tokens up to the position.
            memory_mask: Boolean tensor `(B, S)`, `True` for real tokens.

        Returns:
            Outputs `(B, K, d)`, and the keys and values with those at the position filled in.
        """
        to_itself = _with_keys(self._attend_to_itself)
        to_memory = _with_keys(self._attend_to_memory)

        def attend_to_itself(x: Tensor) -> Tensor:
            nonlocal cache
            cache = keras.tree.map_structure(
                lambda old, new: ops.slice_update(
                    old, [0, 0, position, 0, 0], ops.cast(new[:, :, None], old.dtype)
                ),
                cache,
                to_itself.keys_and_values(x),
            )
            outputs = to_itself.attend_to_keys(x, cache, cache_mask[:, :, None, :])
            return projected(outputs, self.self_projection)

        def attend_to_memory(x: Tensor) -> Tensor:
            keys = keras.tree.map_structure(lambda tensor: tensor[:, None], memory_keys)
            outputs = to_memory.attend_to_keys(x, keys, memory_mask[:, None, None, :])
            return projected(outputs, self.cross_projection)

        outputs = self._branches(inputs, attend_to_itself, attend_to_memory, training=False)
        return outputs, cache

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "self_attention": keras.saving.serialize_keras_object(self.self_attention),
            "cross_attention": keras.saving.serialize_keras_object(self.cross_attention),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TransformerDecoder":
        config = new_names(OLD_NAMES, config, cls.__name__, stacklevel=None)
        names = ("self_attention", "cross_attention")
        layers = {name: keras.saving.deserialize_keras_object(config[name]) for name in names}
        return cls(**{**config, **layers})


def _with_keys(adapter: AttentionAdapter) -> KerasAttention:
    if isinstance(adapter, KerasAttention) and adapter.keeps_keys:
        return adapter
    raise ValueError(
        "Expected attentions whose keys can be kept: keras.layers.MultiHeadAttention without "
        f"use_gate and sliding_window. Received: {adapter.layer!r}"
    )
