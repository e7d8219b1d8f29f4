"""Recurrent graph tensor network: a linear filter along the time graph of a sequence."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.initializers import UniformReflections
from keras_tnattn.layers.base_attention import AttentionAdapter, SequenceAttention, adapter_of
from keras_tnattn.ops import reflections, time_graph
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class GraphTensorNetwork(keras.layers.Layer):
    """Adds to each token the damped sum of those after it, seen through a projector.

        Y = X + A X P        A[i, j] = c^(j - i) for j > i, else 0        P P = P

    the recurrent graph tensor network (RGTN) of Xu et al., "A Tensorized Spectral Attention
    Mechanism for Efficient Natural Language Processing", section 2.4, with damping `c`. The "fast"
    variant has `P = I`, and so no weights: `Y = (I + A) X`. The bidirectional graph is
    `Omega = (A + A^T) / 2` in the place of `A`.

    As `A` is upper triangular, token `i` receives from the tokens `j > i`: so the formula. The
    papers' words, "past information can influence the future states but not vice-versa", ask for
    `A^T`, which is `receive_from="earlier"`.

    `P = Q Q^T` is an orthogonal projector of fixed rank `r`, with `Q` the product of `r`
    reflections: idempotent and symmetric within rounding at every step of training, with finite
    gradients from any weights. `P` acts on all features of a token at once: for tokens that are
    tensors, which the paper filters with `P = I` only, on their features in C order.

    `J r` weights. `A X` is a linear recurrence and costs `O(L J)`, not `O(L^2 J)`: about `70 L J`
    FLOPs, and `4 L J r + 4 J r^2` for the projector, where the filter runs on `r` features; memory
    `O(L J)`. Computed in float32 under mixed precision too.

    A masked token neither sends nor receives: its output is 0, and padding changes nothing else.

    Args:
        propagation_rank: The rank `r` of `P`, at most the number `J` of features of a token.
            Default: `P = I`, the fast variant.
        damping: The damping `c`, `0 <= c < 1`. Defaults to 0.9 (the papers give no number).
        receive_from: `"later"` (default) for `A`, `"earlier"` for `A^T`, which is causal, or
            `"both"` for `Omega`.

    Call arguments:
        inputs: Float tensor `(B, L, J)` or `(B, L, J_1, ..., J_N)`; `B` and `L` may be unknown.
        mask: Boolean tensor `(B, L)`, `True` for a real token.

    Returns:
        Tensor as `inputs`, in the compute dtype.

    Raises:
        ValueError: For a damping outside [0, 1), an unknown option, or a rank above `J`.
    """

    def __init__(
        self,
        propagation_rank: int | None = None,
        damping: float = 0.9,
        receive_from: str = "later",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if propagation_rank is not None and (
            not isinstance(propagation_rank, int) or propagation_rank < 1
        ):
            raise ValueError(
                "Expected a positive int, or None for the fast variant. "
                f"Received: propagation_rank={propagation_rank!r}"
            )
        self.propagation_rank = propagation_rank
        self.damping = time_graph.check_damping(damping)
        self.receive_from = time_graph.check_receive_from(receive_from)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(min_ndim=3)

    def build(self, input_shape: Sequence[int | None]) -> None:
        token_shape = tuple(input_shape[2:])
        if None in token_shape:
            raise ValueError(
                f"Expected tokens of a known shape. Received: input_shape={tuple(input_shape)}"
            )
        self.num_features = math.prod(token_shape)
        self.reflections = None
        if self.propagation_rank is not None:
            if self.propagation_rank > self.num_features:
                raise ValueError(
                    f"Expected a rank of at most {self.num_features}, the features of a token. "
                    f"Received: propagation_rank={self.propagation_rank}, "
                    f"input_shape={tuple(input_shape)}"
                )
            self.reflections = self.add_weight(
                shape=(self.num_features, self.propagation_rank),
                initializer=UniformReflections(),
                # Half precision is too coarse for a projector.
                autocast=False,
                name="reflections",
            )
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        dtype = self._filter_dtype()
        batch, length, *token_shape = ops.shape(inputs)
        x = ops.cast(apply_mask(inputs, mask), dtype)
        x = ops.reshape(x, (batch, length, self.num_features))
        if self.reflections is None:
            received = self._filter(x)
        else:
            columns = self._columns(dtype)
            # A (X Q) Q^T: r features to filter instead of J.
            received = matmul(self._filter(matmul(x, columns)), ops.transpose(columns))
        outputs = ops.cast(x + received, self.compute_dtype)
        return apply_mask(ops.reshape(outputs, (batch, length, *token_shape)), mask)

    def _filter(self, x: Tensor) -> Tensor:
        return time_graph.time_filter(x, self.damping, self.receive_from)

    def _filter_dtype(self) -> str:
        return keras.backend.result_type(self.variable_dtype, "float32")

    def _columns(self, dtype: str) -> Tensor:
        """`Q`, `(J, r)`."""
        return reflections.orthonormal_columns(ops.cast(self.reflections, dtype))

    def propagation_matrix(self) -> Tensor:
        """Returns `P`, `(J, J)`, of a built layer."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        dtype = self._filter_dtype()
        if self.reflections is None:
            return ops.eye(self.num_features, dtype=dtype)
        columns = self._columns(dtype)
        return matmul(columns, ops.transpose(columns))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "propagation_rank": self.propagation_rank,
            "damping": self.damping,
            "receive_from": self.receive_from,
        }


@adapter_of.register
def _(layer: GraphTensorNetwork) -> AttentionAdapter:
    return SequenceAttention(layer, is_causal=layer.receive_from == "earlier")
