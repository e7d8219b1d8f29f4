"""Stores matrices as integers of 2 to 8 bits, with a scale and a zero for each group of entries.

A group is a run of `g` entries of a column of `W` (`axis=0`) or of a row (`axis=1`). Entry `w` of a
group with scale `s` and zero `z` becomes `q = clip(round(w / s) + z, 0, 2^b - 1)`, and
`w' = s (q - z)`. Scales are powers, `s = S 2^(-u / 16)` with `u` in 0, ..., 255 and one `S` for the
whole matrix, so that a group costs one byte for `u` and `b` bits for `z`: at 4 bits and `g = 32` a
weight takes 4.375 bits. Everything is uint8 but `S`, and is restored by sums, products, floors and
an exponential of floats, which every runtime has.

With the second moment `C` of the inputs `x` of `x W`, the integers of a column are chosen one after
the other, and the error of each is made up for by the entries that are still to be rounded, so that
`||C^{1/2} (W - W')||` is small (GPTQ, Frantar et al., 2022, https://arxiv.org/abs/2210.17323).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_small.storage.cholesky import invert_factor
from keras_small.storage.latest import remember_latest
from keras_tnattn.checks import check_int
from keras_tnattn.typing import Tensor

# For each number of bits: the bytes of a unit, and the integers that it holds.
_UNITS = {2: (1, 4), 3: (3, 8), 4: (1, 2), 6: (3, 4), 8: (1, 1)}
# A scale is the largest one divided by a power of 2^(1/16).
_SCALES_PER_OCTAVE = 16
# Shares of a group's range at which it may be clipped: finer steps can reduce the error by more
# than the clipping adds. With 8 or 6 bits they do not.
_CLIPPING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
# Second moments and squared scales beyond this are divided by their size: their products overflow
# float32.
_LARGE_SQUARE = 2.0**50
# The share of the mean second moment that is added to each, in case the inputs span no basis.
_DAMPING = 0.01
# With one step for many numbers, the bytes that a coder saves are worth more error: numbers are
# rounded up only above a half plus a shift, this times the step as a share of the numbers' size.
_SHIFT = 0.1
_MAXIMUM_SHIFT = 0.3
# Larger second moments are factored in float32, for which they are damped enough.
_FACTORED_IN_FLOAT64 = 1024
# Rows that are rounded before the others make up for their errors, by one matrix product.
_BLOCK_ROWS = 64
# Numbers of a matrix that are quantized at once.
_NUMBERS_AT_ONCE = 2**20


class IntegerGroups(NamedTuple):
    """A matrix `(rows, columns)` stored as integers in groups along an axis.

    Attributes:
        integers: Packed integers, uint8: the matrix with its size along the axis replaced by
            `packed_size` of it.
        scales: The codes `u` of the scales, uint8: the matrix with one entry for each group.
        zeros: Packed zeros of the groups, uint8.
        largest: The largest scale `S`, float32 array of shape `()`.
    """

    integers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    largest: np.ndarray | np.float32

    @property
    def nbytes(self) -> int:
        """The bytes of all four arrays."""
        return sum(part.nbytes for part in self)


class FactoredMoment(NamedTuple):
    """A second moment `C`, in the form in which `quantize_groups` needs it.

    Attributes:
        weights: The diagonal of `C`.
        order: The rows in the order in which they are rounded, the largest inputs first.
        factor: `U` of `U^T U = C^{-1}` in that order.

    If `C` is large, all of them are those of `C` divided by its mean diagonal entry.
    """

    weights: np.ndarray
    order: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, moment: np.ndarray) -> "FactoredMoment":
        """Factors a matrix `(n, n)`, once for all steps that are tried with it."""
        return _factored(moment)


@remember_latest
def _factored(moment: np.ndarray) -> FactoredMoment:
    dtype = "float64" if len(moment) <= _FACTORED_IN_FLOAT64 else "float32"
    size = float(np.trace(moment, dtype="float64")) / len(moment)
    scale = size if size > _LARGE_SQUARE else 1.0
    weights = np.diag(moment).astype("float64") / scale + 1e-12
    order = np.argsort(-np.diag(moment), kind="stable")
    # Backwards, so that the inverse of the lower factor is the upper factor of the inverse.
    backwards = order[::-1]
    damped = moment[np.ix_(backwards, backwards)].astype(dtype, copy=False)
    damped /= scale
    damped[np.diag_indices(len(damped))] += _DAMPING * size / scale + 1e-12
    invert_factor(damped)
    return FactoredMoment(weights, order, damped[::-1, ::-1].astype("float32", copy=False))


def check_group_bits(bits: int) -> None:
    """Raises a `ValueError` unless `bits` is 2, 3, 4, 6 or 8."""
    if isinstance(bits, bool) or bits not in _UNITS:
        raise ValueError(f"Expected 2, 3, 4, 6 or 8 bits. Received: bits={bits!r}")


def packed_size(size: int, bits: int) -> int:
    """Returns the number of bytes that hold `size` integers."""
    num_bytes, num_integers = _UNITS[bits]
    return num_bytes * math.ceil(size / num_integers)


def packed_shapes(
    shape: tuple[int, int], bits: int, group_size: int, axis: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the four arrays of an `IntegerGroups` by their names."""
    groups = math.ceil(shape[axis] / group_size)
    sizes = {
        "integers": packed_size(shape[axis], bits),
        "scales": groups,
        "zeros": packed_size(groups, bits),
    }
    shapes: dict[str, tuple[int, ...]] = {
        name: tuple(size if i == axis else n for i, n in enumerate(shape))
        for name, size in sizes.items()
    }
    return shapes | {"largest": ()}


