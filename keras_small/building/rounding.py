"""Trains kernels of floats, fake-quantized with the scales of their integers.

A model of floats and its quantized copy hold their layers at the same places. While the floats are
trained, the model reads each kernel rounded with the scales of its copy, and gradients pass
straight through (Bengio et al., 2013, https://arxiv.org/abs/1308.3432). Afterwards the copy gets
the integers.
"""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_small.storage import (
    AdaptiveEmbedding,
    LowRankDense,
    LowRankEinsumDense,
    even_levels,
    integer_groups,
)
from keras_small.storage.integer_kernels import IntegerKernels
from keras_small.storage.layer_chain import LayerChain
from keras_small.storage.packed_matrix import PackedMatrix
from keras_small.storage.quantized_embeddings import QuantizedLowRankEmbedding
from keras_small.storage.recurrent import cells_of
from keras_tnattn.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Rounding:
    """A kernel of floats, and the layer of integers that it is rounded for."""

    variable: keras.Variable
    layer: IntegerKernels
    name: str

    def restored_floats(self) -> Tensor:
        """Returns the floats that the integers stand for."""
        return getattr(self.layer, self.name)

    def rounded_floats(self, kernel: Tensor) -> Tensor:
        """Rounds floats as the integers are; the gradient is straight-through."""
        return self.layer.rounded_kernel(self.name, kernel)

    def assign(self, kernel: Tensor) -> None:
        """Sets the integers to those of floats."""
        self.layer.assign_rounded(self.name, kernel)


@dataclasses.dataclass(frozen=True)
class BlockRounding:
    """The coordinates of a block of rows as floats, and the table whose integers they become."""

    variable: keras.Variable
    layer: AdaptiveEmbedding
    number: int

    def restored_floats(self) -> Tensor:
        """Returns the floats that the integers stand for."""
        rank = self.layer.block_ranks[self.number]
        parts = self.layer.packed_blocks[self.number]
        return even_levels.dequantize_rows(parts, rank, self._bits)

    def rounded_floats(self, block: Tensor) -> Tensor:
        """Rounds floats as the integers are; the gradient is straight-through."""
        block = ops.cast(block, "float32")
        return block + ops.stop_gradient(self._numbers_of(block)[1] - block)

    def assign(self, block: Tensor) -> None:
        """Sets the integers to those of floats; the scales stay."""
        numbers = ops.convert_to_numpy(self._numbers_of(block)[0])
        packed = integer_groups.pack(numbers.T, self._bits).T
        self.layer.packed_blocks[self.number][0].assign(packed)

    @property
    def _bits(self) -> int:
        return (self.layer.block_bits or ())[self.number]

    def _numbers_of(self, block: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.layer.packed_blocks[self.number]
        return even_levels.round_to_rows(block, parts, self._bits)


@dataclasses.dataclass(frozen=True)
class FactorRounding:
    """A factor of a table as floats, and the packed matrix whose integers it becomes."""

    variable: keras.Variable
    packed: PackedMatrix

    def restored_floats(self) -> Tensor:
        """Returns the floats that the integers stand for."""
        return self.packed.rows()

    def rounded_floats(self, factor: Tensor) -> Tensor:
        """Rounds floats as the integers are; the gradient is straight-through."""
        factor = ops.cast(factor, "float32")
        return factor + ops.stop_gradient(self.packed.rounded(factor)[1] - factor)

    def assign(self, factor: Tensor) -> None:
        """Sets the integers to those of floats; the scales stay."""
        numbers = ops.convert_to_numpy(self.packed.rounded(factor)[0])
        packed = integer_groups.pack(numbers.T, self.packed.bits).T
        self.packed.weights[0].assign(packed)


AnyRounding = Rounding | BlockRounding | FactorRounding


def roundings(floating: keras.layers.Layer, quantized: keras.layers.Layer) -> list[AnyRounding]:
    """Returns the kernels of a layer that its quantized copy has as integers."""
    found: list[AnyRounding] = []
    for part, copy in zip(_parts(floating), _parts(quantized), strict=False):
        if isinstance(copy, IntegerKernels):
            found += [Rounding(getattr(part, name), copy, name) for name in copy.kernel_names]
        elif isinstance(copy, AdaptiveEmbedding) and copy.block_bits is not None:
            found += [BlockRounding(block, copy, k) for k, block in enumerate(part.blocks)]
        elif isinstance(copy, QuantizedLowRankEmbedding):
            found.append(FactorRounding(part.coordinates, copy.packed))
            found.append(FactorRounding(part.basis, copy.packed_basis))
    return found


def _parts(layer: keras.layers.Layer) -> Sequence[keras.layers.Layer]:
    if isinstance(layer, LowRankDense | LowRankEinsumDense):
        return [layer.inner, layer.outer]
    if isinstance(layer, LayerChain):
        return layer.parts
    if isinstance(layer, keras.layers.RNN):
        return cells_of(layer)
    return [layer]


def start_from_integers(kernels: Sequence[AnyRounding]) -> None:
    """Sets the floats to those that the integers stand for."""
    for kernel in kernels:
        kernel.variable.assign(kernel.restored_floats())


def rounded_values(
    model: keras.Model, kernels: Sequence[AnyRounding]
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
        return ops.cast(kernel.rounded_floats(tensor), variable.dtype)

    return [(variable, value(variable)) for variable in model.variables]


def with_integers_of(floating: keras.layers.Layer, copy: keras.layers.Layer) -> keras.layers.Layer:
    """Returns `copy`, a quantized layer, with the integers and other weights of trained floats."""
    for kernel in roundings(floating, copy):
        kernel.assign(kernel.variable)
    for part, new in zip(_parts(floating), _parts(copy), strict=False):
        if isinstance(new, IntegerKernels):
            _copy_plain_weights(part, new)
        elif isinstance(new, AdaptiveEmbedding):
            new.packed_basis.assign(ops.convert_to_numpy(part.basis))
    return copy


def _copy_plain_weights(part: keras.layers.Layer, new: IntegerKernels) -> None:
    """Copies the weights that are no kernels, such as biases."""
    kernels = {id(getattr(part, name)) for name in new.kernel_names}
    packed = {id(weight) for weight in new.packed_weights}
    old_weights = [weight for weight in part.weights if id(weight) not in kernels]
    new_weights = [weight for weight in new.weights if id(weight) not in packed]
    for new_weight, weight in zip(new_weights, old_weights, strict=True):
        # A copy: variables of JAX that share an array lose it when one of them is trained.
        new_weight.assign(np.array(ops.convert_to_numpy(weight)))
