"""A candidate to replace a layer: a format, ranks and bits, with their size and error."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from keras_small.storage import integer_groups
from keras_small.storage.low_rank_einsum_dense import labels_of
from keras_small.storage.sizes import item_size

# Entries of a kernel of integers that share a scale, if the kernel is not the layer's own.
GROUP = 64
# The shares of the full rank that are tried; each is nine tenths of the one before.
_RANK_SHARES = tuple(0.9**n for n in range(1, 44))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to replace a layer.

    Attributes:
        format: A key of `formats.FORMATS`; `"dense"` for the layer itself.
        ranks: The ranks, or other numbers that tell candidates of one format apart.
        bits: Bits of the integers that store its weights, or `None` for floats.
        bytes: Bytes of all its weights.
        error: Estimated relative error of its outputs, of a kernel before the activation.
        flops: Floating-point operations for one row that the kernel multiplies, or one id.
        make: Function that returns a new, built layer with float weights.
        quantize: Function that returns a copy of such a layer with integers of `bits`; `None`
            without `bits`.
        improved_error: The `error` that is expected once the layer is made, if this improves it.
        weighted_error: The likely error with directions weighted by how much the model responds to
            them, if that was measured.
        id_order: Function that returns the old id of each new id of `make()`, or `None` if the ids
            stay.
    """

    format: str
    ranks: tuple[int, ...]
    bits: int | None
    bytes: int
    error: float
    flops: int
    make: Callable[[], keras.layers.Layer]
    quantize: Callable[[keras.layers.Layer], keras.layers.Layer] | None = None
    improved_error: float | None = None
    weighted_error: float | None = None
    id_order: Callable[[], np.ndarray | None] = lambda: None

    @property
    def likely_error(self) -> float:
        """The error that is expected of the made layer."""
        return self.error if self.improved_error is None else self.improved_error

    @property
    def cost(self) -> float:
        """The error by which the budget is shared out."""
        return self.likely_error if self.weighted_error is None else self.weighted_error

    def finish(self, layer: keras.layers.Layer) -> keras.layers.Layer:
        """Returns a layer that was made, quantized if it is to be."""
        return layer if self.quantize is None else self.quantize(layer)

    @property
    def keeps_layer(self) -> bool:
        """Whether this candidate is the layer as it is."""
        return self.format == "dense" and self.bits is None


def factor_bytes(
    layer: keras.layers.Layer, shapes: Iterable[tuple[int, int]], bits: int | None
) -> int:
    """Returns the bytes of a layer, or cell, whose kernel became matrices of some shapes.

    Its bias stays. With `bits` they are integers in groups of `GROUP`, otherwise floats.
    """
    number = item_size(layer.variable_dtype)
    bias = getattr(layer, "bias", None)
    size = 0 if bias is None else number * int(np.prod(bias.shape))
    for shape in shapes:
        floats = number * shape[0] * shape[1]
        size += floats if bits is None else integer_groups.stored_bytes(shape, bits, GROUP)
    return size


def dense_flops(layer: keras.layers.Layer) -> int:
    """Returns the FLOPs of a layer for one row that its kernel multiplies; a lookup has none."""
    if isinstance(layer, keras.layers.Embedding):
        return 0
    kernels = [w for w in layer.weights if len(w.shape) > 1 and not w.name.endswith("bias")]
    return 2 * sum(int(np.prod(kernel.shape)) for kernel in kernels)


def applications(layer: keras.layers.Layer, shape: Sequence[int | None]) -> int:
    """Returns how often a layer multiplies by its kernel, or looks up an id, for a row of the data.

    `shape` is that of its inputs, with the rows first; sizes that are not known count as 1.

    Example:
        >>> applications(keras.layers.Conv2D(4, 3, strides=2), (None, 9, 9, 2))
        16
    """
    sizes = list(shape[1:])
    if isinstance(layer, keras.layers.Embedding):
        pass
    elif isinstance(layer, keras.layers.EinsumDense):
        inputs, kernel, _ = labels_of(layer.equation)
        before, _, after = inputs.partition("...")
        unnamed = len(shape) - len(before) - len(after)
        labels = [*before, *("" for _ in range(unnamed)), *after]
        pairs = zip(labels[1:], sizes, strict=True)
        sizes = [size for label, size in pairs if label not in kernel or not label]
    elif hasattr(layer, "data_format"):
        outputs = "Transpose" not in type(layer).__name__
        sizes = list(layer.compute_output_shape(tuple(shape)) if outputs else shape)[1:]
        del sizes[-1 if layer.data_format == "channels_last" else 0]
    else:
        del sizes[-1]
    return math.prod(size or 1 for size in sizes)


def ranks_to_try(full: int) -> list[int]:
    """Returns the ranks that are tried, the largest first."""
    return sorted({max(1, round(full * share)) for share in _RANK_SHARES}, reverse=True)


def input_shape(layer: keras.layers.Layer) -> tuple[int | None, ...]:
    """Returns the shape of the first inputs with which a layer was built."""
    config = layer.get_build_config()
    return tuple(config.get("input_shape") or next(iter(config["shapes_dict"].values())))


def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a copy of a built layer that no model holds."""
    copy = type(layer).from_config(layer.get_config())
    build_config = layer.get_build_config()
    if build_config:
        copy.build_from_config(build_config)
    if not copy.built:
        copy.build(None)  # an embedding
    copy.set_weights(layer.get_weights())
    return copy
