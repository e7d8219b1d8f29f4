"""Tensorized graph attention: the graph filter of order 2 on tokens that are tensors."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.tensorized_spectral_attention import TensorizedSpectralAttention
from keras_tnattn.ops import tensor_train
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TensorizedGraphAttention(TensorizedSpectralAttention):
    """Attention as a filter on a graph over time, for tokens that are tensors.

    `Y = (I + Psi) V` on tokens `(I_1, ..., I_N)`, keys and values `(J_1, ..., J_N)` (algorithm 1 of
    Xu et al., "Low-Complexity Attention Modelling via Graph Tensor Networks"): what
    `TensorizedSpectralAttention` computes with `filter_order=2` on the tokens in C order, at the
    same cost; a head has `2 sum_n R_{n-1} I_n J_n R_n` parameters.

    Args:
        num_heads: Number of heads `H`.
        key_shape: The factors `(J_1, ..., J_N)` of keys and values. Defaults to that of the
            tokens.
        tt_ranks: An int, "at most", or `N - 1` ints. Defaults to 2.
        damping: The damping `c` of the time graph: a number, or one for each head. Defaults to 0.9.
        head_combination: `"concat"` (default), `"sum"`, `"mean"` or `"project"`.
        trainable_damping: Whether the damping is trained. Defaults to `False`.
        method: `"direct"`, `"banded"` or, by length, `"auto"` (default).
        kernel_initializer: The dense initialiser whose variance each map is to have.
        kernel_regularizer: Applied to each core.
        kernel_constraint: Applied to each core.

    Call arguments:
        inputs: Float tensor `(B, L, I_1, ..., I_N)`; `B` and `L` may be unknown.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return `Psi` too. Defaults to `False`.
        training: Taken as Keras' attentions do; the layer computes the same in training.

    Returns:
        Tensor `(B, L, J_1, ..., J_N)` for `"sum"` and `"mean"`, `(B, L, H J_1, J_2, ..., J_N)` for
        `"concat"` (the heads one after the other, as in `TensorizedSpectralAttention`),
        `(B, L, I_1, ..., I_N)` for `"project"`; with `return_attention_scores` also `Psi`,
        `(B, H, L, L)`.

    Raises:
        ValueError: As `TensorizedSpectralAttention`.
    """

    def __init__(
        self,
        num_heads: int,
        key_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] = 2,
        damping: float | Sequence[float] = 0.9,
        head_combination: str = "concat",
        trainable_damping: bool = False,
        method: str = "auto",
        kernel_initializer: str | keras.initializers.Initializer = "glorot_uniform",
        kernel_regularizer: str | keras.regularizers.Regularizer | None = None,
        kernel_constraint: str | keras.constraints.Constraint | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim=None if key_shape is None else math.prod(key_shape),
            tt_ranks=tt_ranks,
            # Named here, so that none of them slips in by **kwargs.
            filter_order=2,
            tt_input_shape=None,
            tt_output_shape=None,
            damping=damping,
            head_combination=head_combination,
            trainable_damping=trainable_damping,
            method=method,
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            **kwargs,
        )
        self.key_shape = tensor_train.as_ints(key_shape)
        self.input_spec = keras.layers.InputSpec(min_ndim=3)

    def build(self, input_shape: Sequence[int | None]) -> None:
        batch, length, *token_shape = input_shape
        if self.key_shape is not None and len(self.key_shape) != len(token_shape):
            raise ValueError(
                "Expected as many key factors as the tokens have axes. "
                f"Received: key_shape={self.key_shape}, input_shape={tuple(input_shape)}"
            )
        self.tt_input_shape = tuple(token_shape)
        self.tt_output_shape = self.key_shape or self.tt_input_shape
        super().build((batch, length, math.prod(token_shape)))

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        flat = ops.reshape(inputs, (*ops.shape(inputs)[:2], math.prod(inputs.shape[2:])))
        outputs = super().call(flat, mask, return_attention_scores)
        outputs, *scores = outputs if return_attention_scores else (outputs,)
        token_shape = self.compute_output_shape(inputs.shape)[2:]
        outputs = ops.reshape(outputs, (*ops.shape(outputs)[:2], *token_shape))
        return (outputs, *scores) if return_attention_scores else outputs

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        batch, length, *token_shape = input_shape
        key_shape = self.key_shape or token_shape
        if self.head_combination == "concat":
            key_shape = (self.num_heads * key_shape[0], *key_shape[1:])
        elif self.head_combination == "project":
            key_shape = token_shape
        return (batch, length, *key_shape)

    def get_config(self) -> dict:
        config = {**super().get_config(), "key_shape": self.key_shape}
        for implied in ("key_dim", "filter_order", "tt_input_shape", "tt_output_shape"):
            del config[implied]
        return config
