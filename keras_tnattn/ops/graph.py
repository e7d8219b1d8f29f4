"""Graphs: Laplacians, the graph Fourier transform, spectral convolution, sums over edges.

A graph of `L` nodes is either an adjacency `A`, `(L, L)`, with the weight `A[i, j]` with which node
`i` receives from node `j` (section 2.2 of Xu et al., "A Tensorized Spectral Attention Mechanism for
Efficient Natural Language Processing"), or a list of edges `(sender, receiver)`, whose memory grows
with the number of edges instead of `L^2`.
"""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_tnattn.ops.precision import matmul, widen
from keras_tnattn.typing import Tensor

_LOWEST = float(np.finfo("float32").min)
NORMALIZATIONS = (None, "symmetric", "random_walk")


def laplacian(adjacency: Tensor, normalization: str | None = None) -> Tensor:
    """Returns the Laplacian of a graph, with the degrees `D = diag(A 1)`.

        None             D - A
        "symmetric"      I - D^(-1/2) A D^(-1/2)
        "random_walk"    I - D^(-1) A

    Args:
        adjacency: Float tensor `(..., L, L)` of non-negative weights.
        normalization: `None` (default), `"symmetric"` or `"random_walk"`. A node without edges has
            a row of zeros in all three.

    Returns:
        Tensor `(..., L, L)`.

    Raises:
        ValueError: For an unknown normalization.

    Example:
        >>> import keras
        >>> path = keras.ops.array([[0.0, 2.0], [2.0, 0.0]])
        >>> keras.ops.convert_to_numpy(laplacian(path)).tolist()
        [[2.0, -2.0], [-2.0, 2.0]]
    """
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"Expected one of {NORMALIZATIONS}. Received: normalization={normalization!r}"
        )
    degrees = ops.sum(adjacency, axis=-1)
    if normalization == "symmetric":
        scale = inverse_root(degrees)
        adjacency = scale[..., :, None] * adjacency * scale[..., None, :]
    elif normalization == "random_walk":
        adjacency = ops.square(inverse_root(degrees))[..., None] * adjacency
    if normalization is not None:
        degrees = ops.cast(degrees > 0, adjacency.dtype)
    identity = ops.eye(adjacency.shape[-1], dtype=adjacency.dtype)
    return degrees[..., None] * identity - adjacency


def inverse_root(x: Tensor) -> Tensor:
    """Returns `x^(-1/2)`, and 0 where `x` is not positive.

    Example:
        >>> import keras
        >>> keras.ops.convert_to_numpy(inverse_root(keras.ops.array([4.0, 0.0]))).tolist()
        [0.5, 0.0]
    """
    positive = x > 0
    root = ops.rsqrt(ops.where(positive, x, ops.ones_like(x)))
    return ops.where(positive, root, ops.zeros_like(root))


