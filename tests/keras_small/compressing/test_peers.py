"""What the report says of Keras' own quantization is what Keras computes."""

import json

import keras
import numpy as np
import pytest
from compressing import error_of
from keras import layers

from keras_small import compress
from keras_small.formats.candidates import byte_count

ROWS = np.random.default_rng(0).normal(size=(300, 12, 16)).astype("float32")


def compressed(*parts, data=ROWS[:8]):
    model = keras.Sequential([keras.Input((12, 16)), *parts])
    return model, compress(model, bits=8, formats=(), data=data, verbose=0).report


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_report_has_the_sizes_and_the_errors_of_keras():
    parts = (layers.Dense(64, "relu"), layers.LSTM(8), layers.Dense(64))
    model, report = compressed(*parts, data=ROWS)
    peers = {peer.mode: peer for peer in report.keras_quantizations}
    assert list(peers) == ["int8", "int4"]
    # Eight of the ten batches, from all parts.
    some = np.delete(ROWS, [*range(128, 160), *range(288, 300)], axis=0)
    size = byte_count(model)
    for mode, peer in peers.items():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy.quantize(mode)
        assert peer.bytes == byte_count(copy)
        assert peer.error == pytest.approx(error_of(model, copy, some), rel=1e-3)
        assert (peer.rows, peer.not_quantized) == (256, ("LSTMCell",))
        line = f"Keras' {mode}: {peer.bytes:,} bytes, {size / peer.bytes:.1f} times smaller; error"
        assert line in str(report)
    assert str(report).count("; not quantized: LSTMCell\n") == 2
    assert json.loads(report.to_json())["keras_quantizations"][0]["mode"] == "int8"


def test_a_model_that_keras_leaves_as_it_is_gets_one_line_each():
    report = compressed(layers.Conv1D(16, 3), layers.BatchNormalization())[1]
    assert "\nKeras' int8: quantizes no layer of this model (Conv1D)\n" in str(report)


class Stubborn(layers.Dense):
    def quantize(self, mode, type_check=True, config=None):
        raise ValueError("mine alone\nfor a reason")


def test_a_model_that_keras_cannot_quantize_gets_the_reason():
    report = compressed(layers.Dense(32), Stubborn(32))[1]
    assert "\nKeras' int4: not possible (ValueError: mine alone)\n" in str(report)


def test_without_data_or_a_smaller_model_nothing_is_compared():
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64)])
    assert not compress(model, target=2.0, verbose=0).report.keras_quantizations
    report = compress(model, data=np.ones((8, 64), "float32"), verbose=0).report
    assert (report.keras_quantizations, report.file_bytes) == ((), None)