def stored_bytes(shape: tuple[int, int], bits: int, group_size: int, axis: int = 0) -> int:
    """Returns the bytes that a matrix takes."""
    shapes = packed_shapes(shape, bits, group_size, axis)
    return 4 + sum(math.prod(shapes[name]) for name in ("integers", "scales", "zeros"))


def quantize_groups(
    matrix: np.ndarray,
    bits: int,
    group_size: int = 32,
    axis: int = 0,
    moment: np.ndarray | FactoredMoment | None = None,
    step: float | None = None,
    symmetric: bool = False,
) -> IntegerGroups:
    """Quantizes a matrix in groups along an axis.

    Args:
        matrix: Float array `(rows, columns)`.
        bits: 2, 3, 4, 6 or 8.
        group_size: Entries of a group; the last one may have fewer. Defaults to 32.
        axis: 0 for groups within columns, such as the inputs of a unit, 1 for groups within rows,
            such as the features of an embedded id. Defaults to 0.
        moment: Positive semidefinite matrix `(n, n)` with `n` the size of the axis: the mean of
            `x x^T` over the inputs of the layer. Its cost is `O(n^3 + n^2 m)`, `m` the other
            size; `O(n^2 m)` if it is factored. Default: the squared error of the matrix itself
            counts.
        step: The scale of all groups, as a share of the root of the mean square of the matrix;
            numbers out of the range of `bits` are clipped, and those near a half are rounded
            towards 0. Default: each group has a scale and a zero of its own.
        symmetric: Whether all zeros are `2^(b - 1)`, for runtimes that multiply with signed
            integers. Defaults to `False`.

    Returns:
        The packed arrays.

    Raises:
        ValueError: If the matrix is not a finite matrix, or an argument is out of range.

    Example:
        >>> groups = quantize_groups(np.ones((64, 10)), bits=4, group_size=32)
        >>> groups.integers.shape, groups.nbytes
        ((32, 10), 354)
    """
    check_group_bits(bits)
    check_int("group_size", group_size)
    matrix = np.asarray(matrix, "float32")
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(
            f"Expected a finite matrix with entries. Received: matrix of shape {matrix.shape}, "
            f"{np.count_nonzero(~np.isfinite(matrix))} entries infinite or NaN"
        )
    if axis not in (0, 1):
        raise ValueError(f"Expected axis 0 or 1. Received: axis={axis}")
    columns = matrix if axis == 0 else matrix.T
    if moment is not None:
        shape = np.shape(moment.factor if isinstance(moment, FactoredMoment) else moment)
        if shape != (len(columns), len(columns)):
            raise ValueError(
                f"Expected a moment of shape {(len(columns), len(columns))}, the size of axis "
                f"{axis} twice. Received: moment of shape {shape}"
            )
    largest, parts = _quantized_parts(columns, bits, group_size, moment, step, symmetric)
    stored = [(pack(numbers, bits), codes, pack(zeros, bits)) for numbers, codes, zeros in parts]
    integers, codes, zeros = (
        np.ascontiguousarray(array if axis == 0 else array.T)
        for array in (np.concatenate(arrays, axis=1) for arrays in zip(*stored, strict=True))
    )
    return IntegerGroups(integers, codes, zeros, largest)


