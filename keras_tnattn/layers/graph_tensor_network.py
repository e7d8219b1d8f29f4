"""Recurrent graph tensor network: a linear filter along the time graph of a sequence."""

import math
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import UniformReflections
from keras_tnattn.layers import time_graphs
from keras_tnattn.layers.base_attention import (
    AttentionAdapter,
    SequenceAttention,
    State,
    adapter_of,
    new_state,
)
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import reflections
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.ops.time_graph import Geometric, TimeGraph, check_receive_from, time_filter
from keras_tnattn.typing import Chunk, Shape, Tensor

_PROJECTIONS = ("orthogonal", "oblique")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class GraphTensorNetwork(BaseLayer):
    """Adds to each token a damped sum of the tokens after it, projected onto a subspace.

        Y = X + A X P        A[i, j] = c^(j - i) for j > i, else 0        P P = P

    the recurrent graph tensor network (RGTN) of Xu et al., "A Tensorized Spectral Attention
    Mechanism for Efficient Natural Language Processing", section 2.4, with damping `c`. The "fast"
    variant has `P = I` and therefore no weights: `Y = (I + A) X`. The bidirectional variant has
    `Omega = (A + A^T) / 2` instead of `A`. Other weights `g(j - i)` than `c^(j - i)`, or any
    adjacency, can replace `A`.

    Since `A` is upper triangular, token `i` receives from the tokens `j > i` in this formula. The
    papers' text, "past information can influence the future states but not vice-versa", describes
    `A^T`, which is `receive_from="earlier"`.

    `P` has a fixed rank `r`. The orthogonal one is `Q Q^T`, with `Q` the product of `r`
    reflections; the oblique one is `Q R` with `R = Q^T + S` and rows of `S` orthogonal to `Q`,
    initially `Q Q^T`. Both are idempotent up to rounding at every step of training, with finite
    gradients for any weights, and the spectral norm of the oblique one stays below
    `max_projection_norm`. `P` acts on all features of a token at once; the features of tokens that
    are tensors are taken in C order (the papers use only `P = I` for these).

    The layer has `J r` weights, twice as many if oblique. With geometric weights `A X` is a linear
    recurrence and costs `O(L J)`, not `O(L^2 J)`: about `70 L J` FLOPs. With a projector the filter
    runs on `r` features, and the projector costs `4 L J r + 4 J r^2`. The memory is `O(L J)`. A
    window costs `O(L w J)`, any other graph `O(L^2 J)`. Under mixed precision the layer still
    computes in float32.

    A masked token neither sends nor receives; its output is 0, and other outputs do not change.

    Args:
        propagation_rank: Int, the rank `r` of `P`, at most the number `J` of features of a token.
            Default: `P = I`, the fast variant.
        damping: The damping `c`, `0 <= c < 1`, short for `time_graph=Geometric(c)`. Default: 0.9
            (the papers give no number).
        time_graph: The weights `g(d)` of tokens at distance `d`, a graph of
            `keras_tnattn.ops.time_graph`: `Geometric(c)`, `c^d`; `Exponential(s, q)`,
            `exp(-s d^q)`; `Window(w)`, 1 for `d <= w`, else 0; `PowerLaw(p)`, `d^-p`. With
            `trainable=True` the numbers of the first two are trained.
        receive_from: `"later"` (default) for `A`, `"earlier"` for `A^T`, which is causal, or
            `"both"` for `Omega`.
        projection: `"orthogonal"` (default) or `"oblique"`: idempotent matrices that need not be
            symmetric, of norm below `max_projection_norm`. For `r = 1` every such matrix
            can be reached; for `r > 1` those whose oblique part has a bounded Frobenius norm.
        max_projection_norm: The bound of the spectral norm of an oblique `P`, greater than 1.
            Defaults to 4.

    Call arguments:
        inputs: Float tensor `(B, L, J)` or `(B, L, J_1, ..., J_N)`; `B` and `L` may be unknown.
        adjacency: Float tensor `(L, L)` or `(B, L, L)`, which replaces `A` or `Omega`: token `i`
            receives `adjacency[i, j]` times token `j`. Weights and diagonal are used as they are.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        training: Has no effect; accepted as in Keras' attention layers.
        use_causal_mask: Whether each token receives only from earlier tokens: `A^T` replaces
            `Omega`, or the part of `adjacency` below its diagonal is used. Defaults to `False`.
        inputs_mask: The mask of `inputs`, which Keras passes here when `adjacency` is given. `mask`
            takes precedence.

    Returns:
        Tensor in the shape of `inputs`, in the compute dtype.

    Raises:
        ValueError: For a damping outside [0, 1), an unknown option, a rank above `J`, or
            `use_causal_mask` with `receive_from="later"`, which would leave nothing to receive.

    Example:
        >>> layer = GraphTensorNetwork(2, receive_from="earlier")
        >>> tuple(layer(keras.ops.ones((3, 7, 4))).shape)
        (3, 7, 4)
        >>> tuple(layer.propagation_matrix().shape)
        (4, 4)
    """

    call_shapes: ClassVar = {
        "inputs": "B L J ...",
        "adjacency": "L L | B? L L",
        "mask": "B? L",
        "inputs_mask": "B? L",
    }

    def __init__(
        self,
        propagation_rank: int | None = None,
        damping: float | None = None,
        receive_from: str = "later",
        projection: str = "orthogonal",
        max_projection_norm: float = 4.0,
        time_graph: TimeGraph | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if propagation_rank is not None:
            propagation_rank = check_int("propagation_rank", propagation_rank)
        if projection not in _PROJECTIONS:
            raise ValueError(f"Expected one of {_PROJECTIONS}. Received: projection={projection!r}")
        if not max_projection_norm > 1:
            raise ValueError(
                "Expected a norm greater than 1, that of an orthogonal projector. "
                f"Received: max_projection_norm={max_projection_norm}"
            )
        self.propagation_rank = propagation_rank
        self.damping = self.time_graph = None  # `time_graphs` has both
        self.time_graphs = time_graphs.check_time_graphs(damping, time_graph, num_heads=1)
        self.receive_from = check_receive_from(receive_from)
        self.projection = projection
        self.max_projection_norm = float(max_projection_norm)

    def build(self, input_shape: Shape) -> None:
        token_shape = tuple(input_shape[2:])
        if None in token_shape:
            raise ValueError(
                f"Expected tokens of a known shape. Received: input_shape={tuple(input_shape)}"
            )
        self.num_features = math.prod(token_shape)
        self.reflections = self.shear = None
        if self.propagation_rank is not None:
            self._add_projection(self.propagation_rank, input_shape)
        time_graphs.add_graph_weights(self)
        self.built = True

    def _add_projection(self, rank: int, input_shape: Shape) -> None:
        if rank > self.num_features:
            raise ValueError(
                f"Expected a rank of at most {self.num_features}, the features of a token. "
                f"Received: propagation_rank={rank}, "
                f"input_shape={tuple(input_shape)}"
            )
        self.reflections = self.add_weight(
            shape=(self.num_features, rank),
            initializer=UniformReflections(),
            # Half precision is too coarse for a projector.
            autocast=False,
            name="reflections",
        )
        if self.projection == "oblique":
            self.shear = self.add_weight(
                shape=(rank, self.num_features), initializer="zeros", autocast=False, name="shear"
            )

    def call(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        mask = inputs_mask if mask is None else mask
        dtype = self.filter_dtype
        batch, length, *token_shape = ops.shape(inputs)
        x = ops.cast(apply_mask(inputs, mask), dtype)
        x = ops.reshape(x, (batch, length, self.num_features))
        if self.reflections is None:
            received = self._filter(x, adjacency, use_causal_mask)
        else:
            columns, rows = self.factors(dtype)
            # A (X Q) R: r features to filter instead of J.
            received = self._filter(matmul(x, columns), adjacency, use_causal_mask)
            received = matmul(received, rows)
        outputs = ops.cast(x + received, self.compute_dtype)
        return apply_mask(ops.reshape(outputs, (batch, length, *token_shape)), mask)

    def _filter(self, x: Tensor, adjacency: Tensor | None, causal: bool) -> Tensor:
        if adjacency is not None:
            adjacency = ops.cast(adjacency, x.dtype)
            return matmul(ops.tril(adjacency, k=-1) if causal else adjacency, x)
        if causal and self.receive_from == "later":
            raise ValueError(
                "Expected receive_from='earlier' or 'both' for a causal mask. "
                f"Received: use_causal_mask={causal}, receive_from={self.receive_from!r}"
            )
        (graph,) = time_graphs.current_graphs(self)
        return time_filter(x, graph, "earlier" if causal else self.receive_from)

    @property
    def filter_dtype(self) -> str:
        """The dtype of the filter: float32, or float64."""
        return at_least_float32(self.variable_dtype)

    def factors(self, dtype: str) -> tuple[Tensor, Tensor]:
        """Returns `Q`, `(J, r)`, and `R`, `(r, J)`, of `P = Q R`."""
        columns = reflections.orthonormal_columns(ops.cast(self.reflections, dtype))
        if self.shear is None:
            return columns, ops.transpose(columns)
        shear = ops.cast(self.shear, dtype)
        return columns, reflections.oblique_rows(columns, shear, self.max_projection_norm)

    def propagation_matrix(self) -> Tensor:
        """Returns `P`, `(J, J)`, of a built layer."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        dtype = self.filter_dtype
        if self.reflections is None:
            return ops.eye(self.num_features, dtype=dtype)
        return matmul(*self.factors(dtype))

    def compute_output_spec(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        inputs_mask: Tensor | None = None,
    ) -> keras.KerasTensor:
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        time_graph = time_graphs.serialize_time_graphs(self.time_graphs)
        return {**super().get_config(), "time_graph": time_graph}


class _GraphTensorNetworkAdapter(SequenceAttention):
    """Keeps the damped sum of the earlier tokens, or with another graph than a geometric one those
    tokens that a later one can receive from."""

    can_extend = True

    def compares_pairs(self, length: int, dim: int) -> bool:
        return self.layer.time_graphs[0].bandwidth is None

    def _graph(self) -> TimeGraph:
        return time_graphs.current_graphs(self.layer)[0]

    @property
    def _num_received(self) -> int:
        return self.layer.propagation_rank or self.layer.num_features

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        graph, dim, dtype = self._graph(), self._num_received, self.layer.filter_dtype
        if isinstance(graph, Geometric):
            return new_state(context={"received": ops.zeros((size, dim), dtype)})
        width = graph.bandwidth
        return time_graphs.empty_past(["sent"], width, (size,), length, dim, dtype)

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        layer = self.layer
        graph = self._graph()
        dtype = self.layer.filter_dtype
        inputs = ops.cast(apply_mask(x, chunk.mask), dtype)
        columns, rows = (None, None) if layer.reflections is None else layer.factors(dtype)
        sent = inputs if columns is None else matmul(inputs, columns)
        if isinstance(graph, Geometric):
            carry = state["context"]["received"]
            decay = graph.damping ** ops.cast(ops.arange(ops.shape(sent)[1]), dtype)
            received = time_filter(sent, graph, "earlier") + decay[:, None] * carry[:, None, :]
            carry = graph.damping * (received[:, -1] + sent[:, -1])
            state = {**state, "context": {"received": carry}}
        else:
            past, state = time_graphs.append(state, "sent", sent, chunk, graph.bandwidth)
            received = matmul(time_graphs.weights([graph], chunk, graph.bandwidth, dtype)[0], past)
        if rows is not None:
            received = matmul(received, rows)
        outputs = ops.cast(inputs + received, layer.compute_dtype)
        return apply_mask(outputs, chunk.mask), state


@adapter_of.register
def _(layer: GraphTensorNetwork) -> AttentionAdapter:
    causal = layer.receive_from == "earlier"
    takes_mask = layer.receive_from == "both"
    return _GraphTensorNetworkAdapter(layer, takes_causal_mask=takes_mask, is_causal=causal)
