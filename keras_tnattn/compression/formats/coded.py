"""The layer itself, with one step for each kernel or table, for a file whose integers are coded.

Groups with scales of their own make all integers about as frequent, and an entropy coder then gains
little. One step for a whole matrix gives the same error in fewer coded bytes.
"""

import dataclasses
import functools

import keras
import numpy as np

from keras_tnattn.coding import entropy_bytes
from keras_tnattn.compression.calibration import Statistics
from keras_tnattn.compression.candidates import Candidate, byte_count, copy_layer, dense_flops
from keras_tnattn.compression.errors import row_weights
from keras_tnattn.compression.formats import dense
from keras_tnattn.compression.kinds import is_table
from keras_tnattn.storage import integer_groups
from keras_tnattn.storage.quantized import quantized_kind
from keras_tnattn.storage.recurrent import cells_of

# The steps that are tried, as shares of the root of the mean square of a kernel.
_STEPS = tuple(2 ** (k / 3) for k in range(-9, 6))
# About the bytes of a kernel in the index of a file.
_ENTRY = 50


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns the layer in integers of several steps; the bytes are those of a coded file."""
    cells = cells_of(layer) if isinstance(layer, keras.layers.RNN) else [layer]
    # Scales do not fit float16.
    if layer.compute_dtype == "float16" or any(quantized_kind(cell) is None for cell in cells):
        return []
    moments = dense.moments_of(layer, statistics)
    kernels = [kernel for cell in cells for kernel in dense.kernels_of(cell, moments)]
    if is_table(layer):
        kernels[0] = dataclasses.replace(kernels[0], weights=row_weights(layer, statistics))
    rest = byte_count(layer) - sum(kernel.bytes for kernel in kernels)
    group = max(kernel.matrix.shape[kernel.axis] for kernel in kernels)
    factored = [
        None if k.moment is None else integer_groups.FactoredMoment.of(k.moment) for k in kernels
    ]
    found = []
    for step in _STEPS:
        widths = [integer_groups.bits_of_step(kernel.matrix, step) for kernel in kernels]
        if None in widths:
            continue
        width = max(width for width in widths if width is not None)
        rounded = [
            _round(kernel, moment, width, step)
            for kernel, moment in zip(kernels, factored, strict=True)
        ]
        pairs = list(zip(kernels, rounded, strict=True))
        squares = [k.squares_of(r.near, r.sample, k.moment) for k, r in pairs]
        error, weighted = dense.error_of(squares, kernels), None
        if is_table(layer):
            # The errors of tables count all directions alike.
            alike = kernels[0].squares_of(rounded[0].near, rounded[0].sample, None)
            error, weighted = dense.error_of([alike, *squares[1:]], kernels), error
        found.append(
            Candidate(
                "dense",
                (round(100 * step),),
                width,
                rest + sum(r.bytes for r in rounded),
                error,
                dense_flops(layer),
                lambda: copy_layer(layer),
                functools.partial(
                    dense.quantize, bits=width, group_size=group, moments=moments, step=step
                ),
                weighted_error=weighted,
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class _Rounded:
    """Some columns of a kernel, what their integers stand for, and its coded bytes."""

    sample: np.ndarray
    near: np.ndarray
    bytes: int


def _round(
    kernel: dense.Kernel, moment: integer_groups.FactoredMoment | None, bits: int, step: float
) -> _Rounded:
    sample = kernel.sample()
    size = len(sample)
    # The step is a share of the numbers of the whole matrix.
    share = step * np.linalg.norm(kernel.matrix) / np.sqrt(kernel.matrix.size)
    share /= np.linalg.norm(sample) / np.sqrt(sample.size) or 1.0
    groups = integer_groups.quantize_groups(sample, bits, size, moment=moment, step=float(share))
    symbols = integer_groups.unpacked_integers(groups.integers, bits)[:size]
    coded = entropy_bytes(symbols) * kernel.matrix.size // sample.size
    return _Rounded(
        sample, integer_groups.restored_matrix(groups, size, bits, size), coded + _ENTRY
    )
