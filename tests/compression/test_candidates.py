"""Candidates are priced by the bytes that they will have."""

import gc

import keras
import pytest

from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import byte_count
from keras_tnattn.compression.formats import FORMATS, candidates_for
from keras_tnattn.compression.formats.dense import quantized


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [None, 8])
def test_estimated_bytes_are_the_real_ones(dtype, bits):
    dense = keras.layers.Dense(96, dtype=dtype)
    dense.build((None, 64))
    candidates = candidates_for(dense, Seen(), ("low_rank", "tensor_train"), bits)
    assert {candidate.format for candidate in candidates} == {"dense", "low_rank", "tensor_train"}
    for candidate in candidates[::3]:
        layer = candidate.make()
        if candidate.bits is not None:
            layer = FORMATS[candidate.format].quantized(layer, candidate.bits)
        assert byte_count(layer) == candidate.bytes


@pytest.mark.parametrize("frozen", [0, 1])
def test_collections_during_quantization_skip_older_objects(monkeypatch, frozen):
    # Keras calls gc.collect for each weight that it replaces, which takes 0.3 s with TensorFlow. If
    # it does no longer, this test fails: then remove what `quantized` does about it.
    dense = keras.layers.Dense(4)
    dense.build((None, 4))
    calls = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    for name in ("freeze", "collect", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    quantized(dense, 8)
    assert calls == (["collect"] if frozen else ["freeze", "collect", "unfreeze"])
