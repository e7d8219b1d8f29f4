"""Tensorized graph attention: the graph filter of order 2 on tokens that are tensors."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_attention import AttentionAdapter, SequenceAttention, adapter_of
from keras_tnattn.layers.base_layer import BaseLayer, config_of
from keras_tnattn.layers.tensorized_spectral_attention import TensorizedSpectralAttention
from keras_tnattn.layers.time_graphs import serialize_time_graphs
from keras_tnattn.ops.tensor_train.factors import as_ints
from keras_tnattn.ops.time_graph import TimeGraph
from keras_tnattn.typing import Constraint, Initializer, Regularizer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TensorizedGraphAttention(BaseLayer):
    """Attention as a filter on a graph over time, for tokens that are tensors.

    Inputs `(B, L, I_1, ..., I_N)` become `(B, L, H J_1, J_2, ..., J_N)`: as in the paper the `H`
    heads are concatenated and not mapped back. For a residual sum `x + attention(x)` set
    `head_combination="project"`, which returns the shape of the input.

    `Y = (I + Psi) V` on tokens `(I_1, ..., I_N)`, keys and values `(J_1, ..., J_N)` (algorithm 1 of
    Xu et al., "Low-Complexity Attention Modelling via Graph Tensor Networks"). The sublayer
    `attention`, a `TensorizedSpectralAttention` with `filter_order=2`, computes this on the tokens
    flattened in C order. A head has `2 sum_n R_{n-1} I_n J_n R_n` parameters.

    Args:
        num_heads: Int, the number of heads `H`.
        key_shape: The factors `(J_1, ..., J_N)` of keys and values. Defaults to those of the
            tokens.
        tt_ranks: Int, the maximum TT-rank (clipped at each bond), or a sequence of `N - 1` ints.
            Defaults to 2.
        damping: The damping `c` of the time graph: a number, or one for each head. Short for
            `time_graph=Geometric(c)`. Default: 0.9.
        time_graph: A graph of `keras_tnattn.ops.time_graph`, or one for each head, as for
            `TensorizedSpectralAttention`.
        head_combination: `"concat"` (default), `"sum"`, `"mean"` or `"project"`.
        method: `"direct"`, `"banded"`, or `"auto"` (default), which chooses by length.
        kernel_initializer: A Keras initializer; each map gets its variance. Defaults to
            `"glorot_uniform"`.
        kernel_regularizer: Regularizer applied to each core.
        kernel_constraint: Constraint applied to each core.

    Call arguments:
        inputs: Float tensor `(B, L, I_1, ..., I_N)`; `B` and `L` may be unknown.
        adjacency: Float tensor `(L, L)` or `(B, L, L)`, which replaces the time graph.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return `Psi` too. Defaults to `False`.
        training: Has no effect; accepted as in Keras' attention layers.
        use_causal_mask: Whether each token receives only from earlier ones. Defaults to `False`.
        inputs_mask: The mask of `inputs`, which Keras passes here when `adjacency` is given. `mask`
            takes precedence.

    Returns:
        Tensor `(B, L, J_1, ..., J_N)` for `"sum"` and `"mean"`, `(B, L, H J_1, J_2, ..., J_N)` for
        `"concat"` (the heads one after the other, as in `TensorizedSpectralAttention`),
        `(B, L, I_1, ..., I_N)` for `"project"`; with `return_attention_scores` also `Psi`,
        `(B, H, L, L)`.

    Raises:
        ValueError: As `TensorizedSpectralAttention`.

    Example:
        >>> layer = TensorizedGraphAttention(num_heads=2)
        >>> tuple(layer(keras.ops.ones((3, 7, 2, 2, 2))).shape)
        (3, 7, 4, 2, 2)
    """

    call_shapes: ClassVar = {
        "inputs": "B L I ...",
        "adjacency": "L L | B? L L",
        "mask": "B? L",
        "inputs_mask": "B? L",
    }

    def __init__(
        self,
        num_heads: int,
        key_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] = 2,
        damping: float | Sequence[float] | None = None,
        head_combination: str = "concat",
        method: str = "auto",
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        time_graph: TimeGraph | Sequence[TimeGraph] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_shape = as_ints(key_shape, "key_shape")
        self.head_combination = head_combination
        options: dict[str, Any] = {
            "tt_ranks": tt_ranks,
            "damping": damping,
            "time_graph": time_graph,
            "head_combination": head_combination,
            "method": method,
            "kernel_initializer": kernel_initializer,
            "kernel_regularizer": kernel_regularizer,
            "kernel_constraint": kernel_constraint,
        }
        # Check the options here; the factors are known when the layer is built. Objects are kept:
        # Keras knows those of a file by their addresses, which a freed object's heir would share.
        checked = TensorizedSpectralAttention(num_heads, **options)
        self.options = {name: getattr(checked, name) for name in options}
        self.options["time_graph"] = checked.time_graphs

    def build(self, input_shape: Shape) -> None:
        batch, length, *token_shape = input_shape
        if None in token_shape:
            raise ValueError(
                f"Expected tokens of a known shape. Received: input_shape={tuple(input_shape)}"
            )
        if self.key_shape is not None and len(self.key_shape) != len(token_shape):
            raise ValueError(
                "Expected as many key factors as the tokens have axes. "
                f"Received: key_shape={self.key_shape}, input_shape={tuple(input_shape)}"
            )
        key_shape = self.key_shape or tuple(token_shape)
        self.attention = TensorizedSpectralAttention(
            self.num_heads,
            math.prod(key_shape),
            tt_input_shape=token_shape,
            tt_output_shape=key_shape,
            **self.options,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.attention.build((batch, length, math.prod(token_shape)))
        self.built = True

    def call(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        outputs, *scores = keras.tree.flatten(
            self.attention(
                ops.reshape(inputs, (*ops.shape(inputs)[:2], math.prod(inputs.shape[2:]))),
                adjacency,
                mask=inputs_mask if mask is None else mask,
                return_attention_scores=return_attention_scores,
                use_causal_mask=use_causal_mask,
            )
        )
        token_shape = self.compute_output_shape(inputs.shape)[2:]
        outputs = ops.reshape(outputs, (*ops.shape(outputs)[:2], *token_shape))
        return (outputs, *scores) if return_attention_scores else outputs

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        batch, length, *token_shape = input_shape
        key_shape = self.key_shape or token_shape
        if self.head_combination == "concat":
            key_shape = (self.num_heads * key_shape[0], *key_shape[1:])
        elif self.head_combination == "project":
            key_shape = token_shape
        return (batch, length, *key_shape)

    def compute_output_spec(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        outputs = keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length = inputs.shape[:2]
        scores = (batch, self.num_heads, length, length)
        return outputs, keras.KerasTensor(scores, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        own = {"num_heads": self.num_heads, "key_shape": self.key_shape}
        options = {name: config_of(name, value) for name, value in self.options.items()}
        options["time_graph"] = serialize_time_graphs(self.options["time_graph"])
        return {**keras.layers.Layer.get_config(self), **own, **options}


class _GraphAdapter(SequenceAttention):
    def compares_pairs(self, length: int, dim: int) -> bool:
        key_dim = self.layer.key_shape and math.prod(self.layer.key_shape)
        flat = TensorizedSpectralAttention(self.layer.num_heads, key_dim, **self.layer.options)
        return adapter_of(flat).compares_pairs(length, dim)


@adapter_of.register
def _(layer: TensorizedGraphAttention) -> AttentionAdapter:
    return _GraphAdapter(layer, "scores", takes_causal_mask=True)