def graph_fourier_basis(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the frequencies and the Fourier basis of an undirected graph.

    They are the eigenvalues and eigenvectors of a symmetric matrix `Phi diag(lambda) Phi^T`: a
    Laplacian, whose smallest eigenvalues are the low frequencies, or an adjacency, whose largest
    eigenvalues are the low frequencies. The cost is `O(L^3)`.

    Args:
        matrix: Symmetric float tensor `(L, L)`.

    Returns:
        Eigenvalues `(L,)` in ascending order and the basis `Phi`, `(L, L)`, with a column for each.

    Example:
        >>> import keras
        >>> frequencies, basis = graph_fourier_basis(keras.ops.eye(3))
        >>> tuple(basis.shape)
        (3, 3)
    """
    frequencies, basis = ops.linalg.eigh(matrix)
    return frequencies, basis


def graph_fourier_transform(x: Tensor, basis: Tensor, inverse: bool = False) -> Tensor:
    """Returns `Phi^T x`, or `Phi x` for the inverse transform.

    Args:
        x: Float tensor `(..., L, I)`: signals on the nodes, or their spectra.
        basis: The basis `Phi`, `(L, L)`.
        inverse: Whether to transform spectra to signals. Defaults to `False`.

    Returns:
        Tensor `(..., L, I)`.

    Example:
        >>> import keras
        >>> tuple(graph_fourier_transform(keras.ops.ones((2, 3, 4)), keras.ops.eye(3)).shape)
        (2, 3, 4)
    """
    return matmul(basis if inverse else ops.transpose(basis), x)


def spectral_convolution(x: Tensor, basis: Tensor, multipliers: Tensor) -> Tensor:
    """Multiplies the spectrum of signals by multipliers: `y_o = sum_i Phi Gamma_io Phi^T x_i`.

    Args:
        x: Float tensor `(..., L, I)`.
        basis: The basis `Phi`, `(L, L)`.
        multipliers: Tensor `(L,)`, one diagonal `Gamma` for all features, or `(L, I, O)`, one for
            each pair of an input and an output feature, summed over the inputs.

    Returns:
        Tensor `(..., L, I)`, or `(..., L, O)`, for `2 L^2 (I + O) + 2 L I O` FLOPs.

    Example:
        >>> import keras
        >>> x, basis = keras.ops.ones((2, 3, 4)), keras.ops.eye(3)
        >>> tuple(spectral_convolution(x, basis, keras.ops.ones((3, 4, 5))).shape)
        (2, 3, 5)
    """
    spectrum = graph_fourier_transform(x, basis)
    if len(multipliers.shape) == 1:
        spectrum = multipliers[:, None] * spectrum
    else:
        spectrum = ops.einsum("...li,lio->...lo", spectrum, multipliers)
    return graph_fourier_transform(spectrum, basis, inverse=True)


def check_edge_weights(edges: Tensor | None, edge_weights: Tensor | None) -> None:
    """Refuses weights without the edges that they are for.

    Example:
        >>> check_edge_weights(None, None)
    """
    if edge_weights is not None and edges is None:
        raise ValueError(
            "Expected edge_weights only with edges; put the weights of a dense graph into its "
            f"adjacency. Received: edges=None, edge_weights={edge_weights}"
        )


def check_edges(edges: Tensor, length: int | None) -> None:
    """Refuses ids of nodes that a graph does not have, if the values of the edges are known.

    In a compiled function they are not: there such edges are dropped.

    Args:
        edges: Rows `(sender, receiver)`, `(..., 2)`; a row `(-1, -1)` is padding.
        length: The number `L` of nodes, if it is known.

    Raises:
        ValueError: If an id is not an integer in `[0, L)`.

    Example:
        >>> import numpy as np
        >>> check_edges(np.array([[0, 1], [-1, -1]]), length=2)
        >>> check_edges(np.array([[0, 2]]), length=2)
        Traceback (most recent call last):
            ...
        ValueError: Expected edges of nodes 0 to 1, or (-1, -1) for padding. Received: (0, 2)
    """
    values = _known_values(edges)
    if length is None or values is None:
        return
    rows = values.reshape(-1, 2)
    is_padding = (rows == -1).all(axis=-1)
    is_edge = ((rows >= 0) & (rows < length) & (rows == np.floor(rows))).all(axis=-1)
    wrong = rows[~(is_padding | is_edge)]
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"Expected edges of nodes 0 to {length - 1}, or (-1, -1) for padding. "
            f"Received: ({sender}, {receiver}){more}"
        )


def _known_values(tensor: Tensor) -> np.ndarray | None:
    """Returns the values of a tensor, or `None` while a function of it is compiled."""
    if isinstance(tensor, keras.KerasTensor):
        return None
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except Exception:  # each backend has its own error
        return None


class Edges:
    """The edges of a batch of graphs, as one graph of `B L` nodes.

    Args:
        edges: Int tensor `(E, 2)`, the same for all graphs, or `(B, E, 2)`: rows
            `(sender, receiver)`. A row with an id outside `[0, L)` is dropped.
        batch: Number `B` of graphs; an int or a scalar int tensor.
        length: Number `L` of nodes in each graph; an int or a scalar int tensor.
        weights: Float tensor `(E,)` or `(B, E)`. Default: 1 for each edge.
        mask: Boolean tensor `(B, L)`, `True` for a real node; edges of other nodes are dropped.
        self_loops: Whether each node sends to itself with weight 1; loops in `edges` are then
            dropped. Defaults to `False`.

    Attributes:
        senders: Node ids `(B E',)`, graph after graph, `E' = E` or, with self-loops, `E + L`.
        receivers: Node ids `(B E',)`.
        valid: Booleans `(B E',)`, `False` for edges that are dropped.
        weights: Weights `(B E',)`, 0 for edges that are dropped, or `None`.

    Example:
        >>> import keras
        >>> graph = Edges(keras.ops.array([[0, 1], [1, 2]]), batch=2, length=3)
        >>> keras.ops.convert_to_numpy(graph.sum(keras.ops.ones((4, 1)))).ravel().tolist()
        [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        edges: Tensor,
        batch: Tensor,
        length: Tensor,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        self_loops: bool = False,
    ) -> None:
        if len(edges.shape) not in (2, 3) or edges.shape[-1] != 2:
            raise ValueError(
                f"Expected edges (E, 2) or (B, E, 2). Received: edges.shape={tuple(edges.shape)}"
            )
        edges = ops.cast(edges, "int32")
        edges = ops.broadcast_to(edges, (batch, *ops.shape(edges)[-2:]))
        inside = ops.logical_and(edges >= 0, edges < length)
        valid = ops.all(inside, axis=-1)
        if weights is not None:
            weights = ops.broadcast_to(weights, ops.shape(edges)[:2])
        if self_loops:
            valid = ops.logical_and(valid, ops.not_equal(edges[..., 0], edges[..., 1]))
            nodes = ops.broadcast_to(ops.arange(length, dtype="int32"), (batch, length))
            edges = ops.concatenate([edges, ops.stack([nodes, nodes], axis=-1)], axis=1)
            valid = ops.concatenate([valid, ops.ones_like(nodes, dtype="bool")], axis=1)
            if weights is not None:
                ones = ops.ones_like(nodes, dtype=weights.dtype)
                weights = ops.concatenate([weights, ones], axis=1)
        first = ops.arange(batch, dtype="int32")[:, None, None] * length
        # Padding becomes an edge of node 0, which is dropped.
        edges = ops.reshape(first + ops.where(valid[..., None], edges, 0), (-1, 2))
        self.num_nodes = batch * length
        self.senders, self.receivers = edges[:, 0], edges[:, 1]
        valid = ops.reshape(valid, (-1,))
        if mask is not None:
            real = ops.broadcast_to(ops.cast(mask, "bool"), (batch, length))
            real = ops.reshape(real, (-1,))
            for ends in (self.senders, self.receivers):
                valid = ops.logical_and(valid, ops.take(real, ends, axis=0))
        self.valid = valid
        self.weights = None
        if weights is not None:
            weights = ops.reshape(weights, (-1,))
            self.valid = ops.logical_and(valid, weights != 0)
            self.weights = ops.where(self.valid, weights, ops.zeros_like(weights))

    def sum(self, messages: Tensor) -> Tensor:
        """Sums the messages `(B E', ...)` that each node receives; returns `(B L, ...)`."""
        valid = ops.reshape(self.valid, (-1, *[1] * (len(messages.shape) - 1)))
        messages = ops.where(valid, messages, ops.zeros_like(messages))
        # Hubs sum more terms than half precision holds.
        sums = ops.segment_sum(widen(messages), self.receivers, num_segments=self.num_nodes)
        return ops.cast(sums, messages.dtype)

    def softmax(self, scores: Tensor) -> Tensor:
        """Normalizes scores `(B E', H)` over the edges of each receiver; dropped edges get 0."""
        dtype = scores.dtype
        valid = self.valid[:, None]
        scores = widen(scores)
        scores = ops.where(valid, scores, ops.full_like(scores, _LOWEST))
        largest = self._segment(ops.segment_max, ops.stop_gradient(scores))
        powers = ops.exp(scores - largest)
        powers = ops.where(valid, powers, ops.zeros_like(powers))
        total = self._segment(ops.segment_sum, powers)
        shares = powers / ops.where(total > 0, total, ops.ones_like(total))
        return ops.cast(shares, dtype)

    def _segment(self, reduce: Callable, x: Tensor) -> Tensor:
        """Reduces `x` over the edges of each receiver; returns that result for each edge."""
        reduced = reduce(x, self.receivers, num_segments=self.num_nodes)
        return ops.take(reduced, self.receivers, axis=0)
