"""Stores rows as integers of 2 to 8 bits whose levels lie evenly around 0, with a scale per row.

`w' = s (q - (2^b - 1) / 2)` with `q` in `0, ..., 2^b - 1`: at 2 bits, `-1.5 s, -0.5 s, 0.5 s` and
`1.5 s`. For numbers that are about normal this loses less than levels one of which is 0: at 2 bits
12 % of the squares. Scales are powers, `s = S 2^(-u / 16)` with `u` in 0, ..., 255 and one `S` for
the whole matrix, so that a row costs one byte more than its integers. Everything is uint8 but `S`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_small.storage.integer_groups import (
    check_group_bits,
    pack,
    packed_size,
    unpack,
    unpacked_integers,
)
from keras_tnattn.typing import Tensor

# The scale that suits normal numbers of variance 1, from which that of a row is found.
_FIRST_SCALE = {2: 0.996, 3: 0.586, 4: 0.335, 6: 0.104, 8: 0.031}
# The shares of it with which the search begins, because the error has many local minima.
_FIRST_SHARES = (1.0, 0.7, 0.85, 1.15, 1.3)
# How often the integers and the scale of a row are then fitted to each other.
_FITS = 2
# A scale is the largest one divided by a power of 2^(1/16).
_SCALES_PER_OCTAVE = 16
# Numbers of a matrix that are quantized at once.
_NUMBERS_AT_ONCE = 2**20


class EvenRows(NamedTuple):
    """A matrix `(n, r)` of which each row is stored as integers with a scale.

    Attributes:
        integers: Packed integers, uint8 `(n, packed_size(r, bits))`.
        scales: The codes `u` of the scales, uint8 `(n, 1)`.
        largest: The largest scale `S`.
    """

    integers: np.ndarray
    scales: np.ndarray
    largest: np.float32


def row_bytes(columns: int, bits: int) -> int:
    """Returns the bytes of a row and its scale."""
    return packed_size(columns, bits) + 1


def quantize_rows(matrix: np.ndarray, bits: int, importance: np.ndarray | None = None) -> EvenRows:
    """Quantizes each row of a matrix with a scale that gives a small squared error.

    Args:
        matrix: Float array `(n, r)`.
        bits: 2, 3, 4, 6 or 8.
        importance: Weights of the squared errors of the columns, array `(r,)`. Default: all alike.

    Returns:
        The packed arrays.

    Example:
        >>> rows = quantize_rows(np.ones((3, 15)), bits=2)
        >>> rows.integers.shape, rows.scales.shape
        ((3, 4), (3, 1))
    """
    check_group_bits(bits)
    matrix = np.asarray(matrix, "float32")
    weights = np.ones(matrix.shape[1]) if importance is None else np.asarray(importance)
    weights = (weights / (weights.mean() or 1.0)).astype("float32")
    step = max(1, _NUMBERS_AT_ONCE // max(1, matrix.shape[1]))
    parts = [matrix[start : start + step] for start in range(0, max(1, len(matrix)), step)]
    scales = np.concatenate([_fitted_scales(part, bits, weights) for part in parts])
    largest = np.float32(scales.max(initial=0.0) or 1.0)
    exponents = -_SCALES_PER_OCTAVE * np.log2(np.maximum(scales / largest, 1e-30))
    codes = np.clip(np.rint(exponents), 0, 255).astype("uint8")
    rounded = largest * np.exp2(codes.astype("float32") / -_SCALES_PER_OCTAVE)
    scales_of = np.split(rounded, range(step, len(matrix), step))
    integers = [
        pack(_rounded_integers(part, scale, bits).T, bits).T
        for part, scale in zip(parts, scales_of, strict=True)
    ]
    return EvenRows(np.concatenate(integers), codes, largest)


def rounded_rows(matrix: np.ndarray, bits: int, importance: np.ndarray | None = None) -> np.ndarray:
    """Returns a matrix as `quantize_rows` stores it, restored in float32."""
    integers, *shared = quantize_rows(matrix, bits, importance)
    # By NumPy: JAX would compile each operation for each number of columns.
    numbers = unpacked_integers(integers.T, bits)[: matrix.shape[1]].T
    scales = ops.convert_to_numpy(steps(*map(ops.convert_to_tensor, shared)))
    return (numbers.astype("float32") - np.float32(_middle(bits))) * scales


def _fitted_scales(rows: np.ndarray, bits: int, weights: np.ndarray) -> np.ndarray:
    """Returns the best scales `(n, 1)` that fits of integers and scales in turns find."""
    first = np.sqrt(np.square(rows) @ weights / rows.shape[1])[:, None] * _FIRST_SCALE[bits]
    best = first
    least_errors = np.full(first.shape, np.inf)
    for share in _FIRST_SHARES:
        scales = share * first
        for _ in range(_FITS):
            near = _rounded_integers(rows, scales, bits) - _middle(bits)
            fitted = (rows * near) @ weights / (np.square(near) @ weights + 1e-30)
            scales = np.maximum(fitted, 0.0)[:, None]
        near = _rounded_integers(rows, scales, bits) - _middle(bits)
        errors = (np.square(scales * near - rows) @ weights)[:, None]
        best = np.where(errors < least_errors, scales, best)
        least_errors = np.minimum(errors, least_errors)
    return best


def _middle(bits: int) -> float:
    return (2**bits - 1) / 2


def _rounded_integers(rows: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    divisors = np.where(scales > 0, scales, 1.0).astype("float32")
    return np.clip(np.rint(rows / divisors + _middle(bits)), 0, 2**bits - 1)


def dequantize_rows(parts: Sequence[Tensor], columns: int, bits: int) -> Tensor:
    """Converts packed rows to floats.

    Args:
        parts: The three arrays or tensors of an `EvenRows`, of which the first two may have any
            leading axes.
        columns: The number of columns of the matrix.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        float32 tensor `(..., columns)`.
    """
    integers, scales, largest = map(ops.convert_to_tensor, parts)
    return levels(integers, columns, bits) * steps(scales, largest)


def numbers_of_rows(
    parts: Sequence[Tensor], columns: int, bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the integers, the scales and the zeros of packed rows, which are halves.

    Returns:
        uint8 array `(n, columns)`, and two float32 arrays `(n, 1)`.
    """
    integers, scales, largest = map(ops.convert_to_tensor, parts)
    numbers = ops.convert_to_numpy(unpack(integers, columns, bits, axis=-1)).astype("uint8")
    scale = ops.convert_to_numpy(steps(scales, largest))
    return numbers, scale, np.full_like(scale, _middle(bits))


def steps(scales: Tensor, largest: Tensor) -> Tensor:
    """Returns the scales `s` of rows, a float32 tensor, from their codes."""
    powers = ops.exp(ops.cast(scales, "float32") * (-math.log(2) / _SCALES_PER_OCTAVE))
    return powers * ops.cast(largest, "float32")


def levels(integers: Tensor, columns: int, bits: int) -> Tensor:
    """Returns the levels `q - (2^b - 1) / 2` of packed rows, a float32 tensor."""
    return unpack(integers, columns, bits, axis=-1) - _middle(bits)


def round_to_rows(matrix: Tensor, parts: Sequence[Tensor], bits: int) -> tuple[Tensor, Tensor]:
    """Rounds a matrix to integers with given scales.

    Args:
        matrix: Float tensor `(n, r)`.
        parts: As for `dequantize_rows`; the integers are not read.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        The integers, and the floats that they stand for, both float32 `(n, r)`.
    """
    scale = steps(parts[1], parts[2])
    numbers = ops.round(ops.cast(matrix, "float32") / scale + _middle(bits))
    numbers = ops.clip(numbers, 0, 2**bits - 1)
    return numbers, (numbers - _middle(bits)) * scale
