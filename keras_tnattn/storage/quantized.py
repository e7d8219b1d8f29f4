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

from keras_tnattn.layers.base_layer import check_float
from keras_tnattn.layers.token_embedding import TokenEmbedding
from keras_tnattn.storage.integer_groups import check_group_bits
from keras_tnattn.storage.integer_kernels import PARTS, IntegerKernels, Kernel, LoopKernels
from keras_tnattn.storage.low_rank_cells import (
    RECURRENT,
    SIDES,
    LowRankGRUCell,
    LowRankKernels,
    LowRankLSTMCell,
    LowRankSimpleRNNCell,
)
from keras_tnattn.storage.low_rank_einsum_dense import kernel_axes
from keras_tnattn.storage.quantized_positions import (
    QuantizedPositionEmbedding,
    is_position_embedding,
)
from keras_tnattn.storage.stand_ins import stand_in
from keras_tnattn.typing import Tensor

_register = keras.saving.register_keras_serializable(package="keras_tnattn")


@_register
class QuantizedDense(IntegerKernels, keras.layers.Dense):
    """`keras.layers.Dense` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedEinsumDense(IntegerKernels, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` with a kernel of integers."""

    kernel = Kernel()

    def _rows(self, name: str) -> tuple[int, ...]:
        # An axis that is in the inputs and in the outputs has a matrix of its own for each index.
        return tuple(kernel_axes(self.equation)[0]) or super()._rows(name)


@_register
class QuantizedConv1D(IntegerKernels, keras.layers.Conv1D):
    """`keras.layers.Conv1D` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedConv2D(IntegerKernels, keras.layers.Conv2D):
    """`keras.layers.Conv2D` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedConv3D(IntegerKernels, keras.layers.Conv3D):
    """`keras.layers.Conv3D` with a kernel of integers."""

    kernel = Kernel()


class _Transposed(IntegerKernels):
    """A transposed convolution, whose kernel has the channels of the inputs last."""

    def _rows(self, name: str) -> tuple[int, ...]:
        return (len(self._kernel_shapes[name]) - 1,)


@_register
class QuantizedConv1DTranspose(_Transposed, keras.layers.Conv1DTranspose):
    """`keras.layers.Conv1DTranspose` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedConv2DTranspose(_Transposed, keras.layers.Conv2DTranspose):
    """`keras.layers.Conv2DTranspose` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedConv3DTranspose(_Transposed, keras.layers.Conv3DTranspose):
    """`keras.layers.Conv3DTranspose` with a kernel of integers."""

    kernel = Kernel()


class _Depthwise(IntegerKernels):
    """A convolution of each channel apart, whose kernels `(..., C, m)` have few rows."""

    def _rows(self, name: str) -> tuple[int, ...]:
        if name == "pointwise_kernel":
            return super()._rows(name)
        return tuple(range(len(self._kernel_shapes[name]) - 2))


@_register
class QuantizedDepthwiseConv1D(_Depthwise, keras.layers.DepthwiseConv1D):
    """`keras.layers.DepthwiseConv1D` with a kernel of integers."""

    kernel = Kernel()


@_register
class QuantizedDepthwiseConv2D(_Depthwise, keras.layers.DepthwiseConv2D):
    """`keras.layers.DepthwiseConv2D` with a kernel of integers."""

    kernel = Kernel()


class _Separable(_Depthwise):
    depthwise_kernel = Kernel()
    pointwise_kernel = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return ("depthwise_kernel", "pointwise_kernel")


@_register
class QuantizedSeparableConv1D(_Separable, keras.layers.SeparableConv1D):
    """`keras.layers.SeparableConv1D` with kernels of integers."""


