"""Base class of the encoder and the decoder layer of the transformer."""

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.base_attention import AttentionAdapter, adapter_of
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.layers.swiglu import SwiGLU
from keras_tnattn.layers.tt_dense import TTDense
from keras_tnattn.typing import Activation, Shape, Tensor

_MAPS = ("dense", "tensor_train")
FEEDFORWARDS = (*_MAPS, "swiglu")


class BaseTransformerLayer(BaseLayer):
    """Attentions and a feed-forward net, each with dropout, residual sum and normalization.

    Args:
        feedforward_dim: Hidden size of the feed-forward net.
        dropout: Dropout rate of the output of each attention and of the feed-forward net.
        activation: Activation function of the feed-forward net.
        norm_first: Whether to normalize the inputs of the branches instead of the residual sums.
        epsilon: Small number that the normalizations add to the variance.
        feedforward: The layers of the feed-forward net, `"dense"`, `"tensor_train"` or `"swiglu"`.
        feedforward_tt_ranks: Maximum TT-rank of these layers, for `"tensor_train"`.
    """

    call_shapes: ClassVar = {
        "inputs": "B T d",
        "memory": "B S e",
        "mask": "B? T",
        "inputs_mask": "B? T",
        "memory_mask": "B? S",
    }

    def __init__(
        self,
        feedforward_dim: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        norm_first: bool = False,
        epsilon: float = 1e-6,
        feedforward: str = "dense",
        feedforward_tt_ranks: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feedforward_dim = check_int("feedforward_dim", feedforward_dim)
        self.dropout = check_rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.norm_first = norm_first
        self.epsilon = float(epsilon)
        self.feedforward = check_feedforward(feedforward)
        self.feedforward_tt_ranks = check_int("feedforward_tt_ranks", feedforward_tt_ranks)

    def _build_branches(self, shape: Shape, num_attentions: int) -> None:
        """Creates and builds all sublayers except the attentions, for inputs `(B, L, d)`."""
        dtype = self.dtype_policy
        self.norms = [
            keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=dtype, name=f"norm_{i}")
            for i in range(num_attentions + 1)
        ]
        self.dropouts = [
            keras.layers.Dropout(self.dropout, dtype=dtype, name=f"dropout_{i}")
            for i in range(num_attentions + 1)
        ]
        for norm in self.norms:
            norm.build(shape)
        if self.feedforward == "swiglu":
            self.gated = SwiGLU(self.feedforward_dim, dtype=dtype, name="gated")
            self.gated.build(shape)
            return
        self.hidden = feedforward_map(
            self.feedforward_dim,
            self.activation,
            self.feedforward,
            self.feedforward_tt_ranks,
            dtype=dtype,
            name="hidden",
        )
        self.projection = feedforward_map(
            shape[-1],
            None,
            self.feedforward,
            self.feedforward_tt_ranks,
            dtype=dtype,
            name="projection",
        )
        self.hidden.build(shape)
        self.projection.build((*shape[:-1], self.feedforward_dim))

    def _build_attention(
        self, attend: AttentionAdapter, name: str, query_shape: Shape, value_shape: Shape
    ) -> keras.layers.Layer | None:
        """Builds an attention; returns a map back to the size of the query if one is needed."""
        size = attend.build(query_shape, value_shape)
        if size == query_shape[-1]:
            return None
        projection = keras.layers.Dense(
            query_shape[-1], use_bias=False, dtype=self.dtype_policy, name=name
        )
        projection.build((*query_shape[:-1], size))
        return projection

    def _add(
        self, index: int, x: Tensor, branch: Callable[[Tensor], Tensor], training: bool | None
    ) -> Tensor:
        """Returns the sum of `x` and `branch(x)`, with normalization before or after."""
        norm = self.norms[index]
        dropout = self.dropouts[index]
        if self.norm_first:
            return x + dropout(branch(norm(x)), training=training)
        return norm(x + dropout(branch(x), training=training))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.feedforward == "swiglu":
            return self.gated(x)
        return self.projection(self.hidden(x))

    def compute_output_shape(
        self, inputs_shape: Shape, memory_shape: Shape | None = None
    ) -> tuple[int | None, ...]:
        return tuple(inputs_shape)

    def compute_output_spec(
        self, inputs: Tensor, *args: Any, return_details: bool = False, **kwargs: Any
    ) -> Any:
        if not return_details:
            return keras.KerasTensor(inputs.shape, self.compute_dtype)
        # The method of `Layer` takes the output shape, which has no details of the attention.
        return keras.Operation.compute_output_spec(
            self, inputs, *args, return_details=True, **kwargs
        )


def adapter_for(name: str, attention: Any) -> AttentionAdapter:
    """Returns the adapter of a constructor argument, or raises an error that names it."""
    if not isinstance(attention, keras.layers.Layer):
        raise TypeError(f"Expected an attention layer. Received: {name}={attention!r}")
    return adapter_of(attention)


def project_back(outputs: Tensor, projection: keras.layers.Layer | None) -> Tensor:
    """Returns the outputs of an attention in the size of its inputs."""
    return outputs if projection is None else projection(outputs)


def check_feedforward(feedforward: str) -> str:
    """Returns `feedforward` if it is one of `FEEDFORWARDS`."""
    if feedforward not in FEEDFORWARDS:
        raise ValueError(f"Expected one of {FEEDFORWARDS}. Received: feedforward={feedforward!r}")
    return feedforward


def feedforward_map(
    units: int, activation: Activation | None, feedforward: str, ranks: int, **kwargs: Any
) -> keras.layers.Layer:
    """Creates a dense layer, or one with a tensor-train kernel.

    Args:
        units: Size of the output.
        activation: Activation function.
        feedforward: `"dense"` for `keras.layers.Dense`, `"tensor_train"` for `TTDense`.
        ranks: Maximum TT-rank.
        **kwargs: Further arguments of the layer, for instance `name`.
    """
    if feedforward not in _MAPS:
        raise ValueError(f"Expected one of {_MAPS}. Received: feedforward={feedforward!r}")
    if feedforward == "tensor_train":
        return TTDense(units, tt_ranks=ranks, activation=activation, **kwargs)
    return keras.layers.Dense(units, activation=activation, **kwargs)
