"""Files of small models: as large as the report says, and equal models when loaded."""

import os
import warnings

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import layers
from slow_cases import slow_but

from keras_small import compress
from keras_small.building.saving import save_model

RNG = np.random.default_rng(0)


def dense():
    sizes = (layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10, "softmax"))
    return keras.Sequential([keras.Input((64,)), *sizes]), RNG.normal(size=(8, 64))


def conv_net():
    x = inputs = keras.Input((12, 12, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs), RNG.normal(size=(8, 12, 12, 3))


def cnn_lstm():
    parts = (layers.Conv1D(64, 3, activation="relu"), layers.LSTM(128), layers.Dense(4))
    return keras.Sequential([keras.Input((20, 16)), *parts]), RNG.normal(size=(8, 20, 16))


def u_net():
    def convolved(x, filters):
        return layers.Conv2D(filters, 3, padding="same", activation="relu")(x)

    inputs = keras.Input((16, 16, 1))
    fine = convolved(convolved(inputs, 32), 32)
    middle = convolved(layers.MaxPooling2D()(fine), 64)
    coarse = convolved(layers.MaxPooling2D()(middle), 128)
    x = layers.Conv2DTranspose(64, 2, strides=2)(coarse)
    x = convolved(layers.Concatenate()([x, middle]), 64)
    x = layers.Conv2DTranspose(32, 2, strides=2)(x)
    x = convolved(layers.Concatenate()([x, fine]), 32)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x)), RNG.normal(size=(8, 16, 16, 1))


def transformer():
    ids = keras.Input((16,), dtype="int32")
    x = layers.Embedding(2000, 64)(ids)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
        hidden = layers.Dense(128, activation="relu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(64)(hidden))
    outputs = layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    return keras.Model(ids, outputs), RNG.integers(0, 2000, (8, 16))


def loaded(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return keras.models.load_model(path)


MODELS = (dense, conv_net, cnn_lstm, u_net, transformer)


@pytest.mark.parametrize("make", slow_but([dense, conv_net], MODELS))
def test_file_has_the_size_of_the_report(make, tmp_path, capsys):
    model, inputs = make()
    inputs = inputs.astype("int32" if inputs.dtype.kind == "i" else "float32")
    model.compile("adam", "mse")
    result = compress(model, bits=4, formats=(), data=inputs, verbose=0)
    if make is dense:
        result.heal(inputs)
    size = result.save(tmp_path / "small.keras")
    assert size == (tmp_path / "small.keras").stat().st_size
    assert f"{size:,} bytes  small.keras\n" in capsys.readouterr().out
    assert size == pytest.approx(result.report.file_bytes, rel=1e-3)  # it has a date
    assert size < 1.02 * result.report.bytes_after
    expected = result.report.file_bytes
    factor = f"{result.report.bytes_before / expected:.1f} times smaller"
    assert f"file: {expected:,} bytes, {factor}" in str(result.report)
    again = loaded(tmp_path / "small.keras")
    expected, actual = (to_numpy(m(inputs, training=False)) for m in (result.model, again))
    np.testing.assert_array_equal(actual, expected)
    assert again.compiled
    assert not any(to_numpy(v).any() for v in again.optimizer.variables[2:])


def test_many_small_weights_take_few_bytes(tmp_path):
    model = keras.Sequential([keras.Input((9,)), *[layers.Dense(9) for _ in range(60)]])
    # HDF5 has them in its headers; without this it takes 1.047 times the bytes of the weights.
    assert save_model(model, tmp_path / "model.keras") < 1.035 * 4 * model.count_params()
    half = keras.Sequential([keras.Input((9,)), layers.Dense(9, dtype="bfloat16")])
    save_model(half, tmp_path / "half.keras")
    again = loaded(tmp_path / "half.keras")
    assert to_numpy(again.layers[0].kernel).tobytes() == to_numpy(half.layers[0].kernel).tobytes()


def test_training_leaves_nothing_in_the_file(tmp_path):
    model, inputs = dense()
    model.compile("adam", "mse")
    result = compress(model, 3.0, data=inputs, verbose=0)
    result.model.fit(inputs, np.ones((8, 10)), verbose=0)
    optimizer = result.model.optimizer
    assert result.save(tmp_path / "small.keras") < 1.02 * result.report.bytes_after
    assert result.model.optimizer is optimizer
    assert any(to_numpy(v).any() for v in optimizer.variables[2:])
    assert not any(
        to_numpy(v).any() for v in loaded(tmp_path / "small.keras").optimizer.variables[2:]
    )


def test_states_and_assets_are_in_the_file(tmp_path):
    words = layers.TextVectorization(output_sequence_length=4, vocabulary=["tensor", "network"])
    if keras.backend.backend() != "tensorflow":
        pytest.skip("texts are inputs on TensorFlow alone")
    model = keras.Sequential(
        [keras.Input((1,), dtype="string"), words, layers.Embedding(4, 8), layers.Dense(64)]
    )
    save_model(model, tmp_path / "model.keras")
    texts = np.array([["a tensor network"]])
    again = loaded(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(texts)), to_numpy(model(texts)))


def test_files_are_kept(tmp_path):
    model, _ = dense()
    path = tmp_path / "model.keras"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"model\.keras, which exists. Pass overwrite=True"):
        save_model(model, path)
    with pytest.raises(ValueError, match=r"ends with \.keras or \.tnz. Received: path=.*model\.h5"):
        save_model(model, tmp_path / "model.h5")
    with pytest.raises(ValueError, match=r"ends with \.keras or \.tnz. Received: .*model\.KERAS"):
        save_model(model, tmp_path / "model.KERAS")  # which Keras would not load
    with pytest.raises(FileNotFoundError, match=r"Expected a folder that exists. Received: path="):
        save_model(model, tmp_path / "none" / "model.keras")
    assert path.read_text() == "mine"
    broken = keras.Sequential([keras.Input((2,)), Broken()])
    with pytest.raises(OSError, match="the disk is full"):
        save_model(broken, path, overwrite=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["model.keras"]
    save_model(model, path, overwrite=True)
    assert len(loaded(path).weights) == 6


class Broken(layers.Layer):
    def save_own_variables(self, store):
        raise OSError("the disk is full")


def test_a_link_stays_a_link(tmp_path):
    model, _ = dense()
    link, file = tmp_path / "link.keras", tmp_path / "file.keras"
    link.symlink_to(file)
    with pytest.raises(FileExistsError, match=r"link\.keras, which exists"):
        save_model(model, link)  # also of a link to nothing
    for _ in range(2):
        save_model(model, link, overwrite=True)
        assert link.is_symlink()
        assert len(loaded(file).weights) == 6


def test_an_optimizer_that_never_trained_is_loaded_without_a_warning(tmp_path):
    model, _ = dense()
    model.compile(metrics=["mae"])
    save_model(model, tmp_path / "model.keras")
    assert loaded(tmp_path / "model.keras").optimizer.built
