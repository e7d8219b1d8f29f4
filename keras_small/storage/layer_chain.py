"""A chain of layers in the place of one, such as convolutions by the factors of a kernel."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.layers.base_layer import check_float
from keras_tnattn.typing import Shape, Tensor

# The convolutions whose kernel, as a matrix of patches by filters, multiplies patches.
CONVOLUTIONS: tuple[type[keras.layers.Layer], ...] = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)


@keras.saving.register_keras_serializable(package="keras_small")
class LayerChain(keras.layers.Layer):
    """Layers after one another whose product approximates one layer with a larger kernel.

    `chain_of` makes convolutions of a trained one and of factors of its kernel, of
    `keras_small.storage.convolution_factors`: two of which the second has size 1, two along
    different axes, or a small one between two of size 1. All but the last are linear and without
    bias.

    Args:
        parts: Layers, or their configurations, that are called after one another.

    Call arguments:
        inputs: Float tensor, as for the first part.

    Returns:
        The outputs of the last part.

    Raises:
        ValueError: If there are no parts.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage.layer_chain import LayerChain
        >>> parts = [keras.layers.Conv2D(4, (3, 1)), keras.layers.Conv2D(16, (1, 3))]
        >>> tuple(LayerChain(parts)(np.ones((1, 8, 8, 2), "float32")).shape)
        (1, 6, 6, 16)
    """

    def __init__(self, parts: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts = [
            keras.saving.deserialize_keras_object(part) if isinstance(part, dict) else part
            for part in parts
        ]
        if not self.parts:
            raise ValueError(f"Expected at least one part. Received: parts={parts!r}")

    @classmethod
    def like(cls, layer: keras.layers.Layer, parts: Sequence[Any]) -> "LayerChain":
        """Returns a chain, not built, that stands for a layer, with its name and options."""
        names = ("activity_regularizer", "trainable", "name")
        options = {name: getattr(layer, name) for name in names}
        return cls(parts, dtype=layer.dtype_policy, **options)

    @property
    def outer(self) -> keras.layers.Layer:
        """The last part, which has the bias and the activation."""
        return self.parts[-1]

    def build(self, input_shape: Shape) -> None:
        for part in self.parts:
            if not part.built:
                part.build(input_shape)
            input_shape = part.compute_output_shape(input_shape)
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        for part in self.parts:
            inputs = part(inputs)
        return inputs

    def enable_lora(self, rank: int, **options: Any) -> None:
        """Freezes the kernels of all parts, and trains a correction of low rank of each."""
        for part in self.parts:
            part.enable_lora(rank, **options)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        for part in self.parts:
            input_shape = part.compute_output_shape(input_shape)
        return input_shape

    def get_config(self) -> dict[str, Any]:
        parts = [keras.saving.serialize_keras_object(part) for part in self.parts]
        for part in parts:
            # `build` builds them.
            part.pop("build_config", None)
        return {**super().get_config(), "parts": parts}


def chain_of(layer: keras.layers.Layer, kernels: Sequence[np.ndarray]) -> LayerChain:
    """Returns convolutions with these kernels in the place of a trained convolution.

    Args:
        layer: A built `keras.layers.Conv1D`, `Conv2D` or `Conv3D` of one group. It does not
            change.
        kernels: Float arrays `(*k, C, F)`, the first one first; matrices have sizes of 1. Along
            each axis one of them is as long as the kernel of the layer, all others have size 1.

    Returns:
        A built layer of the same name, with the strides, dilation and padding of each axis in
        the part that is longer than 1 along it, or in the first one.

    Raises:
        ValueError: If the layer is no such convolution, or the kernels do not fit it.

    Example:
        >>> from keras_small.storage import convolution_factors
        >>> conv = keras.layers.Conv2D(16, 3, strides=2, activation="relu")
        >>> conv.build((None, 8, 8, 4))
        >>> kernel = keras.ops.convert_to_numpy(conv.kernel)
        >>> inner, core, outer = next(convolution_factors.tucker_factors(kernel, [(2, 4)]))
        >>> chain_of(conv, [inner, core, outer]).parts[1].strides
        (2, 2)
    """
    reason = reason_against_factors(layer)
    if reason is not None:
        raise ValueError(f"Expected a convolution to factor. Received: {layer.name}, {reason}")
    kernels = [k.reshape(_sizes(layer, k.shape) + k.shape[-2:]) for k in kernels]
    places = _places(layer, [kernel.shape[:-2] for kernel in kernels])
    parts = []
    for number, kernel in enumerate(kernels):
        last = number == len(kernels) - 1
        mine = [place == number for place in places]
        part = type(layer)(
            kernel.shape[-1],
            kernel.shape[:-2],
            strides=_where(mine, layer.strides),
            dilation_rate=_where(mine, layer.dilation_rate),
            padding=layer.padding if any(mine) else "valid",
            data_format=layer.data_format,
            activation=layer.activation if last else None,
            use_bias=layer.use_bias and last,
            kernel_regularizer=layer.kernel_regularizer,
            bias_regularizer=layer.bias_regularizer if last else None,
            bias_constraint=layer.bias_constraint if last else None,
            trainable=layer.trainable,
            dtype=layer.dtype_policy,
            name=f"part_{number}",
        )
        parts.append(part)
    new = LayerChain.like(layer, parts)
    new.build(layer.get_build_config()["input_shape"])
    for part, kernel in zip(parts, kernels, strict=True):
        part.kernel.assign(kernel)
    if layer.use_bias:
        parts[-1].bias.assign(ops.convert_to_numpy(layer.bias))
    return new


def strides_of_parts(
    layer: keras.layers.Layer, shapes: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Returns the strides of each part of a chain of kernels of these shapes, as in `chain_of`."""
    places = _places(layer, [_sizes(layer, shape) for shape in shapes])
    return [
        _where([place == number for place in places], layer.strides)
        for number in range(len(shapes))
    ]


