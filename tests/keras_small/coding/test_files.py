"""Files `.tnz`: equal models when loaded, and nothing else is loaded."""

import hashlib
import json
import struct
import tracemalloc
import zlib

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import layers

import keras_small
from keras_small import compress
from keras_small.building.saving import save_model
from keras_small.coding import write_model
from keras_small.coding.files import load_model

pytest.importorskip("constriction")
RNG = np.random.default_rng(0)
HEAD = struct.Struct("<4sI32sII")


def small_model():
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(300, 16)(ids)
    x = layers.Dropout(0.1)(layers.LSTM(16, return_sequences=True)(x))
    x = layers.BatchNormalization()(layers.Conv1D(20, 3)(x))
    return keras.Model(ids, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def assert_same(model, again):
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        assert (ours.dtype, tuple(ours.shape)) == (theirs.dtype, tuple(theirs.shape))
        assert to_numpy(ours).tobytes() == to_numpy(theirs).tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = keras.Sequential([keras.Input((12,)), layers.Dense(10), layers.Dense(1)])
    path = tmp_path_factory.mktemp("saved") / "model.tnz"
    save_model(model, path)
    return path


@pytest.mark.parametrize("bits", [8, 3])
def test_the_loaded_model_is_the_same(bits, tmp_path, capsys):
    model = small_model()
    model.compile("adam", "mse")
    result = compress(model, bits=bits, formats=(), verbose=0)
    size = result.save(tmp_path / "model.tnz")
    assert size == (tmp_path / "model.tnz").stat().st_size
    sizes = capsys.readouterr().out.split("\n")
    assert sizes[0].strip() == f"{size:,} bytes  model.tnz"
    assert sizes[1].strip() == f"{result.report.bytes_after:,} bytes  its weights once it is loaded"
    assert size < result.save(tmp_path / "model.keras")
    again = keras_small.load(tmp_path / "model.tnz")
    assert again.compiled
    assert_same(result.model, again)
    assert [type(layer) for layer in again.layers] == [type(x) for x in result.model.layers]
    ids = RNG.integers(0, 300, (4, 6))
    np.testing.assert_array_equal(to_numpy(result.model(ids)), to_numpy(again(ids)))


def test_classes_of_the_caller_are_given(tmp_path):
    class Own(layers.Dense):
        def __init__(self, units, stateful="no state of Keras", **kwargs):
            super().__init__(units + (stateful is False), **kwargs)

        def get_config(self):
            return {**super().get_config(), "stateful": "no state of Keras"}

    model = keras.Sequential([keras.Input((3,)), Own(2, dtype="bfloat16")])
    save_model(model, tmp_path / "model.tnz")
    assert_same(model, load_model(tmp_path / "model.tnz", {"Own": Own}))
    with pytest.raises(ValueError, match=r"(?s)path=.*model\.tnz, .*Could not locate class 'Own'"):
        load_model(tmp_path / "model.tnz")


def test_lambdas_are_saved_and_loaded_on_request(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Lambda(lambda x: 2 * x), layers.Dense(2)])
    save_model(model, tmp_path / "model.tnz")
    assert_same(model, load_model(tmp_path / "model.tnz", safe_mode=False))
    with pytest.raises(ValueError, match="safe_mode=False"):
        load_model(tmp_path / "model.tnz")


def test_a_changed_byte_is_refused(saved, tmp_path):
    data, path = saved.read_bytes(), tmp_path / "changed.tnz"
    places = {*range(HEAD.size), *RNG.integers(0, len(data), 300).tolist()}
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << int(RNG.integers(0, 8))
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"Received: path=.*changed\.tnz, "):
            load_model(path)


def test_a_file_that_is_cut_or_foreign_is_refused(saved, tmp_path):
    data, path = saved.read_bytes(), tmp_path / "cut.tnz"
    cuts = [data[:length] for length in {0, 1, 47, 48, *RNG.integers(0, len(data), 200).tolist()}]
    for content in (*cuts, data + b"\0", b"PK\x03\x04" + data, RNG.bytes(1000), b"TNZ\x89" * 20):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"Expected a .tnz file of a model. .*cut\.tnz, "):
            load_model(path)
    with pytest.raises(FileNotFoundError, match=r"none\.tnz"):
        load_model(tmp_path / "none.tnz")


def signed(path, data, change=lambda index: None, times=1, version=1):
    """Writes a file with another index, and a checksum that fits."""
    *_, packed, _ = HEAD.unpack_from(data)
    index = json.loads(zlib.decompressobj().decompress(data[48 : 48 + packed]))
    change(index)
    text = json.dumps(index).encode()
    code = zlib.compress(text)
    checked = struct.pack("<II", len(code), times * len(text)) + code + data[48 + packed :]
    head = struct.pack("<4sI", b"TNZ\x89", version)
    path.write_bytes(head + hashlib.sha256(checked).digest() + checked)


def test_signed_as_here_a_file_is_loaded(saved, tmp_path):
    signed(tmp_path / "model.tnz", saved.read_bytes())
    assert_same(load_model(saved), load_model(tmp_path / "model.tnz"))


def change_shape(shape, dtype="<f4"):
    def change(index):
        array = next(array for array in index["arrays"] if array[2] == [12, 10])
        array[1:3] = dtype, shape

    return change


def rename(name):
    def change(index):
        index["arrays"][0][0] = name

    return change


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("of version 2: this program reads version 1", {"version": 2}),
        ("bytes do not code", {"times": 10**5}),
        ("bytes cannot be", {"change": change_shape([10**6, 10**6])}),
        ("Expected an array of numbers", {"change": change_shape([-12, -10])}),
        (r"without arrays of the shapes \[\(12, 10\)\]", {"change": change_shape([10, 12])}),
        ("more symbols|Expected 260 bytes", {"change": change_shape([12, 10], "<f2")}),
        ("Expected an array of numbers", {"change": change_shape([12, 10], "|O")}),
        ("Expected a relative path. Received: /tmp/x", {"change": rename("/tmp/x")}),
        (r"Expected a relative path. Received: \.\./x", {"change": rename("../x")}),
        ("does not list what follows", {"change": lambda index: index["parts"].pop()}),
    ],
)
def test_a_file_that_lies_is_refused(saved, tmp_path, message, options):
    signed(tmp_path / "lie.tnz", saved.read_bytes(), **options)
    with pytest.raises(ValueError, match=rf"lie\.tnz, .*({message})"):
        load_model(tmp_path / "lie.tnz")


def test_large_layers_without_arrays_take_no_memory(tmp_path):
    model = keras.Sequential([keras.Input((12,)), layers.Dense(7)])
    model.save(tmp_path / "model", zipped=False)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"units": 7', '"units": 30000000'))
    path = tmp_path / "bomb.tnz"
    with pytest.raises(ValueError, match="without arrays of the shapes"):
        write_model(tmp_path / "model", path)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bomb\.tnz, without arrays of the shapes .*30000000"):
        load_model(path)
    assert tracemalloc.get_traced_memory()[1] < 10**8  # the kernel has 1.4 GB
    tracemalloc.stop()


def test_arrays_that_no_layer_needs_are_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_small.coding.files._MORE", 0)
    monkeypatch.setattr("keras_small.coding.files._STATES", 0)
    with pytest.raises(ValueError, match="bytes of arrays; its layers need at most"):
        load_model(saved)
