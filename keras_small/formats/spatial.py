"""Convolutions as one along the first axis and one along the others."""

import math
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_small.formats import chains
from keras_small.formats.candidates import Candidate
from keras_small.storage import convolution_factors as factors
from keras_small.survey.calibration import Statistics

# The minimum share of the error of a singular value decomposition, by the moments of the rows
# alone, that least squares by all moments leave.
_LEFT_BY_LEAST_SQUARES = 0.7


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates of many ranks for a convolution that is larger than 1 along two axes."""
    return chains.convolution_candidates("spatial", layer, statistics, bits, _factorings)


def may_win(
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    found: Sequence[Candidate],
    least_bytes: float,
) -> bool:
    """Whether factors may have a smaller error than each candidate of no more bytes."""
    return chains.is_promising(layer, statistics, bits, found, _bounds)


def _bounds(kernel: np.ndarray, moment: np.ndarray | None) -> Iterator[chains.Bound]:
    """Yields the shapes of factors, and a lower bound of their error, but for roundings."""
    ranks = _ranks(kernel)
    if not ranks:
        return
    first_size, *other_sizes, channels, filters = kernel.shape
    ones = (1,) * len(other_sizes)
    errors = factors.spatial_errors(kernel, moment)
    for (rank,) in ranks:
        shapes = [(first_size, *ones, channels, rank), (1, *other_sizes, rank, filters)]
        yield shapes, _LEFT_BY_LEAST_SQUARES * float(errors[rank])


def _ranks(kernel: np.ndarray) -> list[chains.Ranks]:
    first_size, *other_sizes, channels, filters = kernel.shape
    if first_size == 1 or max(other_sizes, default=1) == 1:
        return []
    rows = first_size * channels
    columns = math.prod(other_sizes) * filters
    shares = (int(share * kernel.size / (rows + columns)) for share in chains.WEIGHT_SHARES)
    return list(dict.fromkeys((max(1, min(rows, columns, rank)),) for rank in shares))


def _factorings(
    kernel: np.ndarray, moment: np.ndarray | None, only: chains.Ranks | None = None
) -> Iterator[chains.Factoring]:
    tried = _ranks(kernel) if only is None else [only]
    if not tried:
        return
    series = factors.spatial_factors(kernel, [rank for (rank,) in tried], moment)
    errors = factors.OutputErrors(kernel, moment)
    for (rank,), parts in zip(tried, series, strict=True):
        yield (rank,), parts, errors.of(factors.product(*parts))
