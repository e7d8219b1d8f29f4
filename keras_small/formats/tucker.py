"""Convolutions as a small one between two of size 1: the Tucker-2 decomposition of a kernel."""

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
    """Returns candidates of many sizes for a convolution whose kernel is larger than 1."""
    return chains.convolution_candidates("tucker", layer, statistics, bits, _factorings)


def _factorings(kernel: np.ndarray, moment: np.ndarray | None) -> Iterator[chains.Factoring]:
    if max(kernel.shape[:-2]) == 1:
        return
    tried = list(dict.fromkeys(factors.ranks_within(kernel.shape, s) for s in chains.WEIGHT_SHARES))
    series = factors.tucker_factors(kernel, tried, moment)
    for ranks, parts in zip(tried, series, strict=True):
        yield ranks, parts, factors.kernel_error(kernel, factors.product(*parts), moment)
