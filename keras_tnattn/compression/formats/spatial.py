"""Convolutions as one along the first axis and one along the others."""

import math
from collections.abc import Iterator

import keras

from keras_tnattn.compression.calibration import Statistics
from keras_tnattn.compression.candidates import Candidate
from keras_tnattn.compression.formats import chains
from keras_tnattn.storage import convolution_factors as factors


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates of many ranks for a convolution that is larger than 1 along two axes."""
    if not chains.is_factored(layer):
        return []
    first, *others = layer.kernel_size
    if first == 1 or max(others, default=1) == 1:
        return []
    return chains.convolution_candidates(
        "spatial", layer, statistics, bits, _factorings(layer, statistics)
    )


def _factorings(layer: keras.layers.Layer, statistics: Statistics) -> Iterator[chains.Factoring]:
    kernel = chains.kernel_of(layer)
    first, *others, channels, filters = kernel.shape
    high, wide = first * channels, math.prod(others) * filters
    shares = (int(share * kernel.size / (high + wide)) for share in chains.SHARES)
    ranks = list(dict.fromkeys(max(1, min(high, wide, rank)) for rank in shares))
    for rank, parts in zip(
        ranks, factors.spatial_series(kernel, ranks, statistics.moment), strict=True
    ):
        error = factors.kernel_error(kernel, factors.product(*parts), statistics.moment)
        yield (rank,), parts, error
