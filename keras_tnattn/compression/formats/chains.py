"""What the formats that replace a layer by a chain of smaller ones have in common."""

import functools
from collections.abc import Iterable, Sequence

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.calibration import Statistics
from keras_tnattn.compression.candidates import Candidate, item_size
from keras_tnattn.compression.kinds import input_rows
from keras_tnattn.storage import convolution_factors, integer_groups
from keras_tnattn.storage.layer_chain import LayerChain, chain_of, reason_against_factors
from keras_tnattn.storage.quantized import quantized_layer

# The shares of a kernel's weights that its factors have, if there are many kinds of them.
SHARES = tuple(0.8**n for n in range(1, 16))
# Entries of a kernel of integers that share a scale.
GROUP = 64

Factoring = tuple[tuple[int, ...], Sequence[np.ndarray], float]


def is_factored(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a convolution that can be factored."""
    return reason_against_factors(layer) is None


def kernel_of(layer: keras.layers.Layer) -> np.ndarray:
    return ops.convert_to_numpy(layer.kernel).astype("float64")


def convolution_candidates(
    name: str,
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    factorings: Iterable[Factoring],
) -> list[Candidate]:
    """Returns a candidate for each factoring: ranks, factors and error, of a convolution."""
    rounding = 0.0
    if bits is not None:
        kernel = kernel_of(layer)
        matrix = kernel.reshape(-1, kernel.shape[-1])
        groups = integer_groups.quantize_groups(matrix, bits, GROUP, moment=statistics.moment)
        approximation = integer_groups.restored(groups, len(matrix), bits, GROUP).reshape(
            kernel.shape
        )
        rounding = convolution_factors.kernel_error(kernel, approximation, statistics.moment)
    quantize = (
        None if bits is None else functools.partial(quantized, bits=bits, batch=statistics.inputs)
    )
    return [
        Candidate(
            name,
            ranks,
            bits,
            _size(layer, factors, bits),
            # The roundings of all kernels of the chain add up.
            float(np.sqrt(error**2 + len(factors) * rounding**2)),
            _flops(layer, factors),
            functools.partial(chain_of, layer, factors),
            quantize,
        )
        for ranks, factors, error in factorings
    ]


def _size(layer: keras.layers.Layer, factors: Sequence[np.ndarray], bits: int | None) -> int:
    number = item_size(layer.variable_dtype)
    bias = number * layer.filters if layer.use_bias else 0
    shapes = [(factor.size // factor.shape[-1], factor.shape[-1]) for factor in factors]
    return bias + sum(stored(shape, bits, number) for shape in shapes)


def stored(shape: tuple[int, int], bits: int | None, number: int) -> int:
    """Returns the bytes of a matrix in integers, or in floats of `number` bytes."""
    if bits is None:
        return number * shape[0] * shape[1]
    return integer_groups.stored_bytes(shape, bits, GROUP)


def _flops(layer: keras.layers.Layer, factors: Sequence[np.ndarray]) -> int:
    """Returns the FLOPs for each position of the outputs.

    The parts before the one that has the strides are computed at more positions.
    """
    total, positions = 0, 1
    for part, factor in zip(reversed(chain_parts(layer, factors)), reversed(factors), strict=True):
        total += 2 * factor.size * positions
        positions *= int(np.prod(part))
    return total


def chain_parts(layer: keras.layers.Layer, factors: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Returns the strides of each part of the chain that `chain_of` makes."""
    rank = len(layer.strides)
    sizes = [factor.shape[:-2] if factor.ndim > 2 else (1,) * rank for factor in factors]
    strides = [[1] * rank for _ in factors]
    for axis, stride in enumerate(layer.strides):
        long = [number for number, size in enumerate(sizes) if size[axis] > 1]
        strides[long[0] if long else 0][axis] = stride
    return [tuple(own) for own in strides]


def quantized(layer: LayerChain, bits: int, batch: np.ndarray | None) -> LayerChain:
    """Returns a chain of integers; each part is calibrated on what the parts before return."""
    parts, inputs = [], batch
    for part in layer.parts:
        moments = {}
        rows = None if inputs is None else input_rows(part, inputs)
        if rows is not None:
            rows = rows.astype("float64")
            moments["kernel"] = rows.T @ rows / max(len(rows), 1)
        parts.append(quantized_layer(part, bits, GROUP, moments))
        inputs = None if inputs is None else ops.convert_to_numpy(parts[-1](inputs))
    new = LayerChain(
        parts,
        activity_regularizer=layer.activity_regularizer,
        trainable=layer.trainable,
        dtype=layer.dtype_policy,
        name=layer.name,
    )
    new.build_from_config(layer.get_build_config())
    return new
