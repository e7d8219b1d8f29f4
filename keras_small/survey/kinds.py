"""The kinds of layers that can be replaced, known by what they compute and not by their class.

A kind is a class of Keras or of this package. A layer of a subclass is of this kind, too, unless
the subclass computes something else.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.integer_kernels import IntegerKernels
from keras_small.storage.layer_chain import patches
from keras_small.storage.low_rank_einsum_dense import kernel_axes, labels_of
from keras_small.storage.quantized import quantized_kind
from keras_small.storage.quantized_positions import (
    QuantizedPositionEmbedding,
    is_position_embedding,
)
from keras_small.storage.recurrent import cells_of
from keras_tnattn.layers import TokenEmbedding
from keras_tnattn.typing import Tensor


def _rows_of_dense(
    _layer: keras.layers.Layer, inputs: Tensor, positions: int | None = None
) -> Tensor:
    *between, size = inputs.shape[1:]
    if positions is not None and None not in between and math.prod(between) > positions:
        count = math.prod(between)
        drawn = np.random.default_rng(0).choice(count, positions, replace=False)
        inputs = ops.take(ops.reshape(inputs, (-1, count, size)), drawn, axis=1)
    return ops.reshape(inputs, (-1, size))


def _rows_of_einsum(
    layer: keras.layers.EinsumDense, inputs: Tensor, positions: int | None = None
) -> Tensor:
    labels, kernel, _ = labels_of(layer.equation)
    summed = [kernel[i] for i in kernel_axes(layer.equation)[0]]
    before, _, after = labels.partition("...")
    axis = {c: i for i, c in enumerate(before)}
    axis |= {c: i - len(after) for i, c in enumerate(after)}
    count = len(summed)
    moved = ops.moveaxis(inputs, [axis[c] for c in summed], list(range(-count, 0)))
    size = math.prod(moved.shape[-count:])
    rest = ops.shape(moved)[:-count]
    return _rows_of_dense(layer, ops.reshape(moved, (*rest, size)), positions)


def _rows_of_transposed(
    layer: keras.layers.Layer, inputs: Tensor, positions: int | None = None
) -> Tensor:
    last = inputs if layer.data_format == "channels_last" else ops.moveaxis(inputs, 1, -1)
    return _rows_of_dense(layer, last, positions)


# For each kind the function that returns the rows `(n, I)` of an input that the layer's kernel, as
# a matrix `(I, J)`, multiplies, for a recurrent layer the kernel of its first cell; `None` for
# tables of rows, and for kinds without such a matrix. `positions` bounds the rows of each sample.
KINDS: dict[type, Any] = {
    keras.layers.Dense: _rows_of_dense,
    keras.layers.EinsumDense: _rows_of_einsum,
    keras.layers.Embedding: None,
    keras.layers.ReversibleEmbedding: None,
    TokenEmbedding: None,
    keras.layers.Conv1D: patches,
    keras.layers.Conv2D: patches,
    keras.layers.Conv3D: patches,
    keras.layers.Conv1DTranspose: _rows_of_transposed,
    keras.layers.Conv2DTranspose: _rows_of_transposed,
    keras.layers.Conv3DTranspose: _rows_of_transposed,
    keras.layers.DepthwiseConv1D: None,
    keras.layers.DepthwiseConv2D: None,
    keras.layers.SeparableConv1D: None,
    keras.layers.SeparableConv2D: None,
    # Stands for the `PositionEmbedding` of keras-hub, which this package does not import.
    QuantizedPositionEmbedding: None,
    keras.layers.SimpleRNN: _rows_of_dense,
    keras.layers.LSTM: _rows_of_dense,
    keras.layers.GRU: _rows_of_dense,
    keras.layers.RNN: _rows_of_dense,
}


def kind_of(layer: keras.layers.Layer) -> type | None:
    """Returns the kind of a layer, or `None` if it cannot be replaced.

    Example:
        >>> import keras
        >>> kind_of(keras.layers.Dense(3)).__name__
        'Dense'
        >>> kind_of(keras.layers.LayerNormalization()) is None
        True
    """
    if is_position_embedding(layer):
        return QuantizedPositionEmbedding
    for kind in type(layer).__mro__:
        if kind in KINDS:
            methods = ("call", "build")
            same = all(getattr(type(layer), name) is getattr(kind, name) for name in methods)
            return kind if same else None
    return None


def is_table(layer: keras.layers.Layer) -> bool:
    """Whether a layer looks up rows of a table."""
    return isinstance(layer, keras.layers.Embedding)


def is_plain_table(layer: keras.layers.Layer) -> bool:
    """Whether a layer looks up rows of one table, so that formats beside integers can replace it.

    Others have a second table for logits, limit logits, or mask zeros only when they look up rows.
    """
    if not isinstance(layer, keras.layers.ReversibleEmbedding):
        return is_table(layer)
    return layer.tie_weights and not layer.mask_zero and layer.logit_soft_cap is None


def second_table(layer: keras.layers.Layer) -> Any:
    """Returns the kernel `(D, V)` with which a table returns logits if it is not its own."""
    return None if getattr(layer, "tie_weights", True) else layer.reverse_embeddings


def has_kernel(layer: keras.layers.Layer) -> bool:
    """Whether a layer multiplies rows by a kernel, and then applies its activation."""
    kind = kind_of(layer)
    recurrent = isinstance(layer, keras.layers.RNN)
    return kind is not None and KINDS[kind] is not None and not recurrent


def input_rows(
    layer: keras.layers.Layer, inputs: Tensor, positions: int | None = None
) -> Tensor | None:
    """Returns the rows `(n, I)` of an input that the kernel of a layer multiplies, or `None`.

    Args:
        layer: The layer.
        inputs: Its inputs.
        positions: Maximum rows for each sample of the batch, drawn at random. Default: all.
    """
    kind = kind_of(layer)
    rows = None if kind is None else KINDS[kind]
    return None if rows is None else rows(layer, inputs, positions)


def rows_read(layer: keras.layers.Layer) -> Any:
    """Returns a key of the rows of an input that a kernel multiplies, or `None` without a kernel.

    Layers of equal keys read the same rows of the same input.
    """
    kind = kind_of(layer)
    function = None if kind is None else KINDS[kind]
    if function is None:
        return None
    names = ("equation", "kernel_size", "strides", "dilation_rate", "padding", "groups")
    return function, *(getattr(layer, name, None) for name in (*names, "data_format"))


def row_size(layer: Any) -> int:
    """Returns the number of columns of the rows that the kernel of a layer multiplies."""
    kind = kind_of(layer)
    rows = None if kind is None else KINDS[kind]
    if rows is _rows_of_einsum:
        return math.prod(layer.kernel.shape[i] for i in kernel_axes(layer.equation)[0])
    if rows is patches:
        return math.prod(layer.kernel.shape[:-1])
    if rows is _rows_of_transposed:
        return layer.kernel.shape[-1]
    kernel = cells_of(layer)[0].kernel if isinstance(layer, keras.layers.RNN) else layer.kernel
    return kernel.shape[0]


def reason_against(layer: keras.layers.Layer) -> str | None:
    """Returns why a layer of a known kind cannot be replaced, or `None` if it can."""
    if not layer.built:
        return "not built"
    if layer.quantization_mode is not None:
        return f"is quantized already ({layer.quantization_mode})"
    if getattr(layer, "lora_enabled", False):
        return "has a LoRA"
    if isinstance(layer, IntegerKernels):
        return f"is stored as {layer.bits}-bit integers already"
    if isinstance(layer, keras.layers.EinsumDense) and not kernel_axes(layer.equation)[0]:
        return f"the equation {layer.equation} has no sum over axes of the kernel"
    if isinstance(layer, keras.layers.RNN):
        unknown = [cell for cell in cells_of(layer) if quantized_kind(cell) is None]
        if unknown:
            return f"its cell is a {type(unknown[0]).__name__}"
    return None
