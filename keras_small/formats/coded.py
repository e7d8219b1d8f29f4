"""Integers with few different steps, for a file whose integers are coded.

Groups with scales of their own make all integers about as frequent, and an entropy coder then gains
little. One step for a whole kernel gives the same error in fewer coded bytes, even fewer if numbers
near a half are rounded towards 0.

The error of a table whose ids were counted is least for its bytes if each number adds the same to
it: a row of weight `w` then has a step in proportion to `w^(-1/2)`. Coordinates along the principal
axes take fewer bytes than the rows themselves, as most of them are small. A row of the basis has
the weight of its coordinates, the sum of their weighted squares. If ids may be renumbered, the axes
are rotated so that a row has few large coordinates, similar rows follow each other, and a file
tells little more than where they differ.
"""

import copy
import dataclasses
import functools
import math

import keras
import numpy as np

from keras_small.coding import arrays
from keras_small.coding.arrays import coded_bytes
from keras_small.formats import dense
from keras_small.formats.candidates import Candidate, copy_layer, dense_flops
from keras_small.storage import integer_groups
from keras_small.storage.quantized import quantized_kind
from keras_small.storage.quantized_embeddings import QuantizedLowRankEmbedding
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import TableErrors
from keras_small.survey.kinds import is_plain_table, is_table
from keras_tnattn.layers import LowRankEmbedding
from keras_tnattn.layers.factored_embedding import embedding_options

