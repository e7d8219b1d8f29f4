"""Candidates that replace a layer by a chain of smaller ones, for the formats that do."""

import functools
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np
from keras import ops

from keras_small.formats.candidates import GROUP, Candidate, factor_bytes
from keras_small.storage import convolution_factors, integer_groups
from keras_small.storage.layer_chain import LayerChain, chain_of, reason_against_factors
from keras_small.storage.quantized import quantized_layer
from keras_small.survey.calibration import Statistics
from keras_small.survey.kinds import input_rows

# The shares of a kernel's weights that its factors have, if there are many kinds of them.
WEIGHT_SHARES = tuple(0.8**n for n in range(1, 16))

Factoring = tuple[tuple[int, ...], Sequence[np.ndarray], float]


def convolution_candidates(
    name: str,
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    factor: Callable[[np.ndarray, np.ndarray | None], Iterable[Factoring]],
) -> list[Candidate]:
    """Returns candidates for a convolution that can be factored, and none for another layer.

    `factor` takes the kernel `(*k, C, F)` in float64 and the second moment of its patches, and
    yields ranks, factors and error of each factoring.
    """
    if reason_against_factors(layer) is not None:
        return []
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    rounding = 0.0
    quantize = None
    if bits is not None:
        quantize = functools.partial(quantize_chain, bits=bits, batch=statistics.inputs)
        matrix = kernel.reshape(-1, kernel.shape[-1])
        rounded = integer_groups.rounded_matrix(matrix, bits, GROUP, moment=statistics.moment)
        rounded = rounded.reshape(kernel.shape)
        rounding = convolution_factors.kernel_error(kernel, rounded, statistics.moment)
    return [
        Candidate(
            format=name,
            ranks=ranks,
            bits=bits,
            bytes=factor_bytes(
                layer, [(f.size // f.shape[-1], f.shape[-1]) for f in factors], bits
            ),
            # The roundings of all kernels of the chain add up.
            error=float(np.sqrt(error**2 + len(factors) * rounding**2)),
            flops=_flops(layer, factors),
            make=functools.partial(chain_of, layer, factors),
            quantize=quantize,
        )
        for ranks, factors, error in factor(kernel, statistics.moment)
    ]


def _flops(layer: keras.layers.Layer, factors: Sequence[np.ndarray]) -> int:
    """Returns the FLOPs for each position of the outputs.

    The parts before the one that has the strides are computed at more positions.
    """
    total = 0
    positions = 1
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


def quantize_chain(layer: LayerChain, bits: int, batch: np.ndarray | None) -> LayerChain:
    """Returns a chain of integers; each part is calibrated on the outputs of the parts before."""
    parts = []
    inputs = batch
    for part in layer.parts:
        moments = {}
        rows = None if inputs is None else input_rows(part, inputs)
        if rows is not None:
            rows = rows.astype("float64")
            moments["kernel"] = rows.T @ rows / max(len(rows), 1)
        parts.append(quantized_layer(part, bits, GROUP, moments))
        inputs = None if inputs is None else ops.convert_to_numpy(parts[-1](inputs))
    new = LayerChain.like(layer, parts)
    new.build_from_config(layer.get_build_config())
    return new
