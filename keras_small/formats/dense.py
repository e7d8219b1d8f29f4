"""The layer itself, with its kernels or its table as integers in groups."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

import keras
import numpy as np
from keras import ops

from keras_small.formats.candidates import GROUP, Candidate, copy_layer, dense_flops
from keras_small.formats.recurrent import moments_of as moments_of_cells
from keras_small.formats.recurrent import quantize_cells
from keras_small.storage import integer_groups
from keras_small.storage.integer_kernels import IntegerKernels
from keras_small.storage.quantized import quantized_kind, quantized_layer
from keras_small.storage.recurrent import cells_of
from keras_small.storage.sizes import byte_count, item_size
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import direction_weights, row_weights
from keras_small.survey.kinds import is_table, second_table

# The sizes of groups that are tried for each number of bits; more bits need fewer of them. With 8
# bits also whole columns are, for runtimes whose products are fastest then.
_GROUP_SIZES = {8: (128,), 6: (64,), 4: (32, 128), 3: (16, 32, 64), 2: (16, 32)}
LARGEST_GROUP = 128
# The bits with which it is measured how much of the errors of roundings second moments leave.
_SHARE_BITS = 4
# Numbers of a kernel, in as many columns as they fill, by which the errors are estimated, and the
# maximum and minimum columns; of a table rows.
_SAMPLED_NUMBERS = 2**17
_SAMPLED_COLUMNS = 512
_MINIMUM_COLUMNS = 32


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns the layer in integers of `bits`, and of more."""
    if bits is None or any(quantized_kind(cell) is None for cell in kernel_layers(layer)):
        return []
    kernels = weighted_kernels(layer, statistics)
    share = _remaining_share(kernels, statistics)
    widths = sorted(width for width in _GROUP_SIZES if width >= bits)
    pairs = [(width, group) for width in widths for group in _GROUP_SIZES[width]]
    column = max(kernel.matrix.shape[0] for kernel in kernels)
    if column > LARGEST_GROUP and bits <= 8 and not is_table(layer):
        pairs.append((8, column))
    bytes_beside_kernels = byte_count(layer) - sum(kernel.bytes for kernel in kernels)
    found = []
    for width, group in pairs:
        error = share * relative_error(kernels, width, group)
        weighted = None
        if is_table(layer):
            # The errors of tables count all directions alike.
            alike = [dataclasses.replace(kernels[0], moment=None), *kernels[1:]]
            weighted = error
            error = relative_error(alike, width, group)
        found.append(
            Candidate(
                format="dense",
                ranks=(group,),
                bits=width,
                bytes=bytes_beside_kernels
                + sum(kernel.stored_bytes(width, group) for kernel in kernels),
                error=error,
                flops=dense_flops(layer),
                make=lambda: copy_layer(layer),
                quantize=functools.partial(
                    quantize, bits=width, group_size=group, statistics=statistics
                ),
                weighted_error=weighted,
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel as a matrix.

    Attributes:
        matrix: Float array `(I, J)`.
        axis: The axis along which groups run.
        moment: The second moment of the inputs of the matrix, or `None`.
        bytes: Bytes of the kernel as it is.
        weights: The weights of the rows of a table.
    """

    matrix: np.ndarray
    axis: int
    moment: np.ndarray | None
    bytes: int
    weights: np.ndarray | None = None

    def stored_bytes(self, bits: int, group: int) -> int:
        rows, columns = self.matrix.shape
        return integer_groups.stored_bytes((rows, columns), bits, group, self.axis)

    def squares(self, bits: int, group: int, by_moment: bool) -> tuple[float, float]:
        """Returns the squared errors and the squares, on some of the columns or rows."""
        columns = self.sample()
        moment = self.moment if by_moment else None
        groups = integer_groups.quantize_groups(columns, bits, group, moment=moment)
        restored = integer_groups.restored_matrix(groups, len(columns), bits, group)
        return self._weighted_squares(restored - columns, self.moment), self._squares_of_sample

    @functools.cached_property
    def _squares_of_sample(self) -> float:
        return self._weighted_squares(self.sample(), self.moment)

    def sample(self) -> np.ndarray:
        """Returns some of the columns, or some of the rows as columns."""
        columns = np.take(self.matrix, self._sampled, axis=1 - self.axis)
        return columns if self.axis == 0 else columns.T

    @property
    def _sampled(self) -> np.ndarray:
        across = self.matrix.shape[1 - self.axis]
        filling = _SAMPLED_NUMBERS // self.matrix.shape[self.axis]
        count = min(across, max(_MINIMUM_COLUMNS, min(_SAMPLED_COLUMNS, filling)))
        return np.linspace(0, across - 1, count).astype(int)

    def squares_of(
        self, restored: np.ndarray, columns: np.ndarray, moment: np.ndarray | None
    ) -> tuple[float, float]:
        """Returns the squared errors of a sample's rounded columns, and its squares."""
        errors = self._weighted_squares(restored - columns, moment)
        return errors, self._weighted_squares(columns, moment)

    def _weighted_squares(self, columns: np.ndarray, moment: np.ndarray | None) -> float:
        weights = 1.0 if self.weights is None else self.weights[self._sampled]
        products = columns if moment is None else moment @ columns
        return float((weights * columns * products).sum())


def kernels_of(layer: keras.layers.Layer, moments: dict[str, np.ndarray]) -> list[Kernel]:
    kind = cast(type[IntegerKernels], quantized_kind(layer))
    empty = kind.empty(layer, 8)
    kernels = []
    for name in empty.kernel_names:
        kernel = getattr(layer, name)
        size = int(np.prod(kernel.shape)) * item_size(layer.variable_dtype)
        matrix = empty.as_matrix(name, np.asarray(ops.convert_to_numpy(kernel), "float32"))
        kernels.append(Kernel(matrix, empty.group_axis(name), moments.get(name), size))
    return kernels


def weighted_kernels(layer: keras.layers.Layer, statistics: Statistics) -> list[Kernel]:
    """Returns all kernels of a layer; those of a table have the weights of its rows."""
    moments = moments_of(layer, statistics)
    kernels = [kernel for cell in kernel_layers(layer) for kernel in kernels_of(cell, moments)]
    if is_table(layer):
        kernels[0] = dataclasses.replace(kernels[0], weights=row_weights(layer, statistics))
    return kernels


def kernel_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the layers that hold the kernels: the cells of a recurrent layer, or itself."""
    return cells_of(layer) if isinstance(layer, keras.layers.RNN) else [layer]


def rounding_error(layer: keras.layers.Layer, statistics: Statistics, bits: int) -> float:
    """Returns the relative error of a layer whose kernel has integers of `bits`."""
    kernels = weighted_kernels(layer, statistics)
    return _remaining_share(kernels, statistics) * relative_error(kernels, bits, GROUP)


def _remaining_share(kernels: list[Kernel], statistics: Statistics) -> float:
    """Returns the share of rounding errors that second moments leave, about that of all bits.

    It is measured once for a layer, because it takes a factorization of each moment.
    """
    if all(kernel.moment is None for kernel in kernels):
        return 1.0
    if statistics.rounding_share is None:
        plain = relative_error(kernels, _SHARE_BITS, GROUP)
        better = relative_error(kernels, _SHARE_BITS, GROUP, by_moment=True)
        statistics.rounding_share = min(1.0, better / (plain or 1.0))
    return statistics.rounding_share


def relative_error(kernels: list[Kernel], bits: int, group: int, by_moment: bool = False) -> float:
    """Returns the relative error of the sum of the products with all kernels.

    The products with the two tables of an embedding are not added: both count alike.
    """
    return error_of([k.squares(bits, group, by_moment) for k in kernels], kernels)


def error_of(squares: Sequence[tuple[float, float]], kernels: Sequence[Kernel]) -> float:
    """Returns the relative error of squared errors and squares; see `relative_error`."""
    errors, sizes = zip(*squares, strict=True)
    if kernels[0].weights is not None:
        shares = [error / (size or 1.0) for error, size in zip(errors, sizes, strict=True)]
        return float(np.sqrt(max(np.mean(shares), 0.0)))
    return float(np.sqrt(max(sum(errors), 0.0) / (sum(sizes) or 1.0)))


def moments_of(layer: keras.layers.Layer, statistics: Statistics) -> dict[str, np.ndarray]:
    """Returns the second moments by which the kernels of a layer are rounded, by their names."""
    if isinstance(layer, keras.layers.RNN):
        return moments_of_cells(layer, statistics)
    moment = statistics.shrunk_moment
    if second_table(layer) is not None:  # only the second one is multiplied by features
        return {} if moment is None else {"reverse_embeddings": moment}
    if is_table(layer):
        directions = direction_weights(statistics)
        return {} if directions is None else {"embeddings": directions @ directions}
    return {} if moment is None else {"kernel": moment}


def quantize(
    layer: keras.layers.Layer,
    bits: int,
    group_size: int,
    statistics: Statistics,
    step: float | None = None,
    symmetric: bool = False,
) -> keras.layers.Layer:
    """Returns a copy of a layer of integers."""
    moments = moments_of(layer, statistics)
    if isinstance(layer, keras.layers.RNN):
        return quantize_cells(layer, bits, group_size, moments, step, symmetric)
    symmetric = symmetric and not is_table(layer)
    return quantized_layer(layer, bits, group_size, moments, step, symmetric)
