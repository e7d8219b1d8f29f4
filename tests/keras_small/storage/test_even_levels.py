"""Rows of even levels are decoded as the format says, and near what they stand for."""

import numpy as np
import pytest
from conformance import to_numpy

from keras_small.storage import even_levels

RNG = np.random.default_rng(0)
# 13 columns: no unit of packed bytes is full.
MATRIX = RNG.normal(size=(45, 13)) * np.geomspace(0.01, 1, 45)[:, None]


def decoded(rows, columns, bits):
    """Decodes entry by entry, in float64, from the bytes as one long binary number."""
    approximation = np.empty((len(rows.integers), columns))
    for i, (row, code) in enumerate(zip(rows.integers, rows.scales, strict=True)):
        whole = int.from_bytes(bytes(row.tolist()), "little")
        scale = float(rows.largest) * 2 ** (-int(code[0]) / 16)
        for j in range(columns):
            number = (whole >> (bits * j)) & (2**bits - 1)
            approximation[i, j] = scale * (number - (2**bits - 1) / 2)
    return approximation


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_the_bytes_say_what_is_restored(bits):
    rows = even_levels.quantize_rows(MATRIX, bits)
    restored = to_numpy(even_levels.dequantize_rows(rows, columns=13, bits=bits))
    expected = decoded(rows, 13, bits)
    np.testing.assert_allclose(restored, expected, rtol=2e-6)
    np.testing.assert_array_equal(even_levels.rounded_rows(MATRIX, bits), restored)
    assert rows.integers[0].nbytes + rows.scales[0].nbytes == even_levels.row_bytes(13, bits)


# The squared errors of the best even levels for normal numbers (Max, 1960, table II).
@pytest.mark.parametrize(("bits", "share"), [(2, 0.1188), (3, 0.03744), (4, 0.01154)])
def test_the_error_is_that_of_the_best_scale(bits, share):
    matrix = RNG.normal(size=(40, 2048)) * RNG.uniform(0.5, 2, size=(40, 1))
    error = np.square(even_levels.rounded_rows(matrix, bits) - matrix).sum()
    assert error / np.square(matrix).sum() == pytest.approx(share, rel=0.07)


@pytest.mark.parametrize("bits", [2, 4])
def test_other_scales_of_rows_are_hardly_better(bits):
    importance = RNG.uniform(0.1, 4, 13)
    rounded, middle = even_levels.rounded_rows(MATRIX, bits, importance), (2**bits - 1) / 2
    errors, least = np.square(rounded - MATRIX) @ importance, np.full(45, np.inf)
    for share in np.geomspace(0.05, 2, 400):
        scales = share * np.abs(MATRIX).max(axis=1, keepdims=True)
        levels = np.clip(np.rint(MATRIX / scales + middle), 0, 2**bits - 1) - middle
        least = np.minimum(least, np.square(scales * levels - MATRIX) @ importance)
    # Scales in steps of 4 % are not quite as good as any scale.
    assert np.median(errors / least) < 1.08
    assert (errors < 2 * least).all()


def test_what_is_important_is_rounded_better():
    importance = np.r_[np.full(3, 100.0), np.full(10, 0.01)]
    plain, weighted = (
        np.square(even_levels.rounded_rows(MATRIX, 2, x) - MATRIX)[:, :3].sum()
        for x in (None, importance)
    )
    assert weighted < 0.7 * plain


def test_many_rows_are_quantized_in_parts(monkeypatch):
    whole = even_levels.quantize_rows(MATRIX, 3)
    monkeypatch.setattr(even_levels, "_NUMBERS_AT_ONCE", 5 * 13)
    parts = even_levels.quantize_rows(MATRIX, 3)
    np.testing.assert_array_equal(parts.integers, whole.integers)
    np.testing.assert_array_equal(parts.scales, whole.scales)


def test_rows_of_zeros_stay_about_zero():
    matrix = np.vstack([np.zeros((2, 13)), MATRIX[-1:]])
    rounded = even_levels.rounded_rows(matrix, 4)
    assert np.abs(rounded[:2]).max() < 1e-3 * np.abs(rounded[2]).max()
    assert np.isfinite(even_levels.rounded_rows(np.zeros((2, 13)), 4)).all()


def test_other_bits_are_refused():
    with pytest.raises(ValueError, match="bits=5"):
        even_levels.quantize_rows(MATRIX, 5)
