"""Convolution on a fixed graph with trained multipliers of the spectrum."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import graph
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.typing import Activation, Shape, Tensor


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
        if normalization not in (None, "symmetric"):
            raise ValueError(
                f"Expected None or 'symmetric'. Received: normalization={normalization!r}"
            )
        self.adjacency = adjacency
        self.units = check_int("units", units)
        self.normalization = normalization
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.supports_masking = True
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
        laplacian = graph.laplacian(ops.convert_to_tensor(self.adjacency), self.normalization)
        _, basis = np.linalg.eigh(ops.convert_to_numpy(laplacian).astype("float64"))
        self.basis = self.add_weight(
            shape=basis.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(basis, dtype),
            trainable=False,
            name="basis",
        )
        self.built = True

    def load_own_variables(self, store: Any) -> None:
        keys = list(store.keys())
        if len(keys) == len(self.weights) - 1 and tuple(store[keys[-1]].shape) != self.basis.shape:
            # Older files have no basis, the last weight; they get the one that is computed here.
            store = {**{key: store[key] for key in keys}, str(len(keys)): self.basis}
        super().load_own_variables(store)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        # The number of nodes is known even if the shape of the inputs does not have it.
        batch, _, width = ops.shape(inputs)
        x = ops.reshape(apply_mask(inputs, mask), (batch, len(self.adjacency), width))
        y = graph.spectral_convolution(x, ops.convert_to_tensor(self.basis), self.multipliers)
        y = self.activation(y if self.bias is None else y + self.bias)
        return apply_mask(y, mask)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "adjacency": self.adjacency.tolist(),
            "units": self.units,
            "normalization": self.normalization,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
        }
