"""Graph convolutions: with the edges of each call, and with fixed filters."""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import graph
from keras_tnattn.ops.graph import Edges, check_edge_weights, inverse_root
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Activation, Initializer, Regularizer, Shape, Tensor

_NORMALIZATIONS = (None, "symmetric")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class GraphConvolution(BaseLayer):
    """Dense layer on the nodes of a graph, followed by a weighted sum over the neighbors.

        Y = eps((I + A) X W + b)                                  normalization=None
        Y = eps(D^(-1/2) (I + A) D^(-1/2) X W + b)                "symmetric", D = diag((I + A) 1)
        Y = eps((alpha_0 I + ... + alpha_{F-1} A^{F-1}) X W + b)  filter_order=F

    (Xu et al., "Low-Complexity Attention Modelling via Graph Tensor Networks", section 2; Kipf and
    Welling, 2017, https://arxiv.org/abs/1609.02907, for the symmetric normalization; the graph
    filter is equation 1 of Xu et al., "A Tensorized Spectral Attention Mechanism"). Row `i` of `A`
    holds the weights of the edges to node `i`. In a graph filter with the symmetric normalization,
    `D^(-1/2) A D^(-1/2)` with `D = diag(A 1)` replaces `A`.

    The layer has `I J + J` weights and, with a graph filter, `F` coefficients. A dense adjacency
    costs `2 L^2 J` FLOPs per power and `O(L^2)` memory, a list of `E` edges `2 E J` FLOPs per
    power and `O(E J)` memory.

    A masked node neither sends nor receives; its output is 0, and other outputs do not change.

    Args:
        units: Int, the size `J` of the output.
        normalization: `None` (default) or `"symmetric"`.
        filter_order: Int, the number `F >= 2` of coefficients of a graph filter, trained from
            `(1, 1, 0, ...)`. Default: `I + A`, without coefficients.
        activation: Activation function. Default: none.
        use_bias: Whether to add a bias. Defaults to `True`.
        kernel_initializer: Initializer of `W`. Defaults to `"glorot_uniform"`.
        kernel_regularizer: Regularizer applied to `W`.

    Call arguments:
        inputs: Float tensor `(B, L, I)`: batch, nodes, features. `B` and `L` may be unknown.
        adjacency: Float or boolean tensor `(L, L)` or `(B, L, L)`. Pass this or `edges`.
        mask: Boolean tensor `(B, L)`, `True` for a real node.
        training: Has no effect; accepted as in Keras' layers.
        inputs_mask: The mask of `inputs`, which Keras passes here if there are several tensors.
            `mask` takes precedence.
        edges: Int tensor `(E, 2)` or `(B, E, 2)`: rows `(sender, receiver)`; list an undirected
            edge in both directions. A row `(-1, -1)` is padding. In a compiled function, where ids
            cannot be checked, an edge of a node that the graph does not have is dropped.
        edge_weights: Float tensor `(E,)` or `(B, E)`, the weights of `edges`. Default: 1.

    Returns:
        Tensor `(B, L, J)`.

    Raises:
        TypeError: For a list in place of an array.
        ValueError: For an unknown option, a call without a graph or with two, `edge_weights`
            without `edges`, or an edge of a node that the graph does not have.

    Example:
        >>> x, edges = keras.ops.ones((1, 3, 4)), keras.ops.array([[0, 1], [1, 0]])
        >>> tuple(GraphConvolution(5)(x, edges=edges).shape)
        (1, 3, 5)
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
        units: int,
        normalization: str | None = None,
        filter_order: int | None = None,
        activation: Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if normalization not in _NORMALIZATIONS:
            raise ValueError(
                f"Expected one of {_NORMALIZATIONS}. Received: normalization={normalization!r}"
            )
        self.units = check_int("units", units)
        self.normalization = normalization
        self.filter_order = (
            None if filter_order is None else check_int("filter_order", filter_order, at_least=2)
        )
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] is None:
            raise ValueError(f"Expected a known last axis. Received: input_shape={input_shape}")
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            name="kernel",
        )
        self.coefficients = None
        if self.filter_order is not None:
            self.coefficients = self.add_weight(
                shape=(self.filter_order,),
                initializer=lambda shape, dtype: ops.cast(ops.arange(shape[0]) < 2, dtype),
                name="coefficients",
            )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")
        self.built = True

    def call(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        edges: Tensor | None = None,
        edge_weights: Tensor | None = None,
    ) -> Tensor:
        if (adjacency is None) == (edges is None):
            raise ValueError(
                "Expected a graph, either `adjacency` or `edges`. Received: "
                f"adjacency={adjacency}, edges={edges}"
            )
        check_edge_weights(edges, edge_weights)
        mask = inputs_mask if mask is None else mask
        x = matmul(apply_mask(inputs, mask), self.kernel)
        if edges is None:
            receive = self._dense(adjacency, mask, x)
        else:
            receive = self._sparse(edges, edge_weights, mask, x)
        if self.coefficients is None:
            y = receive(x)
        else:
            last = self.coefficients.shape[0] - 1
            y = self.coefficients[last] * x
            for k in reversed(range(last)):
                y = self.coefficients[k] * x + receive(y)
        y = y if self.bias is None else y + self.bias
        return apply_mask(self.activation(y), mask)

    @property
    def _adds_identity(self) -> bool:
        return self.filter_order is None

    def _dense(
        self, adjacency: Tensor, mask: Tensor | None, x: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """Returns the product with `I + A` or `A`, normalized, for a dense adjacency."""
        matrix = ops.cast(adjacency, x.dtype)
        matrix = matrix[None] if len(matrix.shape) == 2 else matrix
        if mask is not None:
            # Degrees do not count masked neighbors.
            mask = ops.cast(mask, "bool")
            matrix = ops.where(mask[:, None, :], matrix, ops.zeros_like(matrix))
        if self._adds_identity:
            matrix = matrix + ops.eye(ops.shape(x)[1], dtype=x.dtype)
        if self.normalization == "symmetric":
            scale = inverse_root(ops.sum(matrix, axis=-1))
            matrix = scale[:, :, None] * matrix * scale[:, None, :]
        return lambda y: matmul(matrix, y)

    def _sparse(
        self, edges: Tensor, edge_weights: Tensor | None, mask: Tensor | None, x: Tensor
    ) -> Callable[[Tensor], Tensor]:
        """Returns the same product for a list of edges."""
        batch, length, width = ops.shape(x)
        if edge_weights is None:
            edge_weights = ops.ones(ops.shape(edges)[:-1], x.dtype)
        graph = Edges(edges, batch, length, ops.cast(edge_weights, x.dtype), mask)
        weights: Tensor = graph.weights
        loops = ops.full((batch * length, 1), 1.0 if self._adds_identity else 0.0, x.dtype)
        if self.normalization == "symmetric":
            scale = inverse_root(graph.sum(weights) + loops[:, 0])
            ends = (ops.take(scale, ends, axis=0) for ends in (graph.senders, graph.receivers))
            for end in ends:
                weights = weights * end
            loops = loops * ops.square(scale)[:, None]

        def receive(y: Tensor) -> Tensor:
            y = ops.reshape(y, (-1, width))
            received = graph.sum(weights[:, None] * ops.take(y, graph.senders, axis=0))
            return ops.reshape(loops * y + received, (batch, length, width))

        return receive

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    def compute_output_spec(self, inputs: Tensor, *args: Any, **kwargs: Any) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class SpectralGraphConvolution(BaseLayer):
    """Multiplies the graph Fourier transform of the features by trained multipliers.

        y_o = eps(sum_i Phi Gamma_io Phi^T x_i + b_o)

    with the eigenvectors `Phi` of the graph's Laplacian and a diagonal `Gamma_io` for each pair of
    an input and an output feature (section 2.2 of Xu et al., "A Tensorized Spectral Attention
    Mechanism for Efficient Natural Language Processing"). The graph is fixed and part of the
    layer's config, so the layer is meant for graphs of up to about a thousand nodes.

    The layer has `L I J + J` trained weights and costs `2 L^2 (I + J) + 2 L I J` FLOPs. The basis,
    `(L, L)`, is saved with them: eigenvectors of equal eigenvalues are not unique, so that another
    backend could compute others, for which the multipliers were not trained.

    A masked node counts as a node with features 0, and its output is 0.

    Args:
        adjacency: Symmetric array `(L, L)` of non-negative weights, the graph.
        units: Int, the size `J` of the output.
        normalization: Normalization of the Laplacian, `"symmetric"` (default) or `None`.
        activation: Activation function. Default: none.
        use_bias: Whether to add a bias. Defaults to `True`.

    Call arguments:
        inputs: Float tensor `(B, L, I)`: batch, nodes, features.
        mask: Boolean tensor `(B, L)`, `True` for a real node.

    Returns:
        Tensor `(B, L, J)`.

    Raises:
        ValueError: If the adjacency is not square and symmetric, or the inputs have another number
            of nodes.

    Example:
        >>> ring = keras.ops.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
        >>> tuple(SpectralGraphConvolution(ring, units=5)(keras.ops.ones((2, 3, 4))).shape)
        (2, 3, 5)
    """

    call_shapes: ClassVar = {"inputs": "B L I", "mask": "B? L"}

    def __init__(
        self,
        adjacency: Tensor,
        units: int,
        normalization: str | None = "symmetric",
        activation: Activation | None = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        adjacency = np.asarray(ops.convert_to_numpy(adjacency), "float32")
        square = adjacency.ndim == 2 and adjacency.shape[0] == adjacency.shape[1]
        if not square or not np.array_equal(adjacency, adjacency.T):
            raise ValueError(
                "Expected a symmetric adjacency (L, L). "
                f"Received: adjacency.shape={adjacency.shape}"
            )
        if adjacency.size and adjacency.min() < 0:
            raise ValueError(
                "Expected an adjacency of weights that are not negative. Received: "
                f"adjacency with a weight of {adjacency.min():g}"
            )
        if normalization not in (None, "symmetric"):
            raise ValueError(
                f"Expected None or 'symmetric'. Received: normalization={normalization!r}"
            )
        self.adjacency = adjacency
        self.units = check_int("units", units)
        self.normalization = normalization
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={1: len(adjacency)})

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        # Each frequency has its own dense kernel, with the limit of the Glorot uniform initializer.
        limit = (6 / (width + self.units)) ** 0.5
        self.multipliers = self.add_weight(
            shape=(len(self.adjacency), width, self.units),
            initializer=keras.initializers.RandomUniform(-limit, limit),
            name="multipliers",
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")
        basis = _frequencies(self.adjacency, self.normalization)
        self.basis = self.add_weight(
            shape=basis.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(basis, dtype),
            trainable=False,
            name="basis",
        )
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        # The number of nodes is known even if the shape of the inputs does not have it.
        batch, _, width = ops.shape(inputs)
        x = ops.reshape(apply_mask(inputs, mask), (batch, len(self.adjacency), width))
        y = graph.spectral_convolution(x, ops.convert_to_tensor(self.basis), self.multipliers)
        y = self.activation(y if self.bias is None else y + self.bias)
        return apply_mask(y, mask)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "adjacency": self.adjacency.tolist()}


def _frequencies(adjacency: np.ndarray, normalization: str | None) -> np.ndarray:
    """Returns the eigenvectors of a graph's Laplacian, as `graph.laplacian` defines it.

    By NumPy, because a backend that builds the layer in a graph has no numbers yet.
    """
    adjacency = adjacency.astype("float64")
    degrees = adjacency.sum(axis=1)
    if normalization == "symmetric":
        connected = degrees > 0
        scale = np.where(connected, degrees, 1.0) ** -0.5
        adjacency = scale[:, None] * adjacency * scale
        degrees = connected.astype("float64")
    return np.linalg.eigh(np.diag(degrees) - adjacency)[1]
