"""Trains kernels of floats as the integers that they are rounded to.

A model of floats and its quantized copy hold their layers at the same places. While the floats are
trained, the model reads each kernel rounded with the scales of its copy, and gradients pass as if
it were not (Bengio et al., 2013, https://arxiv.org/abs/1308.3432). Afterwards the copy gets the
integers.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_tnattn.layers import LowRankDense, LowRankEinsumDense
from keras_tnattn.layers.integer_kernels import IntegerKernels
from keras_tnattn.layers.layer_chain import LayerChain
from keras_tnattn.layers.recurrent import cells_of
from keras_tnattn.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Rounding:
    """A kernel of floats, and the layer of integers that it is rounded for.

    Attributes:
        variable: The kernel.
        layer: The layer of integers.
        name: The name of the kernel.
    """

    variable: keras.Variable
    layer: IntegerKernels
    name: str


def roundings(floating: keras.layers.Layer, quantized: keras.layers.Layer) -> list[Rounding]:
    """Returns the kernels of a layer that its quantized copy has as integers."""
    found = []
    for part, copy in zip(_parts(floating), _parts(quantized), strict=False):
        if isinstance(copy, IntegerKernels):
            found += [Rounding(getattr(part, name), copy, name) for name in copy.kernel_names]
    return found


def _parts(layer: keras.layers.Layer) -> Sequence[keras.layers.Layer]:
    if isinstance(layer, LowRankDense | LowRankEinsumDense):
        return [layer.inner, layer.outer]
    if isinstance(layer, LayerChain):
        return layer.parts
    if isinstance(layer, keras.layers.RNN):
        return cells_of(layer)
    return [layer]


def start_from_integers(kernels: Sequence[Rounding]) -> None:
    """Sets the floats to what the integers stand for."""
    for kernel in kernels:
        kernel.variable.assign(getattr(kernel.layer, kernel.name))


def rounded_values(
    model: keras.Model, kernels: Sequence[Rounding]
) -> list[tuple[keras.Variable, Tensor]]:
    """Returns the values of all variables of a model, those of the kernels rounded.

    For a `keras.StatelessScope`, in which a model reads them.
    """
    rounding_of = {id(kernel.variable): kernel for kernel in kernels}

    def value(variable: keras.Variable) -> Tensor:
        kernel = rounding_of.get(id(variable))
        tensor = ops.convert_to_tensor(variable)
        if kernel is None:
            return tensor
        return ops.cast(kernel.layer.rounded(kernel.name, tensor), variable.dtype)

    return [(variable, value(variable)) for variable in model.variables]


def with_integers_of(floating: keras.layers.Layer, copy: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a quantized layer with the integers and the other weights of trained floats.

    Args:
        floating: The layer of floats.
        copy: A copy of the layer of integers whose scales it was trained for; it is changed.
    """
    for kernel in roundings(floating, copy):
        kernel.layer.assign_rounded(kernel.name, kernel.variable)
    for part, new in zip(_parts(floating), _parts(copy), strict=False):
        if isinstance(new, IntegerKernels):
            _copy_others(part, new)
    return copy


def _copy_others(part: keras.layers.Layer, new: IntegerKernels) -> None:
    """Copies the weights that are no kernels, such as biases."""
    kernels = {id(getattr(part, name)) for name in new.kernel_names}
    packed = {id(weight) for weight in new.packed_weights}
    others = [weight for weight in part.weights if id(weight) not in kernels]
    places = [weight for weight in new.weights if id(weight) not in packed]
    for place, weight in zip(places, others, strict=True):
        # A copy: variables of JAX that share an array lose it when one of them is trained.
        place.assign(np.array(ops.convert_to_numpy(weight)))
