"""Quantizes matrices to integers of 8 or 4 bits, with one scale per row.

`W[i, j] = s_i q_ij` with `q` in `[-127, 127]` or `[-7, 7]` and `s_i` in float16. Two numbers of 4
bits share a byte.
"""

import numpy as np
from keras import ops

from keras_tnattn.storage.stand_ins import StoredMatrix
from keras_tnattn.typing import Shape, Tensor

_LARGEST = {8: 127, 4: 7}
# Shares of a row's largest entry at which it may be clipped: at 4 bits, the finer steps can reduce
# the error by more than the clipping adds.
_CLIPPING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)


def check_bits(bits: int | None) -> None:
    """Raises a `ValueError` unless `bits` is 8, 4 or `None`.

    Example:
        >>> check_bits(8)
        >>> check_bits(3)
        Traceback (most recent call last):
            ...
        ValueError: Expected 8, 4 or None. Received: bits=3
    """
    if bits not in (None, *_LARGEST):
        raise ValueError(f"Expected 8, 4 or None. Received: bits={bits!r}")


def packed_columns(columns: int, bits: int) -> int:
    """Returns the number of bytes in a row of `columns` integers, without its scale.

    Example:
        >>> packed_columns(15, bits=8), packed_columns(15, bits=4)
        (15, 8)
    """
    return columns if bits == 8 else (columns + 1) // 2


def quantize_rows(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantizes each row of a matrix with the scale that gives the smallest squared error.

    Args:
        matrix: Float array `(rows, columns)`.
        bits: 8 or 4.

    Returns:
        Packed integers `(rows, packed_columns(columns, bits))` as uint8, to which 128 (8 bits) or 8
        (4 bits) was added, and the scales `(rows, 1)` as float16.

    Example:
        >>> packed, scales = quantize_rows(np.ones((3, 15)), bits=4)
        >>> tuple(packed.shape), tuple(scales.shape)
        ((3, 8), (3, 1))
    """
    numbers, scales = _rounded(matrix, bits)
    shifted = (numbers + _LARGEST[bits] + 1).astype("uint8")
    if bits == 8:
        return shifted, scales
    if shifted.shape[1] % 2:
        shifted = np.pad(shifted, ((0, 0), (0, 1)))
    return shifted[:, 0::2] | (shifted[:, 1::2] << 4), scales


def rounded_rows(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """Returns what `quantize_rows` keeps of a matrix, in floats, and the bytes that it takes.

    Args:
        matrix: Float array `(rows, columns)`.
        bits: 8 or 4.

    Example:
        >>> rounded, size = rounded_rows(np.ones((3, 15)), bits=4)
        >>> bool(np.allclose(rounded, 1, atol=1e-3)), size
        (True, 30)
    """
    numbers, scales = _rounded(matrix, bits)
    rows, columns = matrix.shape
    return numbers * scales.astype("float32"), rows * (packed_columns(columns, bits) + 2)


def _rounded(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the integers `(rows, columns)` and the scales `(rows, 1)`."""
    check_bits(bits)
    matrix = np.asarray(matrix, "float32")
    largest = _LARGEST[bits]
    peak = np.abs(matrix).max(axis=1, keepdims=True)
    best_error = np.full(peak.shape, np.inf, "float32")
    scales = np.zeros(peak.shape, "float16")
    numbers = np.zeros(matrix.shape, "int32")
    for share in _CLIPPING if bits == 4 else (1.0,):
        scale = np.minimum(peak * share / largest, 65504.0).astype("float16")
        divisor = np.where(scale == 0, 1, scale).astype("float32")
        rounded = np.clip(np.rint(matrix / divisor), -largest, largest)
        error = ((rounded * scale - matrix) ** 2).sum(axis=1, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scales = np.where(better, scale, scales)
        numbers = np.where(better, rounded, numbers).astype("int32")
    return numbers, scales


def stored_matrix(
    packed: Tensor, scales: Tensor, columns: int, bits: int, shape: Shape, order: tuple[int, ...]
) -> StoredMatrix:
    """Returns a matrix of packed rows for which a tensor can stand.

    Args:
        packed: As for `dequantize_rows`.
        scales: As for `dequantize_rows`.
        columns: As for `dequantize_rows`.
        bits: As for `dequantize_rows`.
        shape: The shape of the tensor.
        order: Its axes in the order of the matrix.

    Example:
        >>> packed, scales = quantize_rows(np.array([[1.0, -0.5]]), bits=8)
        >>> stored_matrix(packed, scales, 2, 8, (2, 1), (1, 0)).values().round(2).tolist()
        [[1.0], [-0.5]]
    """
    packed, scales = (ops.convert_to_numpy(x) for x in (packed, scales))
    if bits == 4:
        packed = np.stack([packed % 16, packed // 16], axis=-1).reshape(len(packed), -1)
    scales = scales.astype("float32")
    zeros = np.full_like(scales, _LARGEST[bits] + 1)
    return StoredMatrix(packed[:, :columns], scales, zeros, bits, columns, 1, shape, order)


def dequantize_rows(packed: Tensor, scales: Tensor, columns: int, bits: int, dtype: str) -> Tensor:
    """Converts packed rows to floats.

    Args:
        packed: uint8 tensor `(..., packed_columns(columns, bits))`.
        scales: Float tensor `(..., 1)`.
        columns: Number of columns of the matrix.
        bits: 8 or 4.
        dtype: Dtype of the result.

    Returns:
        Tensor `(..., columns)`.

    Example:
        >>> packed, scales = quantize_rows(np.array([[1.0, -0.5]]), bits=8)
        >>> packed, scales = ops.convert_to_tensor(packed), ops.convert_to_tensor(scales)
        >>> numbers = dequantize_rows(packed, scales, columns=2, bits=8, dtype="float32")
        >>> ops.convert_to_numpy(numbers).round(2).tolist()
        [[1.0, -0.5]]
    """
    numbers = ops.cast(packed, "int32")
    if bits == 4:
        pairs = ops.stack([numbers % 16, numbers // 16], axis=-1)
        shape = (*ops.shape(packed)[:-1], 2 * packed.shape[-1])
        numbers = ops.reshape(pairs, shape)[..., :columns]
    numbers = ops.cast(numbers - (_LARGEST[bits] + 1), dtype)
    return ops.multiply(numbers, ops.cast(scales, dtype))
