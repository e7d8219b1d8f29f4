"""The encoder and the decoder layer of the transformer, around any attention."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.typing import Tensor


class _TransformerLayer(keras.layers.Layer):
    """Branches of attention and of a feed-forward net, each with dropout, sum and norm."""

    def __init__(
        self,
        feedforward_dim: int,
        dropout: float,
        activation: str | Callable[[Tensor], Tensor],
        norm_first: bool,
        epsilon: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(feedforward_dim, int) or feedforward_dim < 1:
            raise ValueError(
                f"Expected a positive int. Received: feedforward_dim={feedforward_dim!r}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"Expected a rate in [0, 1). Received: dropout={dropout}")
        self.feedforward_dim = feedforward_dim
        self.dropout = float(dropout)
        self.activation = keras.activations.get(activation)
        self.norm_first = norm_first
        self.epsilon = float(epsilon)
        self.supports_masking = True

    def _build_branches(self, shape: Sequence[int | None], num_attentions: int) -> None:
        """Makes what stands around the attentions for inputs `(B, L, d)`."""
        dtype = self.dtype_policy
        self.norms = [
            keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=dtype, name=f"norm_{i}")
            for i in range(num_attentions + 1)
        ]
        self.dropouts = [
            keras.layers.Dropout(self.dropout, dtype=dtype, name=f"dropout_{i}")
            for i in range(num_attentions + 1)
        ]
        self.hidden = keras.layers.Dense(
            self.feedforward_dim, activation=self.activation, dtype=dtype, name="hidden"
        )
        self.projection = keras.layers.Dense(shape[-1], dtype=dtype, name="projection")
        for norm in self.norms:
            norm.build(shape)
        self.hidden.build(shape)
        self.projection.build((*shape[:-1], self.feedforward_dim))

    def _add(self, index: int, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Residual sum of `x` and a branch of it, normalised before or after."""
        norm, dropout = self.norms[index], self.dropouts[index]
        if self.norm_first:
            return x + dropout(branch(norm(x)))
        return norm(x + dropout(branch(x)))

    def compute_output_spec(
        self, inputs: Tensor, *args: Tensor, return_attention: bool = False, **kwargs: Any
    ) -> Tensor:
        if return_attention:
            return super().compute_output_spec(inputs, *args, return_attention=True, **kwargs)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.projection(self.hidden(x))

    def _check_attention(self, name: str, attention: Any, keras_call: bool) -> None:
        if not isinstance(attention, keras.layers.Layer):
            raise TypeError(f"Expected an attention layer. Received: {name}={attention!r}")
        if keras_call and not _has_keras_call(attention):
            raise ValueError(
                "Expected an attention that is called with query and value, as "
                f"keras.layers.MultiHeadAttention. Received: {name}={attention!r}"
            )

    def get_config(self) -> dict:
        names = ("feedforward_dim", "dropout", "norm_first", "epsilon")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "activation": keras.activations.serialize(self.activation),
        }


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TransformerEncoder(_TransformerLayer):
    """Encoder layer of the transformer (Vaswani et al., section 3.1) around any self-attention.

    `x <- LayerNorm(x + Dropout(Attention(x)))`, then the same with `Dense(d)(relu(Dense(f)(x)))`.
    Costs those of the attention and `4 B L d f` FLOPs.

    Args:
        attention: The attention layer: one that is called with query and value, as
            `keras.layers.MultiHeadAttention` and `PowerLawGraphAttention`, or with inputs and
            mask, as `TensorizedSpectralAttention` and `TNAttention`.
        feedforward_dim: Hidden size `f` of the feed-forward net.
        dropout: Rate on each branch before its sum. Defaults to 0.
        activation: Of the feed-forward net. Defaults to `"relu"`.
        norm_first: Whether to normalise the branches' inputs instead of the sums. Defaults to
            `False`.
        epsilon: Of the normalisations. Defaults to 1e-6.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        training: Whether to drop out.
        return_attention: Whether to return what the attention computed too: the deductive outputs
            of a `PowerLawGraphAttention`, `{"local_weights": ...}` of a `TNAttention`, `{"scores":
            ...}` of another. Defaults to `False`.

    Returns:
        Tensor `(B, L, d)`; with `return_attention` also a dict.

    Raises:
        TypeError: If `attention` is not a layer.
        ValueError: If a size or rate is out of range, or the attention has nothing more to return.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feedforward_dim: int,
        dropout: float = 0.0,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        norm_first: bool = False,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(feedforward_dim, dropout, activation, norm_first, epsilon, **kwargs)
        self._check_attention("attention", attention, keras_call=False)
        self.attention = attention

    def build(self, input_shape: Sequence[int | None]) -> None:
        _build_attention(self.attention, input_shape, input_shape)
        self._build_branches(input_shape, num_attentions=1)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        return_attention: bool = False,
    ) -> Tensor:
        computed = {}

        def attend(x: Tensor) -> Tensor:
            outputs, computed["self"] = _attend(
                self.attention, x, x, mask, mask, return_attention=return_attention
            )
            return outputs

        x = self._add(0, inputs, attend)
        x = self._add(1, x, self._feed_forward)
        return (x, computed["self"]) if return_attention else x

    def get_config(self) -> dict:
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention}

    @classmethod
    def from_config(cls, config: dict) -> "TransformerEncoder":
        attention = keras.saving.deserialize_keras_object(config["attention"])
        return cls(**{**config, "attention": attention})


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TransformerDecoder(_TransformerLayer):
    """Decoder layer of the transformer (Vaswani et al., section 3.1) around two attentions.

    Causal self-attention, attention to the memory, feed-forward net, each a branch as in
    `TransformerEncoder`. Both attentions have to take a query and a value of their own and a
    causal mask: `PowerLawGraphAttention` and `keras.layers.MultiHeadAttention` do; the attentions
    of a sequence to itself (`TensorizedSpectralAttention`, `TNAttention`, ...) see both sides of a
    token by their definition. Costs those of the attentions and `4 B T d f` FLOPs.

    Args:
        self_attention: The attention of the target to itself; called with query and value, as
            `keras.layers.MultiHeadAttention` and `PowerLawGraphAttention`.
        cross_attention: The attention of the target to the memory, called likewise.
        feedforward_dim: Hidden size `f` of the feed-forward net.
        dropout: Rate on each branch before its sum. Defaults to 0.
        activation: Of the feed-forward net. Defaults to `"relu"`.
        norm_first: Whether to normalise the branches' inputs instead of the sums. Defaults to
            `False`.
        epsilon: Of the normalisations. Defaults to 1e-6.

    Call arguments:
        inputs: Float tensor `(B, T, d)`.
        memory: Float tensor `(B, S, d)`: the encoder's output.
        inputs_mask: Boolean tensor `(B, T)`, `True` for a real token.
        memory_mask: Boolean tensor `(B, S)`, `True` for a real token.
        training: Whether to drop out.
        return_attention: Whether to return what the attentions computed too. Defaults to `False`.

    Returns:
        Tensor `(B, T, d)`; with `return_attention` also a dict of `self` and `cross`, each as
        `TransformerEncoder` returns it.

    Raises:
        TypeError: If an attention is not a layer.
        ValueError: If an attention is not called with query and value, or a size or rate is out of
            range.
    """

    def __init__(
        self,
        self_attention: keras.layers.Layer,
        cross_attention: keras.layers.Layer,
        feedforward_dim: int,
        dropout: float = 0.0,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        norm_first: bool = False,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(feedforward_dim, dropout, activation, norm_first, epsilon, **kwargs)
        self._check_attention("self_attention", self_attention, keras_call=True)
        self._check_attention("cross_attention", cross_attention, keras_call=True)
        self.self_attention = self_attention
        self.cross_attention = cross_attention

    def build(self, inputs_shape: Sequence[int | None], memory_shape: Sequence[int | None]) -> None:
        _build_attention(self.self_attention, inputs_shape, inputs_shape)
        _build_attention(self.cross_attention, inputs_shape, memory_shape)
        self._build_branches(inputs_shape, num_attentions=2)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        memory: Tensor,
        inputs_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention: bool = False,
    ) -> Tensor:
        computed = {}

        def attend_to_itself(x: Tensor) -> Tensor:
            outputs, computed["self"] = _attend(
                self.self_attention,
                x,
                x,
                inputs_mask,
                inputs_mask,
                use_causal_mask=True,
                return_attention=return_attention,
            )
            return outputs

        def attend_to_memory(x: Tensor) -> Tensor:
            outputs, computed["cross"] = _attend(
                self.cross_attention,
                x,
                memory,
                inputs_mask,
                memory_mask,
                return_attention=return_attention,
            )
            return outputs

        x = self.branches(inputs, attend_to_itself, attend_to_memory)
        return (x, computed) if return_attention else x

    def branches(
        self,
        inputs: Tensor,
        attend_to_itself: Callable[[Tensor], Tensor],
        attend_to_memory: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Computes the layer with other functions in place of its attentions.

        Decoding step by step puts those here that remember the steps before.

        Args:
            inputs: Float tensor `(B, T, d)`.
            attend_to_itself: Function of `(B, T, d)` in place of the self-attention.
            attend_to_memory: Function of `(B, T, d)` in place of the cross-attention.

        Returns:
            Tensor `(B, T, d)`.
        """
        x = self._add(0, inputs, attend_to_itself)
        x = self._add(1, x, attend_to_memory)
        return self._add(2, x, self._feed_forward)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "self_attention": keras.saving.serialize_keras_object(self.self_attention),
            "cross_attention": keras.saving.serialize_keras_object(self.cross_attention),
        }

    @classmethod
    def from_config(cls, config: dict) -> "TransformerDecoder":
        names = ("self_attention", "cross_attention")
        layers = {name: keras.saving.deserialize_keras_object(config[name]) for name in names}
        return cls(**{**config, **layers})


