"""Graph attention (GAT): attention of each node to its neighbors in a given graph."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_rate
from keras_tnattn.layers.self_attention import SelfAttention
from keras_tnattn.ops.graph import Edges, check_edge_weights
from keras_tnattn.ops.masking import apply_mask, masked_softmax
from keras_tnattn.ops.precision import at_least_float32, leaky_relu, matmul
from keras_tnattn.typing import Activation, Initializer, Regularizer, Shape, Tensor

_HEAD_COMBINATIONS = ("concat", "mean")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class GraphAttention(SelfAttention):
    """Attention of the nodes of a graph to their neighbors.

    Inputs `(B, L, I)` become `(B, L, H J)`: as in the paper the `H` heads, of size `J = I` by
    default, are concatenated. For a residual sum `x + attention(x)` set `key_dim` to `I / H`, or
    `head_combination="mean"`.

    For each head, with features `h_i` of node `i`, a map `W` and a vector `a` of size `2 J`:

        e_ij = LeakyReLU(a^T [W h_i || W h_j])
        alpha_ij = softmax_j(e_ij) over the neighbors j of i
        h'_i = sigma(sum_j alpha_ij W h_j + b)

    (Veličković et al., "Graph Attention Networks", equations 1-6). With `a = [a_1 || a_2]` the
    score is `LeakyReLU(s_i + t_j)` with `s_i = a_1^T W h_i` and `t_j = a_2^T W h_j`: two numbers
    per node instead of an `(L, L, 2 J)` tensor.

    The layer has `H (I J + 2 J)` weights and the biases. For each head a dense graph costs
    `2 L I J + 4 L J + 2 L^2 J` FLOPs and `O(L^2)` memory, a list of `E` edges
    `2 L I J + 4 L J + 2 E J` FLOPs and `O(E J)` memory. Under mixed precision, scores are still
    normalized in float32.

    The output of a node without edges is 0. A masked node neither sends nor receives, and its
    output is 0, so that padding does not change the other outputs.

    Args:
        num_heads: Int, the number of heads `H`.
        key_dim: Int, the size `J` of each head. Defaults to the size `I` of the input.
        head_combination: `"concat"` (default), or `"mean"`, which the paper uses in a final layer;
            the activation comes after the mean.
        negative_slope: Slope of the LeakyReLU for negative values. Defaults to 0.2, as in the
            paper.
        self_loops: Whether each node is a neighbor of itself, as in the paper. If `False`, only
            nodes with a self-loop in the graph are. Defaults to `True`.
        dropout: Dropout rate of the coefficients `alpha_ij`. Defaults to 0.
        activation: Activation function `sigma`, for each head. Default: none.
        use_bias: Whether to add biases, `J` for each head or for the mean. Defaults to `True`.
        kernel_initializer: Initializer of `W` and `a`. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer applied to `W` and `a`.

    Call arguments:
        inputs: Float tensor `(B, L, I)`: batch, nodes, features. `B` and `L` may be unknown.
        adjacency: Boolean or numeric tensor `(L, L)` or `(B, L, L)`; where `[i, j]` is not 0, node
            `i` receives from node `j`. Default: all nodes are connected.
        mask: Boolean tensor `(B, L)`, `True` for a real node.
        return_attention_scores: Whether to return `alpha` too. Defaults to `False`.
        training: Whether dropout is active.
        inputs_mask: The mask of `inputs`, which Keras passes here if there are several tensors.
            `mask` takes precedence.
        edges: Int tensor `(E, 2)` or `(B, E, 2)` instead of `adjacency`: rows `(sender, receiver)`,
            without duplicates; list an undirected edge in both directions. A row `(-1, -1)` is
            padding. In a compiled function, where ids cannot be checked, an edge of a node that
            the graph does not have is dropped.
        edge_weights: Numeric tensor `(E,)` or `(B, E)`. An edge of weight 0 is dropped; as in a
            dense adjacency, the values of other weights have no effect.

    Returns:
        Tensor `(B, L, H J)` for `"concat"`, `(B, L, J)` for `"mean"`; with
        `return_attention_scores` also `alpha` before dropout, `(B, H, L, L)`, or `(B, H, E)` for
        edges, followed by the `L` self-loops if `self_loops`.

    Raises:
        TypeError: For a list in place of an array.
        ValueError: For an unknown option, an adjacency without two or three axes, two graphs,
            `edge_weights` without `edges`, or an edge of a node that the graph does not have.

    Example:
        >>> x, edges = keras.ops.ones((1, 3, 4)), keras.ops.array([[0, 1], [1, 0]])
        >>> tuple(GraphAttention(num_heads=2, key_dim=5)(x, edges=edges).shape)
        (1, 3, 10)
    """

    call_shapes: ClassVar = {
        "inputs": "B L I",
        "adjacency": "L L | B? L L",
        "mask": "B? L",
        "inputs_mask": "B? L",
        "edges": "E 2 | B? E 2",
        "edge_weights": "E | B? E",
    }

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        head_combination: str = "concat",
        negative_slope: float = 0.2,
        self_loops: bool = True,
        dropout: float = 0.0,
        activation: Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, kernel_initializer, **kwargs)
        if head_combination not in _HEAD_COMBINATIONS:
            raise ValueError(
                f"Expected one of {_HEAD_COMBINATIONS}. "
                f"Received: head_combination={head_combination!r}"
            )
        self.head_combination = head_combination
        self.negative_slope = float(negative_slope)
        self.self_loops = self_loops
        self.dropout = check_rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        if width is None:
            raise ValueError(f"Expected a known last axis. Received: input_shape={input_shape}")
        key_dim = width if self.key_dim is None else self.key_dim
        self.kernel = self.add_weight(
            shape=(width, self.num_heads * key_dim),
            initializer=self.kernel_initializer.clone(),
            regularizer=self.kernel_regularizer,
            name="kernel",
        )
        self.attention_kernel = self.add_weight(
            shape=(2 * key_dim, self.num_heads),
            initializer=self.kernel_initializer.clone(),
            regularizer=self.kernel_regularizer,
            name="attention_kernel",
        )
        self.bias = None
        if self.use_bias:
            heads = (self.num_heads,) if self.head_combination == "concat" else ()
            self.bias = self.add_weight(shape=(*heads, key_dim), initializer="zeros", name="bias")
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )
        self.built = True

    def call(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        edges: Tensor | None = None,
        edge_weights: Tensor | None = None,
    ) -> Tensor:
        if adjacency is not None and edges is not None:
            raise ValueError(
                "Expected one graph, either `adjacency` or `edges`. Received: "
                f"adjacency={adjacency}, edges={edges}"
            )
        check_edge_weights(edges, edge_weights)
        mask = inputs_mask if mask is None else mask
        batch, length, _ = ops.shape(inputs)
        key_dim = self.attention_kernel.shape[0] // 2
        features = matmul(apply_mask(inputs, mask), self.kernel)
        features = ops.reshape(features, (batch, length, self.num_heads, key_dim))
        if edges is None:
            edges = self._edges(adjacency, mask, length)
            heads, scores, connected = self._attend(features, edges, training)
        else:
            graph = Edges(edges, batch, length, edge_weights, mask, self.self_loops)
            heads, scores, connected = self._attend_sparsely(features, graph, training)
        outputs = self._combine(heads, batch, length)
        if connected is not None:
            outputs = ops.where(connected, outputs, ops.zeros_like(outputs))
        return (outputs, scores) if return_attention_scores else outputs

    def _logits(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns `s` and `t`, `(..., H)`, of features `(..., H, J)`, in at least float32."""
        receiver, sender = ops.split(ops.transpose(self.attention_kernel), 2, axis=1)  # (H, J)
        precise = at_least_float32(self.compute_dtype)
        received, sent = (
            ops.cast(ops.sum(features * kernel, axis=-1), precise) for kernel in (receiver, sender)
        )
        return received, sent

    def _attend(
        self, features: Tensor, edges: Tensor | None, training: bool | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns heads `(B, L, H, J)`, `alpha` `(B, H, L, L)`, and which nodes have an edge."""
        received, sent = (ops.swapaxes(part, 1, 2) for part in self._logits(features))
        logits = leaky_relu(received[..., None] + sent[..., None, :], self.negative_slope)
        scores = masked_softmax(logits, None if edges is None else edges[:, None])
        scores = ops.cast(scores, self.compute_dtype)
        weights = self.dropout_layer(scores, training=training)
        heads = matmul(weights, ops.transpose(features, (0, 2, 1, 3)))
        connected = None if edges is None else ops.any(edges, axis=-1)[..., None]
        return ops.transpose(heads, (0, 2, 1, 3)), scores, connected

    def _attend_sparsely(
        self, features: Tensor, graph: Edges, training: bool | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns heads `(B, L, H, J)`, `alpha` `(B, H, E)`, and which nodes have an edge."""
        batch, length, num_heads, key_dim = ops.shape(features)
        features = ops.reshape(features, (graph.num_nodes, num_heads, key_dim))
        received, sent = self._logits(features)
        logits = ops.take(received, graph.receivers, axis=0) + ops.take(sent, graph.senders, axis=0)
        scores = graph.softmax(leaky_relu(logits, self.negative_slope))
        scores = ops.cast(scores, self.compute_dtype)
        weights = self.dropout_layer(scores, training=training)
        heads = graph.sum(weights[..., None] * ops.take(features, graph.senders, axis=0))
        connected = graph.sum(ops.cast(graph.valid, "int32")) > 0
        return (
            ops.reshape(heads, (batch, length, num_heads, key_dim)),
            ops.transpose(ops.reshape(scores, (batch, -1, num_heads)), (0, 2, 1)),
            ops.reshape(connected, (batch, length, 1)),
        )

    def _edges(self, adjacency: Tensor, mask: Tensor, length: Tensor) -> Tensor:
        """Returns booleans `(B or 1, L, L)`, or `None` if all nodes are connected."""
        edges = None
        loops = ops.eye(length, dtype="bool")[None]
        if adjacency is not None:
            if len(adjacency.shape) not in (2, 3):
                raise ValueError(
                    "Expected an adjacency (L, L) or (B, L, L). "
                    f"Received: adjacency.shape={tuple(adjacency.shape)}"
                )
            edges = ops.not_equal(adjacency, ops.zeros_like(adjacency))
            edges = edges[None] if len(adjacency.shape) == 2 else edges
            edges = ops.logical_or(edges, loops) if self.self_loops else edges
        elif not self.self_loops:
            edges = ops.logical_not(loops)
        if mask is None:
            return edges
        mask = ops.cast(mask, "bool")
        real = ops.logical_and(mask[:, :, None], mask[:, None, :])
        return real if edges is None else ops.logical_and(edges, real)

    def _combine(self, heads: Tensor, batch: Tensor, length: Tensor) -> Tensor:
        """Combines heads `(B, L, H, J)` to the outputs `(B, L, ...)`."""
        if self.head_combination == "mean":
            outputs = ops.mean(heads, axis=2)
            return self.activation(outputs if self.bias is None else outputs + self.bias)
        outputs = self.activation(heads if self.bias is None else heads + self.bias)
        return ops.reshape(outputs, (batch, length, outputs.shape[-2] * outputs.shape[-1]))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        key_dim = input_shape[-1] if self.key_dim is None else self.key_dim
        heads = self.num_heads if self.head_combination == "concat" else 1
        return (*input_shape[:2], heads * key_dim)

    def _scores_shape(
        self, input_shape: Shape, arguments: Mapping[str, Any]
    ) -> tuple[int | None, ...]:
        edges = arguments.get("edges")
        if edges is None:
            return super()._scores_shape(input_shape, arguments)
        batch, length = input_shape[:2]
        count = edges.shape[-2]
        if self.self_loops:
            count = None if count is None or length is None else count + length
        return (batch, self.num_heads, count)
