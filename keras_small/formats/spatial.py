"""Convolutions as one along the first axis and one along the others."""

import math
from collections.abc import Iterator

import keras
import numpy as np

from keras_small.formats import chains
from keras_small.formats.candidates import Candidate
from keras_small.storage import convolution_factors as factors
from keras_small.survey.calibration import Statistics


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates of many ranks for a convolution that is larger than 1 along two axes."""
    return chains.convolution_candidates("spatial", layer, statistics, bits, _factorings)


def _factorings(kernel: np.ndarray, moment: np.ndarray | None) -> Iterator[chains.Factoring]:
    first_size, *other_sizes, channels, filters = kernel.shape
    if first_size == 1 or max(other_sizes, default=1) == 1:
        return
    rows = first_size * channels
    columns = math.prod(other_sizes) * filters
    shares = (int(share * kernel.size / (rows + columns)) for share in chains.WEIGHT_SHARES)
    ranks = list(dict.fromkeys(max(1, min(rows, columns, rank)) for rank in shares))
    series = factors.spatial_factors(kernel, ranks, moment)
    for rank, parts in zip(ranks, series, strict=True):
        yield (rank,), parts, factors.kernel_error(kernel, factors.product(*parts), moment)
