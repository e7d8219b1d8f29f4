"""Convolutions as a small one between two of size 1: the Tucker-2 decomposition of a kernel."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_small.formats import chains
from keras_small.formats.candidates import Candidate
from keras_small.storage import convolution_factors as factors
from keras_small.survey.calibration import Statistics


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates of many sizes for a convolution whose kernel is larger than 1."""
    return chains.convolution_candidates("tucker", layer, statistics, bits, _factorings)


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
    # The last factor leaves a kernel of that rank.
    errors = factors.channel_factors(kernel, moment)[2]
    *sizes, channels, filters = kernel.shape
    for a, b in _ranks(kernel):
        yield [(channels, a), (*sizes, a, b), (b, filters)], float(errors[b])


def _ranks(kernel: np.ndarray) -> list[chains.Ranks]:
    if max(kernel.shape[:-2]) == 1:
        return []
    return list(dict.fromkeys(factors.ranks_within(kernel.shape, s) for s in chains.WEIGHT_SHARES))


def _factorings(
    kernel: np.ndarray, moment: np.ndarray | None, only: chains.Ranks | None = None
) -> Iterator[chains.Factoring]:
    tried: list = _ranks(kernel) if only is None else [only]
    if not tried:
        return
    series = factors.tucker_factors(kernel, tried, moment)
    errors = factors.OutputErrors(kernel, moment)
    for ranks, parts in zip(tried, series, strict=True):
        yield ranks, parts, errors.of(factors.product(*parts))