@_register
class QuantizedSeparableConv2D(_Separable, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D` with kernels of integers."""


class _Recurrent(LoopKernels, IntegerKernels):
    kernel = Kernel()
    recurrent_kernel = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return ("kernel", "recurrent_kernel")


@_register
class QuantizedSimpleRNNCell(_Recurrent, keras.layers.SimpleRNNCell):
    """`keras.layers.SimpleRNNCell` with kernels of integers."""


@_register
class QuantizedLSTMCell(_Recurrent, keras.layers.LSTMCell):
    """`keras.layers.LSTMCell` with kernels of integers."""


@_register
class QuantizedGRUCell(_Recurrent, keras.layers.GRUCell):
    """`keras.layers.GRUCell` with kernels of integers."""


class _LowRankRecurrent(LowRankKernels, IntegerKernels):
    kernel_left = Kernel()
    kernel_right = Kernel()
    recurrent_kernel_left = Kernel()
    recurrent_kernel_right = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(f"{name}_{side}" for name in RECURRENT for side in SIDES)


@_register
class QuantizedLowRankSimpleRNNCell(_LowRankRecurrent, keras.layers.SimpleRNNCell):
    """`LowRankSimpleRNNCell` with factors of integers."""


@_register
class QuantizedLowRankLSTMCell(_LowRankRecurrent, keras.layers.LSTMCell):
    """`LowRankLSTMCell` with factors of integers."""


@_register
class QuantizedLowRankGRUCell(_LowRankRecurrent, keras.layers.GRUCell):
    """`LowRankGRUCell` with factors of integers."""


@_register
class QuantizedEmbedding(IntegerKernels, keras.layers.Embedding):
    """`keras.layers.Embedding` with a table of integers in groups of features."""

    embeddings = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return ("embeddings",)

    def group_axis(self, name: str) -> int:
        return 1 if name == "embeddings" else 0

    def call(self, inputs: Tensor) -> Tensor:
        ids = ops.cast(inputs, "int32")
        table = stand_in(self, "embeddings")
        if table is not None:
            return ops.cast(ops.take(table, ids, axis=0), self.compute_dtype)
        # Takes rows of integers, and restores only these.
        parts = [ops.convert_to_tensor(getattr(self, f"embeddings_{part}")) for part in PARTS]
        rows = [ops.take(part, ids, axis=0) for part in parts[:-1]]
        return ops.cast(self._dequantized("embeddings", [*rows, parts[-1]]), self.compute_dtype)


@_register
class QuantizedReversibleEmbedding(keras.layers.ReversibleEmbedding, QuantizedEmbedding):
    """`keras.layers.ReversibleEmbedding` with a table, or two, of integers."""

    reverse_embeddings = Kernel()

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return ("embeddings",) if self.tie_weights else ("embeddings", "reverse_embeddings")

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        IntegerKernels.quantize(self, mode, **kwargs)


@_register
class QuantizedTokenEmbedding(QuantizedEmbedding, TokenEmbedding):
    """`TokenEmbedding` with a table of integers in groups of features."""

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return TokenEmbedding.call(self, inputs, reverse=True)
        self._reverse = False
        return QuantizedEmbedding.call(self, inputs)


# The class that stands for each of Keras' layers, and of ours.
QUANTIZED: dict[type[keras.layers.Layer], type[IntegerKernels]] = {
    keras.layers.Dense: QuantizedDense,
    keras.layers.EinsumDense: QuantizedEinsumDense,
    keras.layers.Conv1D: QuantizedConv1D,
    keras.layers.Conv2D: QuantizedConv2D,
    keras.layers.Conv3D: QuantizedConv3D,
    keras.layers.Conv1DTranspose: QuantizedConv1DTranspose,
    keras.layers.Conv2DTranspose: QuantizedConv2DTranspose,
    keras.layers.Conv3DTranspose: QuantizedConv3DTranspose,
    keras.layers.DepthwiseConv1D: QuantizedDepthwiseConv1D,
    keras.layers.DepthwiseConv2D: QuantizedDepthwiseConv2D,
    keras.layers.SeparableConv1D: QuantizedSeparableConv1D,
    keras.layers.SeparableConv2D: QuantizedSeparableConv2D,
    keras.layers.SimpleRNNCell: QuantizedSimpleRNNCell,
    keras.layers.LSTMCell: QuantizedLSTMCell,
    keras.layers.GRUCell: QuantizedGRUCell,
    LowRankSimpleRNNCell: QuantizedLowRankSimpleRNNCell,
    LowRankLSTMCell: QuantizedLowRankLSTMCell,
    LowRankGRUCell: QuantizedLowRankGRUCell,
    keras.layers.Embedding: QuantizedEmbedding,
    keras.layers.ReversibleEmbedding: QuantizedReversibleEmbedding,
    TokenEmbedding: QuantizedTokenEmbedding,
}


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
        moments: By the name of a kernel the second moment `(n, n)` of what it multiplies as a
            matrix `(n, m)`, of a convolution of its patches; the errors of the outputs are then
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
        >>> from keras_tnattn.storage.quantized import quantized_layer
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