def _quantized_parts(
    columns: np.ndarray,
    bits: int,
    group_size: int,
    moment: np.ndarray | FactoredMoment | None,
    step: float | None = None,
    symmetric: bool = False,
) -> tuple[np.float32, Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Returns the largest scale, and for parts of the columns integers, codes and zeros."""
    if moment is not None and not isinstance(moment, FactoredMoment):
        moment = FactoredMoment.of(moment)
    weights = None if moment is None else moment.weights
    width = max(1, _NUMBERS_AT_ONCE // len(columns))
    parts = [columns[:, start : start + width] for start in range(0, columns.shape[1], width)]
    if step is None:
        widest = max(_ranges(_group(part, group_size), bits, symmetric)[1].max() for part in parts)
    else:
        widest, zero = _step_and_zero(columns, bits, step)
    largest = np.float32(widest or 1.0)
    lowest = _lowest(bits, symmetric)

    def quantized(part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if step is None:
            codes, zeros = _scales_and_zeros(part, bits, group_size, weights, largest, symmetric)
        else:
            groups = (math.ceil(len(part) / group_size), part.shape[1])
            codes = np.zeros(groups, "uint8")
            zeros = np.full(groups, zero, "uint8")
        of_entries = _of_entries(codes, zeros, largest, group_size, len(part))
        if moment is not None:
            order, upper = moment[1:]
            scales, zeros_of_entries = (array[order] for array in of_entries)
            numbers = np.empty(part.shape, "uint8")
            numbers[order] = _integers_in_turn(
                part[order], scales, zeros_of_entries, bits, lowest, step is not None, upper
            )
        elif step is None:
            numbers = _rounded_integers(part, *of_entries, bits, lowest)
        else:
            numbers = _clipped(rounded_in_steps(part / largest), zero, bits, lowest)
        return numbers, codes, zeros

    return largest, map(quantized, parts)


def quantize_in_steps(matrix: np.ndarray, steps: np.ndarray, bits: int) -> IntegerGroups:
    """Quantizes each row of a matrix with a step of its own; a row is a group.

    Args:
        matrix: Float array `(rows, columns)`.
        steps: Positive array `(rows,)`, rounded to powers of `2^(1/16)` of the largest one. What
            `bits` do not hold is clipped.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        The packed arrays, of `axis=1`.
    """
    largest = np.float32(steps.max())
    zero = 2 ** (bits - 1)
    codes = np.clip(np.rint(_SCALES_PER_OCTAVE * np.log2(largest / steps)), 0, 255).astype("uint8")[
        :, None
    ]
    numbers = _clipped(rounded_in_steps(matrix / _scales(codes, largest)), zero, bits, 0)
    zeros = pack(np.full((1, len(matrix)), zero), bits).T
    return IntegerGroups(pack(numbers.T, bits).T, codes, zeros, largest)


def rounded_in_steps(matrix: np.ndarray) -> np.ndarray:
    """Rounds a matrix to whole numbers, towards 0 where the bytes saved outweigh the error."""
    squares = np.square(matrix)
    size = np.sqrt(np.outer(squares.mean(axis=1), squares.mean(axis=0) / (squares.mean() or 1.0)))
    return _rounded_down(matrix, size)


def _rounded_down(values: np.ndarray, size: np.ndarray | float) -> np.ndarray:
    """Returns whole numbers near values of some size, the root of their mean square."""
    shift = np.minimum(_MAXIMUM_SHIFT, _SHIFT / np.maximum(size, 1e-9))
    return np.copysign(np.floor(np.abs(values) + (0.5 - shift)), values)


def bits_of_step(matrix: np.ndarray, step: float) -> int | None:
    """Returns the minimum bits that hold a matrix in steps, or `None` if 8 do not.

    Args:
        matrix: Float array.
        step: As for `quantize_groups`.
    """
    low, high = _lowest_and_highest(matrix, _size_of_step(matrix, step))
    return next((bits for bits in _UNITS if high - low < 2**bits), None)


def _size_of_step(matrix: np.ndarray, step: float) -> float:
    return step * math.sqrt(np.square(matrix, dtype="float64").mean()) or 1.0


def _lowest_and_highest(matrix: np.ndarray, size: float) -> tuple[int, int]:
    return round(min(0.0, matrix.min()) / size), round(max(0.0, matrix.max()) / size)


def _step_and_zero(matrix: np.ndarray, bits: int, step: float) -> tuple[float, int]:
    """Returns the step, and the zero with which the integers lie in the middle."""
    size = _size_of_step(matrix, step)
    middle = (2**bits - 1 - sum(_lowest_and_highest(matrix, size))) // 2
    return size, min(max(middle, 0), 2**bits - 1)


def restored_matrix(
    groups: IntegerGroups, size: int, bits: int, group_size: int = 32, axis: int = 0
) -> np.ndarray:
    """Returns the matrix that integers stand for, as a float32 array.

    As `dequantize_groups`, without a backend, which may compile a program for each shape.
    """
    packed, codes, zeros = (np.moveaxis(part, axis, 0) for part in groups[:3])
    zeros = unpacked_integers(zeros, bits)
    scale, zero = _of_entries(codes, zeros, groups.largest, group_size, size)
    numbers = unpacked_integers(packed, bits)[:size].astype("float32")
    return np.moveaxis((numbers - zero) * scale, 0, axis)


def rounded_matrix(
    matrix: np.ndarray, bits: int, group_size: int, axis: int = 0, moment: np.ndarray | None = None
) -> np.ndarray:
    """Returns a matrix as `quantize_groups` stores it, restored as a float32 array."""
    columns = np.asarray(matrix if axis == 0 else matrix.T, "float32")
    largest, parts = _quantized_parts(columns, bits, group_size, moment)
    rounded = []
    for numbers, codes, zeros in parts:
        scale, zero = _of_entries(codes, zeros, largest, group_size, len(columns))
        rounded.append((numbers.astype("float32") - zero) * scale)
    restored = np.concatenate(rounded, axis=1)
    return restored if axis == 0 else np.ascontiguousarray(restored.T)


def _of_entries(
    codes: np.ndarray,
    zeros: np.ndarray,
    largest: np.ndarray | np.float32,
    group_size: int,
    size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scale and the zero of each entry of columns."""
    groups = np.arange(size) // group_size
    return _scales(codes, largest)[groups], zeros[groups]


def _scales(codes: np.ndarray, largest: np.ndarray | np.float32) -> np.ndarray:
    return largest * np.exp2(codes.astype("float32") / -_SCALES_PER_OCTAVE)


def _rounded_integers(
    values: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int, lowest: int
) -> np.ndarray:
    return _clipped(np.rint(values / scales), zeros, bits, lowest)


def _clipped(numbers: np.ndarray, zeros: np.ndarray | int, bits: int, lowest: int) -> np.ndarray:
    return np.clip(numbers + zeros, lowest, 2**bits - 1).astype("uint8")


def _group(columns: np.ndarray, group_size: int) -> np.ndarray:
    """Returns columns in groups `(groups, group_size, columns)`, filled up with zeros."""
    rows, width = columns.shape
    groups = math.ceil(rows / group_size)
    padding = ((0, groups * group_size - rows), (0, 0))
    return np.pad(columns, padding).reshape(groups, group_size, width)


def _ranges(
    grouped: np.ndarray, bits: int, symmetric: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest number of each group, at most 0, and the scale of its whole range."""
    low = np.minimum(grouped.min(axis=1), 0)
    high = np.maximum(grouped.max(axis=1), 0)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    return low, (high - low) / (2**bits - 1 - _lowest(bits, symmetric))


def _lowest(bits: int, symmetric: bool) -> int:
    """Returns the lowest integer: runtimes that multiply with signed bytes take -127 to 127."""
    return int(symmetric and bits == 8)


def _scales_and_zeros(
    columns: np.ndarray,
    bits: int,
    group_size: int,
    weights: np.ndarray | None,
    largest: np.float32,
    symmetric: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes of the scales, relative to the largest, and the zeros."""
    if largest**2 > _LARGE_SQUARE:
        columns = columns / largest
        largest = np.float32(1.0)
    grouped = _group(columns, group_size)
    weight = None
    if weights is not None:
        weight = _group(weights[:, None].astype("float32"), group_size)
    steps = 2**bits - 1
    squares = np.empty_like(grouped)
    low, widest = _ranges(grouped, bits, symmetric)
    best = np.full(widest.shape, np.inf, "float32")
    codes = np.zeros(widest.shape, "uint8")
    zeros = np.zeros(widest.shape, "uint8")
    for share in _CLIPPING if bits <= 4 else (1.0,):
        exponents = -_SCALES_PER_OCTAVE * np.log2(np.maximum(widest * share / largest, 1e-30))
        # Without clipping a scale must not be rounded down, which would clip.
        code = np.floor(exponents) if share == 1 else np.rint(exponents)
        code = np.clip(code, 0, 255).astype("uint8")
        scale = _scales(code, largest)
        zero = np.clip(np.rint(-low * share / scale), 0, steps)
        if symmetric:
            zero[:] = 2 ** (bits - 1)
        # In place: allocating large arrays takes more time than the computation.
        np.rint(np.divide(grouped, scale[:, None], out=squares), out=squares)
        np.maximum(squares, -zero[:, None], out=squares)
        np.minimum(squares, (steps - zero)[:, None], out=squares)
        squares *= scale[:, None]
        squares -= grouped
        np.square(squares, out=squares)
        if weight is not None:
            squares *= weight
        error = squares.sum(axis=1)
        better = error < best
        best = np.where(better, error, best)
        codes = np.where(better, code, codes)
        zeros = np.where(better, zero, zeros)
    return codes, zeros.astype("uint8")


def _integers_in_turn(
    columns: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray,
    bits: int,
    lowest: int,
    is_coded: bool,
    upper: np.ndarray,
) -> np.ndarray:
    """Rounds row by row; the rows that follow make up for the errors.

    With the Cholesky factor `U^T U` of `C^{-1}`, the error `e` of row `i` is least harmful if
    `U[i, j] / U[i, i] e` is subtracted from the rows `j > i`.
    """
    remaining = columns.copy()  # which is changed below
    numbers = np.empty(columns.shape, "uint8")
    for start in range(0, len(remaining), _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, len(remaining))
        errors = np.empty((stop - start, remaining.shape[1]), "float32")
        for i in range(start, stop):
            values = remaining[i] / scales[i]
            size = np.sqrt(np.square(values).mean())
            integers = _rounded_down(values, size) if is_coded else np.rint(values)
            numbers[i] = _clipped(integers, zeros[i], bits, lowest)
            rounded = (numbers[i].astype("float32") - zeros[i]) * scales[i]
            error = errors[i - start] = (remaining[i] - rounded) / upper[i, i]
            remaining[i + 1 : stop] -= np.outer(upper[i, i + 1 : stop], error)
        remaining[stop:] -= upper[start:stop, stop:].T @ errors
    return numbers


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Packs integers along the first axis, the first of each byte in its lowest bits.

    Args:
        numbers: Integer array `(n, ...)` of values below `2^bits`.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        uint8 array `(packed_size(n, bits), ...)`.
    """
    num_bytes, num_integers = _UNITS[bits]
    units = math.ceil(len(numbers) / num_integers)
    padding = [(0, 0) for _ in numbers.shape]
    padding[0] = (0, units * num_integers - len(numbers))
    grouped = np.pad(numbers.astype("uint8" if num_bytes == 1 else "uint32"), padding)
    grouped = grouped.reshape(units, num_integers, *numbers.shape[1:])
    word = sum(grouped[:, i] << (bits * i) for i in range(num_integers))
    parts = np.stack([(word >> (8 * i)) & 255 for i in range(num_bytes)], axis=1)
    return parts.reshape(units * num_bytes, *numbers.shape[1:]).astype("uint8")


def unpacked_integers(packed: np.ndarray, bits: int) -> np.ndarray:
    """Returns all integers that were packed along the first axis, those that fill it up, too.

    Args:
        packed: uint8 array `(n, ...)`, `n` a size that `packed_size` returns.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        uint8 array.
    """
    num_bytes, num_integers = _UNITS[bits]
    dtype = "uint8" if num_bytes == 1 else "uint32"
    parts = packed.astype(dtype).reshape(-1, num_bytes, *packed.shape[1:])
    word = sum(parts[:, i] << (8 * i) for i in range(num_bytes))
    numbers = [(word >> (bits * i)) & (2**bits - 1) for i in range(num_integers)]
    return np.stack(numbers, axis=1).astype("uint8").reshape(-1, *packed.shape[1:])


def unpack(packed: Tensor, size: int, bits: int, axis: int = 0) -> Tensor:
    """Returns the integers, as float32, that were packed along an axis.

    Args:
        packed: uint8 tensor; its size along the axis is `packed_size(size, bits)`.
        size: The number of integers along the axis.
        bits: 2, 3, 4, 6 or 8.
        axis: 0, or -1 for the last one. Defaults to 0.

    Returns:
        float32 tensor: whole numbers below `2^bits`, exact.
    """
    num_bytes, num_integers = _UNITS[bits]
    values = ops.cast(packed, "float32")
    if bits == 8:
        return values
    units = packed.shape[axis] // num_bytes
    at = 1 if axis == 0 else -1
    after = tuple(packed.shape[1:]) if axis == 0 else ()
    before = () if axis == 0 else tuple(ops.shape(packed)[:-1])
    # A word of up to 24 bits is exact in float32, and so are its divisions by powers of 2.
    word = values
    if num_bytes > 1:
        parts = ops.reshape(values, (*before, units, num_bytes, *after))
        first, second, third = (ops.take(parts, i, axis=at) for i in range(num_bytes))
        word = first + 256.0 * second + 65536.0 * third
    numbers = []
    for _ in range(num_integers - 1):
        higher = ops.floor(word * 2.0**-bits)
        numbers.append(word - 2.0**bits * higher)
        word = higher
    stacked = ops.stack([*numbers, word], axis=at)
    integers = ops.reshape(stacked, (*before, units * num_integers, *after))
    return integers[:size] if axis == 0 else integers[..., :size]


def dequantize_groups(
    parts: Sequence[Tensor], size: int, bits: int, group_size: int, axis: int = 0
) -> Tensor:
    """Converts the arrays of an `IntegerGroups` to floats.

    Args:
        parts: The four arrays or tensors.
        size: The size of the result along the axis.
        bits: 2, 3, 4, 6 or 8.
        group_size: Entries of a group.
        axis: 0 for matrices quantized with `axis=0`; 1 or -1 for rows, or for some rows
            `(..., n)` of them. Defaults to 0.

    Returns:
        float32 tensor `(size, columns)` or `(..., size)`.
    """
    axis = 0 if axis == 0 else -1
    integers, *shared = map(ops.convert_to_tensor, parts)
    steps, offsets = _steps_and_zeros(shared, size, bits, group_size, axis)
    return (unpack(integers, size, bits, axis) - offsets) * steps


def numbers_of_groups(
    parts: Sequence[Tensor], size: int, bits: int, axis: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the integers, the scales and the zeros of an `IntegerGroups`, unpacked.

    Returns:
        uint8 array of the shape of the matrix, and two float32 arrays with an entry for each group.
    """
    axis = 0 if axis == 0 else -1
    integers, *shared = map(ops.convert_to_tensor, parts)
    numbers = unpack(integers, size, bits, axis)
    each = _steps_and_zeros(shared, shared[0].shape[axis], bits, group_size=1, axis=axis)
    numbers, steps, offsets = (ops.convert_to_numpy(x) for x in (numbers, *each))
    return numbers.astype("uint8"), steps, offsets


def round_to_groups(
    matrix: Tensor, parts: Sequence[Tensor], bits: int, group_size: int, axis: int = 0
) -> tuple[Tensor, Tensor]:
    """Rounds a matrix to integers with scales and zeros that are given.

    Args:
        matrix: Float tensor `(rows, columns)`.
        parts: As for `dequantize_groups`. Integers of 8 bits without a 0, such as symmetric ones,
            stay so.
        bits: 2, 3, 4, 6 or 8.
        group_size: Entries of a group.
        axis: 0 or 1. Defaults to 0.

    Returns:
        The integers, and the matrix that they stand for, both as float32 tensors.
    """
    axis = 0 if axis == 0 else -1
    values = ops.cast(matrix, "float32")
    shared = [ops.convert_to_tensor(part) for part in parts[1:]]
    steps, offsets = _steps_and_zeros(shared, values.shape[axis], bits, group_size, axis)
    lowest = ops.cast(ops.min(ops.cast(parts[0], "int32")) > 0, "float32") if bits == 8 else 0.0
    numbers = ops.clip(ops.round(values / steps) + offsets, lowest, 2**bits - 1)
    return numbers, (numbers - offsets) * steps


def _steps_and_zeros(
    shared: Sequence[Tensor], size: int, bits: int, group_size: int, axis: int
) -> tuple[Tensor, Tensor]:
    """Returns the scale and the zero of each entry, or of all entries if there is one group."""
    scales, zeros, largest = shared
    groups = scales.shape[axis]
    offsets = unpack(zeros, groups, bits, axis)
    steps = ops.exp(ops.cast(scales, "float32") * (-math.log(2) / _SCALES_PER_OCTAVE))
    steps = steps * ops.cast(largest, "float32")
    if groups == 1:
        return steps, offsets
    return _repeat(steps, size, group_size, axis), _repeat(offsets, size, group_size, axis)


def _repeat(values: Tensor, size: int, times: int, axis: int) -> Tensor:
    repeated = ops.repeat(values, times, axis=axis)
    return repeated[:size] if axis == 0 else repeated[..., :size]
