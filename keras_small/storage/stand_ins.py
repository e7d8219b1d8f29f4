"""Lets one tensor stand for each matrix of integers while a model is traced for a file.

A layer restores its kernel, or the rows of its table, from integers. A file need not: its runtime
may multiply with the integers themselves. While `standing_in` is entered, layers read the tensor
that stands for a matrix and restore nothing, so that in the graph the matrix is one tensor. What it
stands for is the `StoredMatrix` of `stored_matrices`.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping

import keras
import numpy as np

from keras_tnattn.typing import Shape, Tensor

_tensors: contextvars.ContextVar[Mapping[tuple[int, str], Tensor]]
_tensors = contextvars.ContextVar("tensors")


@dataclasses.dataclass(frozen=True)
class StoredMatrix:
    """A matrix `W = s (q - z)` of integers `q`, and the tensor that has its entries.

    Attributes:
        numbers: The integers `q`, uint8 `(rows, columns)`.
        scales: The scales `s`, float32: the matrix with one entry for each group along `axis`.
        zeros: The zeros `z`, float32 of the shape of `scales`. They can be halves.
        bits: Bits of an integer.
        group_size: Entries along `axis` that share a scale; the last group may have fewer.
        axis: 0 or 1.
        shape: The shape of the tensor.
        order: The axes of the tensor in the order of the matrix: those of its rows, then those of
            its columns.

    Example:
        >>> scales, zeros = np.float32([[0.5, 2]]), np.float32([[8, 8]])
        >>> numbers = np.uint8([[9, 8], [7, 10]])
        >>> StoredMatrix(numbers, scales, zeros, 4, 32, 0, (2, 2), (0, 1)).values().tolist()
        [[0.5, 0.0], [-0.5, 4.0]]
    """

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    bits: int
    group_size: int
    axis: int
    shape: Shape
    order: tuple[int, ...]

    def arranged(self, matrix: np.ndarray) -> np.ndarray:
        """Returns an array with an entry for each integer, or each group, in the tensor's shape.

        It is a view where it can be one, which must not be written to.
        """
        rows, columns = self.numbers.shape
        if matrix.shape[self.axis] == 1:
            matrix = np.broadcast_to(matrix, (rows, columns))
        elif matrix.shape != (rows, columns):
            matrix = np.repeat(matrix, self.group_size, axis=self.axis)[:rows, :columns]
        parts = matrix.reshape([self.shape[axis] for axis in self.order])
        return parts.transpose(np.argsort(self.order))

    def padded(self) -> "StoredMatrix":
        """Returns a matrix whose last group is filled up with zeros."""
        groups = self.scales.shape[self.axis]
        padding = [(0, 0), (0, 0)]
        if groups > 1:
            padding[self.axis] = (0, -self.numbers.shape[self.axis] % self.group_size)
        return dataclasses.replace(self, numbers=np.pad(self.numbers, padding))

    def grouped(self, matrix: np.ndarray) -> np.ndarray:
        """Returns an array with an entry for each integer, or each group, with an axis of groups.

        Axis 0 becomes the groups and their entries, one or all, or axis 1. The matrix is padded.
        """
        groups = self.scales.shape[self.axis]
        rows, columns = matrix.shape
        return matrix.reshape((groups, -1, columns) if self.axis == 0 else (rows, groups, -1))

    def values(self) -> np.ndarray:
        """Returns the tensor, float32."""
        values = self.arranged(self.numbers) - self.arranged(self.zeros)
        values *= self.arranged(self.scales)
        return values


@contextlib.contextmanager
def standing_in(tensors: Mapping[tuple[int, str], Tensor]) -> Iterator[None]:
    """Lets tensors stand for stored matrices, by the `id` of their layer and their name."""
    token = _tensors.set(tensors)
    try:
        yield
    finally:
        _tensors.reset(token)


def stand_in(layer: keras.layers.Layer, name: str) -> Tensor | None:
    """Returns the tensor that stands for a matrix of a layer, or `None` if there is none."""
    return _tensors.get({}).get((id(layer), name))


def stored_matrices(layer: keras.layers.Layer) -> dict[str, StoredMatrix]:
    """Returns the matrices of integers for which a tensor can stand in a layer, by their names."""
    own = getattr(layer, "stored_matrices", None)
    return own() if own is not None and layer.built else {}
