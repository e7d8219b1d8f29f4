"""Keras' layers with kernels and tables of integers in groups.

`quantized_layer` makes them of trained layers. They are layers of Keras with two more arguments:
`bits`, 2, 3, 4, 6 or 8, and `group_size`, the weights along the inputs of a unit that share a
scale (32 by default). A layer that is made from scratch has kernels of zeros.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.integer_groups import check_group_bits
from keras_small.storage.integer_kernels import IntegerKernels, Kernel, LoopKernels
from keras_small.storage.low_rank_cells import LOW_RANK_CELLS, RECURRENT, SIDES, LowRankKernels
from keras_small.storage.low_rank_einsum_dense import kernel_axes
from keras_small.storage.quantized_positions import (
    QuantizedPositionEmbedding,
    is_position_embedding,
)
from keras_small.storage.stand_ins import stand_in
from keras_tnattn.layers.base_layer import check_float
from keras_tnattn.layers.token_embedding import TokenEmbedding
from keras_tnattn.typing import Tensor


class _Kernel(IntegerKernels):
    kernel = Kernel()


class _Einsum(_Kernel):
    def _rows(self, name: str) -> tuple[int, ...]:
        # An axis that is in the inputs and in the outputs has a matrix of its own for each index.
        return tuple(kernel_axes(self.equation)[0]) or super()._rows(name)


class _Transposed(_Kernel):
    """A transposed convolution, whose kernel has the channels of the inputs last."""

    def _rows(self, name: str) -> tuple[int, ...]:
        return (len(self._kernel_shapes[name]) - 1,)


class _Depthwise(_Kernel):
    """A convolution of each channel apart, whose kernels `(..., C, m)` have few rows."""

    def _rows(self, name: str) -> tuple[int, ...]:
        if name == "pointwise_kernel":
            return super()._rows(name)
        return tuple(range(len(self._kernel_shapes[name]) - 2))


class _Separable(_Depthwise):
    depthwise_kernel = Kernel()
    pointwise_kernel = Kernel()
    kernel_names = ("depthwise_kernel", "pointwise_kernel")


class _Recurrent(LoopKernels, _Kernel):
    recurrent_kernel = Kernel()
    kernel_names = RECURRENT


class _LowRankRecurrent(LowRankKernels, IntegerKernels):
    kernel_left = Kernel()
    kernel_right = Kernel()
    recurrent_kernel_left = Kernel()
    recurrent_kernel_right = Kernel()
    kernel_names = tuple(f"{name}_{side}" for name in RECURRENT for side in SIDES)


class _Embedding(IntegerKernels):
    """An embedding with a table of integers in groups of features."""

    embeddings = Kernel()
    kernel_names: Any = ("embeddings",)

    def group_axis(self, name: str) -> int:
        return 1 if name == "embeddings" else 0

    def call(self, inputs: Tensor) -> Tensor:
        ids = ops.cast(inputs, "int32")
        table = stand_in(self, "embeddings")
        if table is not None:
            return ops.cast(ops.take(table, ids, axis=0), self.compute_dtype)
        # Takes rows of integers, and restores only these.
        *parts, largest = self._parts("embeddings")
        rows = [ops.take(ops.convert_to_tensor(part), ids, axis=0) for part in parts]
        return ops.cast(self._dequantized("embeddings", [*rows, largest]), self.compute_dtype)


class _ReversibleEmbedding(_Embedding):
    reverse_embeddings = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("embeddings",) if self.tie_weights else ("embeddings", "reverse_embeddings")

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return keras.layers.ReversibleEmbedding.call(self, inputs, reverse=True)
        return _Embedding.call(self, inputs)


class _TokenEmbedding(_Embedding):
    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return TokenEmbedding.call(self, inputs, reverse=True)
        self._reverse = False
        return _Embedding.call(self, inputs)


_BASES: dict[type[IntegerKernels], str] = {
    _Kernel: "Dense Conv1D Conv2D Conv3D",
    _Einsum: "EinsumDense",
    _Transposed: "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    _Depthwise: "DepthwiseConv1D DepthwiseConv2D",
    _Separable: "SeparableConv1D SeparableConv2D",
    _Recurrent: "SimpleRNNCell LSTMCell GRUCell",
    _Embedding: "Embedding",
    _ReversibleEmbedding: "ReversibleEmbedding",
}


def _of_integers(
    base: type[IntegerKernels], kind: type[keras.layers.Layer], name: str | None = None
) -> Any:
    """Makes and registers the class `Quantized...` that stands for a class of layers."""
    name = name or kind.__name__
    doc = f"`{name}` with its kernels, or its table, as integers."
    made = type(f"Quantized{name}", (base, kind), {"__doc__": doc, "__module__": __name__})
    return keras.saving.register_keras_serializable(package="keras_small")(made)


# The class that stands for each of Keras' layers, and of ours.
QUANTIZED: dict[type[keras.layers.Layer], type[IntegerKernels]] = {
    kind: _of_integers(base, kind)
    for base, names in _BASES.items()
    for kind in (getattr(keras.layers, name) for name in names.split())
}
QUANTIZED[TokenEmbedding] = _of_integers(_TokenEmbedding, TokenEmbedding)
for _kind, _cell in LOW_RANK_CELLS.items():
    QUANTIZED[_cell] = _of_integers(_LowRankRecurrent, _kind, _cell.__name__)


def quantized_kind(layer: keras.layers.Layer) -> type[IntegerKernels] | None:
    """Returns the class of integers that can stand for a layer, or `None`.

    A subclass counts as its base if it changes nothing, such as keras-hub's `ReversibleEmbedding`.

    Example:
        >>> quantized_kind(keras.layers.Dense(3)).__name__
        'QuantizedDense'
    """
    if is_position_embedding(layer):
        return QuantizedPositionEmbedding
    kind: Any = type(layer)
    # Functions and properties have `__get__`, but `__doc__` and labels that a registry sets do not.
    while kind not in QUANTIZED and not any(hasattr(x, "__get__") for x in vars(kind).values()):
        kind = kind.__base__
    return QUANTIZED.get(kind)


def quantized_layer(
    layer: keras.layers.Layer,
    bits: int,
    group_size: int = 32,
    moments: Mapping[str, np.ndarray] | None = None,
    step: float | None = None,
    symmetric: bool = False,
) -> keras.layers.Layer:
    """Returns a layer with the kernels of a trained layer as integers in groups.

    Args:
        layer: A built layer of one of the classes in `QUANTIZED`, of float weights. It does not
            change.
        bits: 2, 3, 4, 6 or 8.
        group_size: Weights along the inputs of a unit that share a scale. Defaults to 32.
        moments: The second moment `(n, n)` of the inputs of each kernel as a matrix `(n, m)`, by
            its name; for a convolution that of patches. The errors of the outputs are then
            smaller. Default: the errors of the kernels count.
        step: The scale of all groups of a kernel, as a share of the root of the mean square of its
            weights, for files whose integers are coded. Default: each group has its own.
        symmetric: Whether the middle integer of a kernel stands for 0, for runtimes that multiply
            with signed integers. Defaults to `False`.

    Returns:
        A built layer of the same name. Its kernels cannot be trained, its biases can.

    Raises:
        ValueError: If the layer is of another kind, not built or quantized, or `bits` or
            `group_size` is out of range.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage.quantized import quantized_layer
        >>> conv = keras.layers.Conv2D(16, 3)
        >>> conv.build((None, 8, 8, 32))
        >>> small = quantized_layer(conv, bits=4)
        >>> tuple(small(np.ones((1, 8, 8, 32), "float32")).shape)
        (1, 6, 6, 16)
        >>> int(sum(np.prod(w.shape) * np.dtype(w.dtype).itemsize for w in small.weights))
        2596
    """
    check_group_bits(bits)
    kind = quantized_kind(layer)
    if kind is None:
        names = ", ".join(layer.__name__ for layer in QUANTIZED)
        raise ValueError(f"Expected a layer of one of the classes {names}. Received: {layer!r}")
    if not layer.built:
        raise ValueError(f"Expected a built layer. Received: layer={layer.name}, not built")
    check_float(layer)
    if getattr(layer, "lora_enabled", False):
        raise ValueError(f"Expected a layer without LoRA. Received: layer={layer.name} with one")
    return kind.from_layer(layer, bits, group_size, moments, step, symmetric)
