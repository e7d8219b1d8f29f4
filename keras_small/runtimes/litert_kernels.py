"""The integers with which LiteRT multiplies in place of the stored ones.

Its products take constant filters of int8 with one scale for each unit, or, of dense layers, of
int4 with one for each unit or block of its inputs, and no zeros; they round inputs to 8 bits.
Integers of another form are rounded once more, to int8 by unit.
"""

import dataclasses
import zlib
from collections.abc import Mapping

import numpy as np

from keras_small.storage.stand_ins import StoredMatrix

_FILTER_BLOCK_SIZES = (32, 64, 128, 256)
_EQUAL_WITHIN = 1e-6  # the maximum relative error of integers that count as the same


@dataclasses.dataclass(frozen=True)
class Filter:
    """A filter of integers.

    Attributes:
        matrix: The matrix that the model has, `(inputs, units)`.
        numbers: The integers, int8 `(units, inputs)`.
        scales: Their scales, float32 `(units, 1)` or `(units, blocks)`.
        bits: 4 or 8.
    """

    matrix: StoredMatrix
    numbers: np.ndarray
    scales: np.ndarray
    bits: int

    @property
    def error(self) -> float:
        """The relative error of the integers."""
        values = _floats_of(self.matrix)
        units, blocks = self.scales.shape
        floats = self.numbers.reshape(units, blocks, -1) * self.scales[:, :, None]
        error = np.linalg.norm(floats.reshape(values.shape) - values)
        return float(error / (np.linalg.norm(values) or 1.0))

    def factors(self, array: np.ndarray) -> np.ndarray | None:
        """Returns the factor of each unit by which a normalization made an array of these floats.

        It is `None` if the array is something else.
        """
        if array.shape != self.numbers.shape:
            return None
        # Most others differ in the first unit.
        if _factors(array[:1], _floats_of(self.matrix, units=1)) is None:
            return None
        return _factors(array, _floats_of(self.matrix))


def _floats_of(matrix: StoredMatrix, units: int | None = None) -> np.ndarray:
    """Returns the floats of a matrix, or of its first units, `(units, inputs)`."""
    numbers = matrix.numbers[:, :units]
    part = dataclasses.replace(
        matrix,
        numbers=numbers,
        scales=matrix.scales[:, :units],
        zeros=matrix.zeros[:, :units],
        shape=numbers.shape,
        order=(0, 1),
    )
    return part.values().T


def _factors(array: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    squares = np.square(values).sum(axis=1)
    factors = (array * values).sum(axis=1) / np.where(squares > 0, squares, 1)
    error = np.abs(array - factors[:, None] * values).max(initial=0)
    return factors if error <= 1e-5 * np.abs(array).max(initial=0) and factors.all() else None


def filter_of(matrix: StoredMatrix) -> Filter | None:
    """Returns the filter for a matrix, or `None` if it is restored as floats.

    Example:
        >>> numbers, scales = np.uint8([[9, 8], [7, 15]]), np.float32([[0.5, 2]])
        >>> zeros = np.float32([[8, 8]])
        >>> matrix = StoredMatrix(numbers, scales, zeros, 4, 32, 0, (2, 2), (0, 1))
        >>> filter_of(matrix).numbers.tolist()
        [[1, -1], [0, 7]]
    """
    if matrix.axis != 0:
        return None
    groups = len(matrix.scales)
    inputs = len(matrix.numbers)
    blocks = groups == 1 or (
        matrix.group_size in _FILTER_BLOCK_SIZES and inputs == groups * matrix.group_size
    )
    without_zeros = (matrix.zeros == 2 ** (matrix.bits - 1)).all()
    of_8_bits = matrix.bits > 4 or len(matrix.shape) > 3
    # Kernels take -127 to 127.
    smallest = int(matrix.numbers.min()) - 2 ** (matrix.bits - 1)
    if without_zeros and (groups == 1 if of_8_bits else blocks) and smallest > -128:
        numbers = matrix.numbers.T - np.uint8(2 ** (matrix.bits - 1))
        return Filter(matrix, numbers.view("int8"), matrix.scales.T, 8 if of_8_bits else 4)
    floats = _floats_of(matrix)
    scales = np.abs(floats).max(axis=1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return Filter(matrix, np.rint(floats / scales).astype("int8"), scales, 8)


def change_of(
    matrices: Mapping[str, StoredMatrix], shown: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the matrices that a file holds only when they are rounded once more, and how.

    Args:
        matrices: The matrices by name.
        shown: Their names in reports, by these names. Default: the names.
    """
    forms = {name: filter_of(matrix) for name, matrix in matrices.items()}
    return {
        (shown or {}).get(name, name): "rounded again, to 8 bits with a scale for each unit"
        for name, form in forms.items()
        if form is not None and form.error > _EQUAL_WITHIN
    }


def content_key(matrix: StoredMatrix) -> int:
    """Returns a checksum by which a matrix is found again in another trace."""
    return zlib.crc32(matrix.numbers.tobytes() + matrix.scales.tobytes())
