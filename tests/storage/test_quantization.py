"""Rows of whole numbers are decoded as the format says, and near what they stand for."""

import numpy as np
import pytest
from conformance import to_numpy
from keras import ops

from keras_tnattn.storage import quantization

MATRIX = np.random.default_rng(0).normal(size=(40, 15)).astype("float32")
MATRIX[3] = 0


def decoded(packed, scales, bits):
    """Reads the bytes one by one."""
    rows = []
    for row, scale in zip(packed, scales[:, 0], strict=True):
        if bits == 8:
            numbers = [int(byte) - 128 for byte in row]
        else:
            numbers = [half - 8 for byte in row for half in (int(byte) & 15, int(byte) >> 4)]
        rows.append([number * float(scale) for number in numbers[:15]])
    return np.array(rows)


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
def test_rows_are_near(bits, largest):
    packed, scales = quantization.quantize_rows(MATRIX, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (40, quantization.packed_columns(15, bits))
    assert scales.dtype == np.float16
    approximation = decoded(packed, scales, bits)
    assert (approximation[3] == 0).all()
    # No worse than the step that reaches the largest entry of the row, but for its rounding.
    step = np.abs(MATRIX).max(axis=1, keepdims=True) / largest
    error = ((approximation - MATRIX) ** 2).sum(axis=1)
    plain = np.rint(MATRIX / np.where(step == 0, 1, step)) * step
    assert (error <= 1.15 * ((plain - MATRIX) ** 2).sum(axis=1) + 1e-9).all()
    if bits == 8:
        assert (np.abs(approximation - MATRIX) <= 0.5 * step + 1e-3 * np.abs(MATRIX)).all()
    else:
        # Cutting off the largest entries pays somewhere.
        assert (error < 0.9 * ((plain - MATRIX) ** 2).sum(axis=1)).any()


@pytest.mark.parametrize("bits", [8, 4])
def test_dequantize_reads_the_bytes(bits):
    packed, scales = quantization.quantize_rows(MATRIX, bits)
    expected = decoded(packed, scales, bits)
    tensors = ops.convert_to_tensor(packed), ops.convert_to_tensor(scales)
    approximation = to_numpy(quantization.dequantize_rows(*tensors, 15, bits, "float32"))
    np.testing.assert_allclose(approximation, expected, rtol=1e-6)
    # Any leading axes.
    tensors = [ops.reshape(x, (5, 8, -1)) for x in tensors]
    stacked = to_numpy(quantization.dequantize_rows(*tensors, 15, bits, "float32"))
    np.testing.assert_allclose(stacked.reshape(40, 15), expected, rtol=1e-6)


def test_other_bits_are_refused():
    with pytest.raises(ValueError, match="bits=5"):
        quantization.quantize_rows(MATRIX, 5)