def _has_keras_call(attention: keras.layers.Layer) -> bool:
    return "query" in inspect.signature(attention.call).parameters


def _build_attention(
    attention: keras.layers.Layer,
    query_shape: Sequence[int | None],
    value_shape: Sequence[int | None],
) -> None:
    if attention.built:
        return
    if _has_keras_call(attention):
        attention.build(query_shape, value_shape)
    else:
        attention.build(query_shape)


def _attend(
    attention: keras.layers.Layer,
    query: Tensor,
    value: Tensor,
    query_mask: Tensor,
    value_mask: Tensor,
    return_attention: bool,
    **options: bool,
) -> tuple[Tensor, dict | None]:
    """Calls an attention of either kind; returns its output and what else it computed."""
    parameters = inspect.signature(attention.call).parameters
    if _has_keras_call(attention):
        # Copies: keras.layers.MultiHeadAttention takes the masks off the tensors it is given, and
        # the layers to come would not see them.
        copied = ops.copy(query)
        arguments = (copied, copied if value is query else ops.copy(value))
        options["query_mask"] = query_mask
        if value_mask is not None:
            options["attention_mask"] = ops.cast(value_mask, "bool")[:, None, :]
    else:
        arguments = (query,)
        if "mask" in parameters:
            options["mask"] = value_mask
    if not return_attention:
        return attention(*arguments, **options), None
    if "return_deductive" in parameters:
        return attention(*arguments, return_deductive=True, **options)
    for name in ("attention_scores", "local_weights"):
        if f"return_{name}" in parameters:
            outputs, computed = attention(*arguments, **{f"return_{name}": True}, **options)
            return outputs, {name.removeprefix("attention_"): computed}
    raise ValueError(
        "Expected an attention that returns its scores. "
        f"Received: return_attention=True with {attention!r}"
    )
