"""Candidates are priced by the bytes that they will have."""

import keras
import pytest

from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import byte_count, candidates_for, quantized


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [None, 8])
def test_estimated_bytes_are_the_real_ones(dtype, bits):
    dense = keras.layers.Dense(96, dtype=dtype)
    dense.build((None, 64))
    found = candidates_for(dense, Seen(), ("low_rank", "tensor_train"), bits, None)
    assert {candidate.format for candidate in found} == {"dense", "low_rank", "tensor_train"}
    for candidate in found[::3]:
        layer = candidate.make()
        if candidate.bits is not None and candidate.format != "tensor_train":
            layer = quantized(layer, candidate.bits)
        assert byte_count(layer) == candidate.bytes
