"""Recurrent layers on cells of low rank."""

import functools

import keras
import numpy as np
from keras import ops

from keras_small.formats.candidates import GROUP, Candidate, factor_bytes, ranks_to_try
from keras_small.storage.low_rank_cells import LOW_RANK_CELLS, RECURRENT
from keras_small.storage.quantized import quantized_layer
from keras_small.storage.recurrent import cells_of, on_other_cells, states_of
from keras_small.survey.calibration import Statistics
from keras_tnattn.ops import low_rank

# Maximum rows of inputs for which the states are computed.
_STATE_ROWS = 32


def moments_of(layer: keras.layers.RNN, statistics: Statistics) -> dict[str, np.ndarray]:
    """Returns the second moments of the inputs of both kernels of a layer of one cell."""
    moment = statistics.shrunk_moment
    if moment is None or statistics.call is None or len(cells_of(layer)) > 1:
        return {}
    if statistics.moment_of_states is None:  # JAX compiles the loop each time
        call = statistics.call.first_rows(_STATE_ROWS)
        states = states_of(layer, *call.args, **call.kwargs).astype("float64")
        statistics.moment_of_states = states.T @ states / len(states)
    return {"kernel": moment, "recurrent_kernel": statistics.moment_of_states}


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates with the same share of the full ranks of both kernels."""
    cell = layer.cell
    if type(cell) not in LOW_RANK_CELLS:
        return []
    moments = moments_of(layer, statistics)
    pairs = [moments.get(name) for name in RECURRENT]
    kernels = [ops.convert_to_numpy(getattr(cell, name)) for name in RECURRENT]
    # The errors add up to that of the sum of both products.
    energies = np.array(
        [
            float((kernel * (kernel if moment is None else moment @ kernel)).sum())
            for kernel, moment in zip(kernels, pairs, strict=True)
        ]
    )
    curves = [
        low_rank.low_rank_factors(kernel, moment=moment)[2]
        for kernel, moment in zip(kernels, pairs, strict=True)
    ]
    full = [len(curve) - 1 for curve in curves]
    found = []
    for first in ranks_to_try(max(full)):
        ranks = tuple(max(1, round(first * n / max(full))) for n in full)
        errors = np.array([curve[rank] for curve, rank in zip(curves, ranks, strict=True)])
        error = float(np.sqrt((energies * errors**2).sum() / (energies.sum() or 1.0)))
        if bits is not None:
            error = float(np.hypot(error, 2.0**-bits))

        def make(ranks: tuple[int, ...] = ranks) -> keras.layers.Layer:
            kind = LOW_RANK_CELLS[type(cell)]
            return on_other_cells(layer, lambda cell: kind.from_cell(cell, ranks, pairs))

        shapes = [
            shape
            for kernel, rank in zip(kernels, ranks, strict=True)
            for shape in ((kernel.shape[0], rank), (rank, kernel.shape[1]))
        ]
        found.append(
            Candidate(
                format="low_rank",
                ranks=ranks,
                bits=bits,
                bytes=factor_bytes(cell, shapes, bits),
                error=error,
                flops=2 * sum(kernel.size for kernel in kernels),
                make=make,
                quantize=None if bits is None else functools.partial(quantize_cells, bits=bits),
            )
        )
    return found


def quantize_cells(
    layer: keras.layers.RNN,
    bits: int,
    group_size: int = GROUP,
    moments: dict[str, np.ndarray] | None = None,
    step: float | None = None,
    symmetric: bool = False,
) -> keras.layers.RNN:
    """Returns the layer on cells of integers."""
    options = (bits, group_size, moments or {}, step, symmetric)
    return on_other_cells(layer, lambda cell: quantized_layer(cell, *options))
