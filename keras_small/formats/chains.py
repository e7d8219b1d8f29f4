"""Candidates that replace a layer by a chain of smaller ones, for the formats that do."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from keras_small.formats import dense
from keras_small.formats.candidates import GROUP, Candidate, factor_bytes
from keras_small.storage.latest import remember_latest
from keras_small.storage.layer_chain import (
    LayerChain,
    chain_of,
    reason_against_factors,
    strides_of_parts,
)
from keras_small.storage.quantized import quantized_layer
from keras_small.survey.calibration import Statistics
from keras_small.survey.kinds import input_rows

# The shares of a kernel's weights that its factors have, if there are many kinds of them.
WEIGHT_SHARES = tuple(0.8**n for n in range(1, 16))

Ranks = tuple[int, ...]
Factoring = tuple[Ranks, Sequence[np.ndarray], float]
# The shapes of factors, and a lower bound of their error, but for roundings.
Bound = tuple[list[tuple[int, ...]], float]


class Factorings(Protocol):
    """Yields the ranks, the factors and the error of each factoring of a kernel; see `only`.

    Which ranks are tried is the format's choice; with `only` it is these.

    The kernel `(*k, C, F)` is in float64; the moment is the second one of its patches.
    """

    def __call__(
        self, kernel: np.ndarray, moment: np.ndarray | None, only: Ranks | None = None
    ) -> Iterator[Factoring]: ...


def convolution_candidates(
    name: str,
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    factorings: Factorings,
) -> list[Candidate]:
    """Returns candidates for a convolution that can be factored, and none for another layer.

    The factors of a chosen one are computed again when it is made.
    """
    if reason_against_factors(layer) is not None:
        return []
    rounding = 0.0
    quantize = None
    if bits is not None:
        quantize = functools.partial(quantize_chain, bits=bits, batch=statistics.inputs)
        rounding = dense.rounding_error(layer, statistics, bits)

    def make(ranks: Ranks) -> LayerChain:
        _, factors, _ = next(factorings(_kernel_of(layer), statistics.moment, ranks))
        return chain_of(layer, factors)

    return [
        Candidate(
            format=name,
            ranks=ranks,
            bits=bits,
            bytes=_bytes(layer, shapes, bits),
            # The roundings of all kernels of the chain add up.
            error=float(np.sqrt(error**2 + len(shapes) * rounding**2)),
            flops=_flops(layer, shapes),
            make=functools.partial(make, ranks),
            quantize=quantize,
        )
        for ranks, shapes, error in _tried(layer, statistics, factorings)
    ]


def is_promising(
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    found: Sequence[Candidate],
    bounds: Callable[[np.ndarray, np.ndarray | None], Iterable[Bound]],
) -> bool:
    """Whether factors may have a smaller error than each candidate that takes no more bytes.

    Args:
        layer: The layer.
        statistics: Its observations.
        bits: The bits of the factors.
        found: The candidates that were found.
        bounds: The function of a format from a kernel and a moment to the bounds of its errors.
    """
    if reason_against_factors(layer) is not None:
        return False
    for shapes, bound in _known_bounds(layer, statistics, bounds):
        size = _bytes(layer, shapes, bits)
        if all(bound < candidate.likely_error for candidate in found if candidate.bytes <= size):
            return True
    return False


@remember_latest
def _known_bounds(layer: keras.layers.Layer, statistics: Statistics, bounds: Any) -> list[Bound]:
    return list(bounds(_kernel_of(layer), statistics.moment))


def _bytes(layer: keras.layers.Layer, shapes: Sequence[tuple[int, ...]], bits: int | None) -> int:
    return factor_bytes(layer, [(math.prod(s[:-1]), s[-1]) for s in shapes], bits)


def _kernel_of(layer: keras.layers.Layer) -> np.ndarray:
    return ops.convert_to_numpy(layer.kernel).astype("float64")


@remember_latest
def _tried(
    layer: keras.layers.Layer, statistics: Statistics, factorings: Factorings
) -> list[tuple[Ranks, list[tuple[int, ...]], float]]:
    """Returns ranks, shapes of the factors, and error of each factoring, once for all bits."""
    return [
        (ranks, [factor.shape for factor in factors], error)
        for ranks, factors, error in factorings(_kernel_of(layer), statistics.moment)
    ]


def _flops(layer: keras.layers.Layer, shapes: Sequence[tuple[int, ...]]) -> int:
    """Returns the FLOPs for each position of the outputs.

    The parts before the one that has the strides are computed at more positions.
    """
    total = 0
    positions = 1
    strides = strides_of_parts(layer, shapes)
    for own, shape in zip(reversed(strides), reversed(shapes), strict=True):
        total += 2 * math.prod(shape) * positions
        positions *= math.prod(own)
    return total


def quantize_chain(layer: LayerChain, bits: int, batch: np.ndarray | None) -> LayerChain:
    """Returns a chain of integers; each part is calibrated on the outputs of the parts before."""
    parts = []
    inputs = batch
    for part in layer.parts:
        moments = {}
        rows = None if inputs is None else input_rows(part, inputs)
        if rows is not None:
            rows = ops.convert_to_numpy(rows).astype("float64")
            moments["kernel"] = rows.T @ rows / max(len(rows), 1)
        parts.append(quantized_layer(part, bits, GROUP, moments))
        inputs = None if inputs is None else ops.convert_to_numpy(parts[-1](inputs))
    new = LayerChain.like(layer, parts)
    new.build_from_config(layer.get_build_config())
    return new