def _sizes(layer: keras.layers.Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of a kernel along the axes; matrices have sizes of 1."""
    return shape[:-2] or (1,) * len(layer.kernel_size)


def _places(layer: keras.layers.Layer, sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """Returns for each axis the number of the kernel that is as long as that of the layer."""
    places = []
    for axis, size in enumerate(layer.kernel_size):
        long = [number for number, shape in enumerate(sizes) if shape[axis] > 1]
        if len(long) > 1 or (size > 1 and not long) or any(sizes[n][axis] != size for n in long):
            raise ValueError(
                f"Expected one kernel of size {size} along axis {axis}, and others of size 1. "
                f"Received: kernels of sizes {[shape[axis] for shape in sizes]}"
            )
        places.append(long[0] if long else 0)
    return places


def _where(mine: Sequence[bool], values: Sequence[int]) -> tuple[int, ...]:
    return tuple(value if is_mine else 1 for is_mine, value in zip(mine, values, strict=True))


def reason_against_factors(layer: keras.layers.Layer) -> str | None:
    """Returns why a layer cannot be factored into convolutions, or `None` if it can."""
    if type(layer) not in CONVOLUTIONS:
        return f"a {type(layer).__name__}"
    if not layer.built:
        return "not built"
    check_float(layer)
    if layer.lora_enabled:
        return "has a LoRA"
    if layer.groups > 1:
        return f"has {layer.groups} groups of channels, each with a kernel of its own"
    return None


def patches(layer: keras.layers.Layer, inputs: Tensor, positions: int | None = None) -> Tensor:
    """Returns the patches `(n, P)` of inputs that the kernel of a convolution multiplies.

    Those of a convolution with groups are the patches of all its groups.

    Args:
        layer: A built `keras.layers.Conv1D`, `Conv2D` or `Conv3D`.
        inputs: Float tensor, as for the layer, of known sizes.
        positions: Maximum patches of a picture, drawn at random; the same of all pictures.
            Default: all.
    """
    *sizes, channels, _ = layer.kernel.shape
    if layer.data_format == "channels_first":
        inputs = ops.moveaxis(inputs, 1, -1)
    spatial = tuple(inputs.shape[1:-1])
    taken, inside = _places_of_patches(layer, spatial)
    if positions is not None and len(taken) > positions:
        drawn = np.random.default_rng(0).choice(len(taken), positions, replace=False)
        taken = taken[drawn]
        inside = inside[drawn]
    pixels = ops.reshape(ops.cast(inputs, "float32"), (-1, math.prod(spatial), inputs.shape[-1]))
    rows = ops.take(pixels, taken.ravel(), axis=1)
    rows = ops.reshape(rows, (-1, *taken.shape, layer.groups, channels))
    rows = rows * inside[..., None, None].astype("float32")
    rows = ops.moveaxis(rows, 3, 0)
    return ops.reshape(rows, (-1, math.prod(sizes) * channels))


def _places_of_patches(
    layer: keras.layers.Layer, spatial: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the pixels of each patch, and which of them are no padding."""
    taken = np.zeros((1, 1), "int64")
    inside = np.ones((1, 1), bool)
    for axis, size in enumerate(spatial):
        stride = layer.strides[axis]
        dilation = layer.dilation_rate[axis]
        reach = dilation * (layer.kernel_size[axis] - 1)
        count = (size - reach - 1) // stride + 1
        before = 0
        if layer.padding == "causal":
            before = reach
            count = (size - 1) // stride + 1
        elif layer.padding == "same":
            count = -(-size // stride)
            before = max((count - 1) * stride + reach + 1 - size, 0) // 2
        starts = stride * np.arange(count) - before
        own = starts[:, None] + dilation * np.arange(layer.kernel_size[axis])
        own_inside = (own >= 0) & (own < size)
        own = np.clip(own, 0, size - 1)
        # Positions and offsets along this axis vary fastest.
        taken = (taken[:, None, :, None] * size + own[None, :, None, :]).reshape(
            len(taken) * count, -1
        )
        inside = (inside[:, None, :, None] & own_inside[None, :, None, :]).reshape(
            len(inside) * count, -1
        )
    return taken, inside
