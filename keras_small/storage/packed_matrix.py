"""Weights of a layer that store a matrix as integers in groups, for tables and their factors."""

import keras
import numpy as np
from keras import ops

from keras_small.storage import integer_groups
from keras_small.storage.integer_kernels import PARTS
from keras_small.storage.stand_ins import StoredMatrix
from keras_tnattn.typing import Tensor

BASIS_BITS = 8  # of a basis beside integers


class PackedMatrix:
    """Weights of a layer that store a matrix as integers in groups along its rows.

    Args:
        layer: The layer, which gets the weights.
        name: The beginning of their names.
        shape: The shape of the matrix.
        bits: 2, 3, 4, 6 or 8.
        group_size: Entries that share a scale and a zero. Default: those of a whole row.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        name: str,
        shape: tuple[int, int],
        bits: int,
        group_size: int | None = None,
    ) -> None:
        self.shape = shape
        self.bits = bits
        self.group_size = group_size or shape[1]
        shapes = integer_groups.packed_shapes(shape, bits, self.group_size, axis=1)
        dtypes = {part: "float32" if part == "largest" else "uint8" for part in PARTS}
        self.weights = [
            layer.add_weight(
                shapes[part],
                np.zeros,  # without a program of JAX for each shape
                dtype=dtypes[part],
                trainable=False,
                autocast=False,
                name=f"{name}_{part}",
            )
            for part in PARTS
        ]

    def assign(self, matrix: np.ndarray, steps: np.ndarray | None = None) -> None:
        """Quantizes a matrix of floats.

        Args:
            matrix: The matrix.
            steps: The step of each row, if a row is a group. Default: those of small errors.
        """
        if steps is None:
            groups = integer_groups.quantize_groups(matrix, self.bits, self.group_size, axis=1)
        else:
            groups = integer_groups.quantize_in_steps(matrix, steps, self.bits)
        for weight, part in zip(self.weights, groups, strict=True):
            weight.assign(part)

    def rounded(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Rounds a matrix with the present steps; returns its integers and the restored floats."""
        return integer_groups.round_to_groups(
            matrix, self.weights, self.bits, self.group_size, axis=1
        )

    def rows(self, ids: Tensor | None = None) -> Tensor:
        """Returns rows in float32. Default: all."""
        *parts, largest = map(ops.convert_to_tensor, self.weights)
        if ids is not None:
            parts = [ops.take(part, ids, axis=0) for part in parts]
        return integer_groups.dequantize_groups(
            [*parts, largest], self.shape[1], self.bits, self.group_size, axis=1
        )

    def stored_matrix(self) -> StoredMatrix:
        """Returns the matrix, for which a tensor can stand."""
        arrays = integer_groups.numbers_of_groups(self.weights, self.shape[1], self.bits, axis=1)
        return StoredMatrix(*arrays, self.bits, self.group_size, 1, self.shape, (0, 1))