# The steps that are tried, as shares of the root of the mean square of a kernel, and of the numbers
# of a table, by weight.
_KERNEL_STEPS = tuple(2 ** (k / 3) for k in range(-12, 6))
_TABLE_STEPS = tuple(2 ** (k / 18) for k in range(-72, 56))
# Added to the counts of ids: other texts have some that never occurred.
_UNSEEN_COUNT = 1.0
# Steps of rows from a power of 2 to the next one; few different ones take few bytes.
_STEP_CLASSES = 2
# Minimum weight of a row, as a share of the maximum: a file stores steps that differ by up to 2^15.
_MINIMUM_WEIGHT = 2.0**-28
# The bits of a table in principal axes.
_TABLE_BITS = 8
# Maximum rows by which its coded bytes are estimated.
_ENTROPY_ROWS = 4096
_ROTATIONS = 60
# Approximate bytes of a kernel in the index of a file.
_INDEX_BYTES = 50


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns the layer in integers of several steps; the bytes are those of a coded file."""
    known = all(quantized_kind(cell) for cell in dense.kernel_layers(layer))
    # Scales do not fit float16.
    if layer.compute_dtype == "float16" or not known:
        return []
    kernels = dense.weighted_kernels(layer, statistics)
    bytes_beside_kernels = byte_count(layer) - sum(kernel.bytes for kernel in kernels)
    group = max(kernel.matrix.shape[kernel.axis] for kernel in kernels)
    factored = [
        None if k.moment is None else integer_groups.FactoredMoment.of(k.moment) for k in kernels
    ]
    found = []
    for step in _KERNEL_STEPS:
        widths = [integer_groups.bits_of_step(kernel.matrix, step) for kernel in kernels]
        if None in widths:
            continue
        width = max(width for width in widths if width is not None)
        rounded = [
            _round(kernel, moment, width, step)
            for kernel, moment in zip(kernels, factored, strict=True)
        ]
        pairs = list(zip(kernels, rounded, strict=True))
        squares = [k.squares_of(r.restored, r.sample, k.moment) for k, r in pairs]
        error = dense.error_of(squares, kernels)
        weighted = None
        if is_table(layer):
            # The errors of tables count all directions alike.
            alike = kernels[0].squares_of(rounded[0].restored, rounded[0].sample, None)
            weighted = error
            error = dense.error_of([alike, *squares[1:]], kernels)
        found.append(
            Candidate(
                format="dense",
                ranks=(round(100 * step),),
                bits=width,
                bytes=bytes_beside_kernels + sum(r.bytes for r in rounded),
                error=error,
                flops=dense_flops(layer),
                make=lambda: copy_layer(layer),
                quantize=functools.partial(
                    dense.quantize, bits=width, group_size=group, statistics=statistics, step=step
                ),
                weighted_error=weighted,
            )
        )
    if is_table(layer):
        found += _table_candidates(layer, statistics)
    return found


def _table_candidates(layer: keras.layers.Embedding, statistics: Statistics) -> list[Candidate]:
    """Returns the table in principal axes, with steps by how often ids occurred."""
    basis_is_larger = layer.input_dim < layer.output_dim
    if basis_is_larger or statistics.counts is None or not is_plain_table(layer):
        return []
    errors = TableErrors(layer, statistics)
    factors = errors.factors
    rotation = _rotation(factors.coordinates, _ROTATIONS if statistics.kept_ids is not None else 0)
    coordinates = factors.coordinates @ rotation
    basis = (rotation.T @ factors.basis).astype("float32")
    of_basis = factors.squares @ np.square(rotation)
    weights = statistics.counts + _UNSEEN_COUNT
    squares = weights @ np.einsum("vk,vk->v", coordinates, coordinates)
    size = np.sqrt(squares / coordinates.size) or 1.0
    highest = [np.maximum(part.max(axis=1), -part.min(axis=1)) for part in (coordinates, basis)]
    spread = np.linspace(0, len(coordinates) - 1, min(len(coordinates), _ENTROPY_ROWS)).astype(int)

    def make(rows: np.ndarray | slice) -> LowRankEmbedding:
        new = LowRankEmbedding(
            layer.input_dim, layer.output_dim, len(basis), **embedding_options(layer)
        )
        new.build()
        new.assign_factors(coordinates[rows], basis)
        return new

    found = []
    for step in _TABLE_STEPS:
        price = step * size
        row_steps = _steps(highest[0], weights, price)
        basis_steps = _steps(highest[1], of_basis, price)
        classes = np.rint(_STEP_CLASSES * np.log2(row_steps.max() / row_steps)).astype("uint8")
        order = None
        encoded = spread
        rows: np.ndarray | slice = slice(None)
        if statistics.kept_ids is not None:
            integers = _integers(coordinates, row_steps)
            order = encoded = rows = arrays.sorted_rows(classes, integers, statistics.kept_ids)
        integers = _integers(coordinates[encoded], row_steps[encoded])
        coded = coded_bytes(integers, coordinates.size, are_sorted=order is not None)
        for array in (classes[rows], _integers(basis, basis_steps)):
            coded += len(arrays.encode(array)[1])
        coded += 3 * _INDEX_BYTES
        rounded = _rounded(coordinates[errors.rows], row_steps[errors.rows])
        error, weighted = errors.of(rounded @ _rounded(basis, basis_steps) @ factors.inverse)
        found.append(
            Candidate(
                format="low_rank",
                ranks=(len(basis), round(100 * step)),
                bits=_TABLE_BITS,
                bytes=coded,
                error=error,
                flops=2 * basis.size,
                make=functools.partial(make, rows),
                quantize=functools.partial(
                    QuantizedLowRankEmbedding.from_layer,
                    bits=_TABLE_BITS,
                    steps=(row_steps[rows], basis_steps),
                ),
                weighted_error=weighted,
                id_order=functools.partial(copy.copy, order),
            )
        )
    return found


def _rotation(coordinates: np.ndarray, rounds: int) -> np.ndarray:
    """Returns a rotation after which rows have few large coordinates, most of them positive.

    As for independent components, the mean of a power of the coordinates is the largest.
    """
    rows = coordinates[:: math.ceil(len(coordinates) / _ENTROPY_ROWS)]
    rows = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12)
    rotation = np.eye(rows.shape[1], dtype="float32")
    for _ in range(rounds):
        u, _, vt = np.linalg.svd(rows.T @ np.square(np.maximum(rows @ rotation, 0)))
        rotation = u @ vt
    return rotation


def _steps(highest: np.ndarray, weights: np.ndarray, price: float) -> np.ndarray:
    """Returns steps for rows of some weights, so that 8 bits hold their `highest` numbers."""
    wanted = -np.log2(np.maximum(weights, _MINIMUM_WEIGHT * (weights.max() or 1.0))) / 2
    minimum = np.log2(highest / (2 ** (_TABLE_BITS - 1) - 1) / price + 1e-30)
    levels = np.maximum(np.rint(_STEP_CLASSES * wanted), np.ceil(_STEP_CLASSES * minimum))
    return price * 2.0 ** (levels / _STEP_CLASSES)


def _rounded(matrix: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return integer_groups.rounded_in_steps(matrix / steps[:, None]) * steps[:, None]


def _integers(matrix: np.ndarray, steps: np.ndarray) -> np.ndarray:
    integers = integer_groups.rounded_in_steps(matrix / steps[:, None])
    return (integers + 2 ** (_TABLE_BITS - 1)).astype("uint8")


@dataclasses.dataclass(frozen=True)
class _Rounded:
    """Some columns of a kernel, the floats that their integers stand for, and its coded bytes."""

    sample: np.ndarray
    restored: np.ndarray
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
    coded = coded_bytes(symbols, kernel.matrix.size)
    return _Rounded(
        sample, integer_groups.restored_matrix(groups, size, bits, size), coded + _INDEX_BYTES
    )
