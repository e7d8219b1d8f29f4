"""Finds integers or half floats that stand for the same numbers as an array of floats."""

import dataclasses

import numpy as np

# Smaller arrays stay as they are: what describes the integers takes about as many bytes.
_FEW = 256
_LARGEST = {4: 7, 8: 127}


@dataclasses.dataclass(frozen=True)
class Narrow:
    """An array whose product with `scales` along `axis`, if there are any, is the original.

    Attributes:
        numbers: The array, int8 for `bits` 4 or 8, float16 for 16.
        bits: Bits of each number.
        scales: Floats, one for each index of the axis or one for all, or `None`.
        axis: The axis of the scales.
    """

    numbers: np.ndarray
    bits: int
    scales: np.ndarray | None = None
    axis: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes that a file has for the numbers and the scales."""
        packed = -(-self.numbers.size * self.bits // 8)
        return packed + (0 if self.scales is None else 4 * len(self.scales))


def narrowed(array: np.ndarray) -> Narrow | None:
    """Returns the form of an array of floats with the fewest bytes, or `None` if there is none.

    Example:
        >>> table = np.arange(-7, 8).repeat(100).reshape(-1, 3) * np.float32([0.1, 0.2, 0.3])
        >>> narrow = narrowed(table.astype("float32"))
        >>> narrow.bits, narrow.axis, [round(float(x), 6) for x in narrow.scales]
        (4, 1, [0.1, 0.2, 0.3])
    """
    if array.dtype != np.float32 or array.nbytes < _FEW or not np.isfinite(array).all():
        return None
    forms = [_integers(array, axis, bits) for bits in _LARGEST for axis in range(array.ndim)]
    with np.errstate(over="ignore"):
        half = array.astype("float16")
    if np.array_equal(half.astype("float32"), array):
        forms.append(Narrow(half, 16))
    smaller = [form for form in forms if form is not None and form.nbytes < array.nbytes]
    return min(smaller, key=lambda form: form.nbytes, default=None)


def narrow_bytes(array: np.ndarray) -> int:
    """Returns how many bytes a file of narrowed arrays has for an array.

    Example:
        >>> narrow_bytes(np.ones((100, 30), "float32"))
        1504
    """
    if array.dtype == np.int32:
        return array.size * np.min_scalar_type(int(array.max(initial=0))).itemsize
    narrow = narrowed(array)
    return array.nbytes if narrow is None else narrow.nbytes


def _integers(array: np.ndarray, axis: int, bits: int) -> Narrow | None:
    largest = _LARGEST[bits]
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    if rows.shape[1] < 2:
        return None
    peak = np.abs(rows).max(axis=1)
    # The largest number of most rows is the largest integer. A row that has none is tried with all.
    scales = np.where(peak > 0, peak / largest, 1).astype("float32")
    if np.array_equal(rows, np.rint(rows)) and peak.max() <= largest + 1:
        scales[:] = 1
    bad = ~_fits(rows, scales, largest)
    for smaller in range(largest - 1, 0, -1):
        if not bad.any() or (smaller == largest - 1 and bad.mean() > 0.5):
            break
        candidates = (peak[bad] / smaller).astype("float32")
        fits = _fits(rows[bad], candidates, largest)
        chosen = np.flatnonzero(bad)[fits]
        scales[chosen], bad[chosen] = candidates[fits], False
    if bad.any():
        return None
    shape = [1] * array.ndim
    shape[axis] = -1
    numbers = np.rint(array / scales.reshape(shape)).astype("int8")
    scales = scales[:1] if (scales == scales[0]).all() else scales
    return Narrow(numbers, bits, scales, axis)


def _fits(rows: np.ndarray, scales: np.ndarray, largest: int) -> np.ndarray:
    """Returns for each row whether it equals integers times its scale, except for rounding."""
    numbers = rows / scales[:, None]
    rounded = np.rint(numbers)
    inside = (rounded >= -largest - 1) & (rounded <= largest)
    return (inside & (np.abs(numbers - rounded) < 2e-5 * largest)).all(axis=1)
