"""The kinds of layers that can be replaced, known by what they compute and not by their class.

A kind is a class of Keras or of this package. A layer of a subclass is of this kind, too, unless
the subclass computes something else.
"""

from typing import Any

import keras
import numpy as np

from keras_tnattn.layers import TokenEmbedding
from keras_tnattn.layers.low_rank_einsum_dense import kernel_axes, labels_of, split_equation


def _rows_of_dense(_layer: keras.layers.Dense, inputs: np.ndarray) -> np.ndarray:
    return inputs.reshape(-1, inputs.shape[-1])


def _rows_of_einsum(layer: keras.layers.EinsumDense, inputs: np.ndarray) -> np.ndarray:
    labels, kernel, _ = labels_of(layer.equation)
    summed = [kernel[i] for i in kernel_axes(layer.equation)[0]]
    before, _, after = labels.partition("...")
    axis = {c: i for i, c in enumerate(before)}
    axis |= {c: i - len(after) for i, c in enumerate(after)}
    moved = np.moveaxis(inputs, [axis[c] for c in summed], range(-len(summed), 0))
    size = int(np.prod(moved.shape[-len(summed) :]))
    return moved.reshape(-1, size)


# For each kind the function that returns the rows `(n, I)` of an input that the layer's kernel, as
# a matrix `(I, J)`, multiplies; `None` for tables of rows, and for kinds without such a matrix.
KINDS: dict[type, Any] = {
    keras.layers.Dense: _rows_of_dense,
    keras.layers.EinsumDense: _rows_of_einsum,
    keras.layers.Embedding: None,
    keras.layers.ReversibleEmbedding: None,
    TokenEmbedding: None,
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
    for kind in type(layer).__mro__:
        if kind in KINDS:
            methods = ("call", "build")
            same = all(getattr(type(layer), name) is getattr(kind, name) for name in methods)
            return kind if same else None
    return None


def is_table(layer: keras.layers.Layer) -> bool:
    """Whether a layer looks up rows of a table."""
    return isinstance(layer, keras.layers.Embedding)


def has_kernel(layer: keras.layers.Layer) -> bool:
    """Whether a layer multiplies rows by a kernel, and then applies its activation."""
    kind = kind_of(layer)
    return kind is not None and KINDS[kind] is not None


def input_rows(layer: keras.layers.Layer, inputs: np.ndarray) -> np.ndarray | None:
    """Returns the rows `(n, I)` of an input that the kernel of a layer multiplies, or `None`."""
    kind = kind_of(layer)
    rows = None if kind is None else KINDS[kind]
    return None if rows is None else rows(layer, inputs)


def reason_against(layer: keras.layers.Layer) -> str | None:
    """Returns why a layer of a known kind cannot be replaced, or `None` if it can."""
    if not layer.built:
        return "not built"
    if layer.quantization_mode is not None:
        return f"is quantized already ({layer.quantization_mode})"
    if getattr(layer, "lora_enabled", False):
        return "has a LoRA"
    if isinstance(layer, keras.layers.EinsumDense):
        try:
            split_equation(layer.equation)
        except ValueError:
            return f"the equation {layer.equation} has no matrix to factor"
    if isinstance(layer, keras.layers.ReversibleEmbedding):
        if not layer.tie_weights:
            return "has another table for logits"
        if layer.mask_zero:
            return "masks zeros in its own way"
    return None
