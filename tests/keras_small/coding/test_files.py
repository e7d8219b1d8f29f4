"""Files `.tnz`: equal models when loaded, and nothing else is loaded."""

import dataclasses
import hashlib
import io
import json
import math
import struct
import threading
import tracemalloc
import zlib

import h5py
import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import layers

import keras_small
from keras_small import compress, compressing
from keras_small.building.saving import check_codable, save_model
from keras_small.coding import arrays, files
from keras_small.coding.archives import saved_files
from keras_small.coding.files import load_model
from keras_small.survey.copying import known_objects
from keras_small.survey.inventory import Inventory

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


@keras.saving.register_keras_serializable("tests")
class SelfCompiled(keras.Model):
    """Compiles itself, as tasks of keras-hub do."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(64)
        self.compile()

    def compile(self, optimizer="auto", **options):
        super().compile(keras.optimizers.SGD() if optimizer == "auto" else optimizer, **options)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.dense(inputs)


def test_compiled_models_inside_others(tmp_path):
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    inner.compile("sgd", "mse")  # without variables of its own for each weight
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(2)])
    save_model(model, tmp_path / "model.tnz")
    assert_same(model, load_model(tmp_path / "model.tnz"))


@pytest.mark.filterwarnings("ignore:`compile\\(\\)` was not called:UserWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_models_that_compile_themselves(nested, tmp_path):
    model = SelfCompiled()
    model.build((None, 64))
    if nested:
        model = keras.Sequential([keras.Input((64,)), model])
    result = compress(model, 2, coded=True, verbose=0)
    for each in (model, result.model):
        save_model(each, tmp_path / "model.tnz", overwrite=True)
        again = load_model(tmp_path / "model.tnz")
        assert type(again) is type(each)
        assert again.compiled != nested
        assert_same(each, again)


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


def add_array(index):
    index["arrays"].append(["layers/other/vars/0", "<f4", [0]])


def add_twice(index):
    name = next(name for name, dtype, *_ in index["arrays"] if dtype)
    index["arrays"].append([name, "<f4", [0]])
    index["parts"].append([1, "stored", 0])


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("of version 2: this program reads version 1", {"version": 2}),
        ("too few for an index of", {"times": 10**5}),
        (r"Expected \d+ bytes", {"times": 2}),
        ("bytes cannot be", {"change": change_shape([10**6, 10**6])}),
        ("Expected an array of numbers", {"change": change_shape([-12, -10])}),
        ("shape", {"change": change_shape([10, 12])}),
        ("more symbols|Expected 260 bytes", {"change": change_shape([12, 10], "<f2")}),
        ("Expected an array of numbers", {"change": change_shape([12, 10], "|O")}),
        ("Expected an array of numbers", {"change": change_shape([12, 10], "f4,f4")}),
        ("Expected an array of numbers", {"change": change_shape([12, 10], "(2,)f4")}),
        ("Expected a relative path. Received: /tmp/x", {"change": rename("/tmp/x")}),
        (r"Expected a relative path. Received: \.\./x", {"change": rename("../x")}),
        ("does not list what follows", {"change": lambda index: index["parts"].pop()}),
        ("does not list what follows", {"change": add_array}),
        (
            "a part without arrays",
            {"change": lambda index: index["parts"].insert(0, [0, "lzma", 0])},
        ),
        ("already exists", {"change": add_twice}),
    ],
)
def test_a_file_that_lies_is_refused(saved, tmp_path, message, options):
    signed(tmp_path / "lie.tnz", saved.read_bytes(), **options)
    with pytest.raises(ValueError, match=rf"lie\.tnz, .*({message})"):
        load_model(tmp_path / "lie.tnz")


def bounded(path, message, most=2 * 10**7):
    """Checks that a file is refused, with the peak of memory that was traced."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{path.name}, .*{message}"):
        load_model(path)
    assert tracemalloc.get_traced_memory()[1] < most
    tracemalloc.stop()


def test_large_layers_without_arrays_take_no_memory(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((12,)), layers.Dense(7)])
    content = saved_files(model)
    content["config.json"] = content["config.json"].replace(b'"units": 7', b'"units": 3000000')
    monkeypatch.setattr(files, "_bytes_for_layers", lambda weights: 0)
    path = tmp_path / "bomb.tnz"
    path.write_bytes(files.encode_model(content))
    monkeypatch.undo()
    bounded(path, "too few for 39,000,000 weights of its layers: at least 152,344")


def test_arrays_that_no_layer_needs_take_no_memory(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((12,)), Table(25_000_000), layers.Dense(7)])
    model.layers[0].table = np.zeros(25_000_000, "float32")
    content = saved_files(model)
    monkeypatch.setattr(files, "_bytes_for_arrays", lambda listed, weights: 0)
    path = tmp_path / "bomb.tnz"
    path.write_bytes(files.encode_model(content))
    monkeypatch.undo()
    bounded(path, "too few for 100,00.,... bytes of arrays that its layers do not need")


def test_the_states_of_an_optimizer_are_not_too_much(tmp_path):
    weights = 1000
    assert files._bytes_for_arrays([files._Array("a", "<f4", (8 * weights + 2**18,))], weights) == 0
    more = files._Array("b", "<f4", (1600,))
    listed = [files._Array("a", "<f4", (8 * weights + 2**18,)), more]
    assert files._bytes_for_arrays(listed, weights) == 400
    assert files._bytes_for_arrays([dataclasses.replace(more, dtype="")], 0) == 0
    assert files._bytes_for_layers(1000) == 4


def test_text_names_and_entries_need_bytes():
    assert files._bytes_for_text(b" " * 33) == 3
    assert files._bytes_for_text(b'[{"a":1},2,[]]') == 5
    assert files._bytes_for_names(["a", "layers/dense/vars/0"]) == 40


def replace_index(path, data, text, times=1):
    """Writes a file whose index is other text."""
    *_, packed, _ = HEAD.unpack_from(data)
    code = arrays.deflate(text)
    checked = struct.pack("<II", len(code), times * len(text)) + code + data[48 + packed :]
    head = struct.pack("<4sI", b"TNZ\x89", 1)
    path.write_bytes(head + hashlib.sha256(checked).digest() + checked)


ENTRY = b'["layers/dense/vars/%d","<f4",[0]],'
INDEXES = {
    "long": ("an index of 50,000,002 bytes: at least", b"[%s]" % (b" " * 50_000_000)),
    "lists": ("its index", b'{"arrays":[%s[]],"parts":[]}' % (b"[]," * 4000)),
    "dicts": ("its index", b'{"arrays":[%s{}],"parts":[]}' % (b"{}," * 4000)),
    "numbers": ("its index", b'{"arrays":[%s1],"parts":[]}' % (b"1," * 4000)),
    "names": (
        "its arrays",
        b'{"arrays":[%s["x","",[0]]],"parts":[]}' % b"".join(ENTRY % n for n in range(250)),
    ),
    "depth": ("its arrays", b'{"arrays":[["%s","<f4",[0]]],"parts":[]}' % (b"a/" * 4000)),
}


@pytest.mark.parametrize(("message", "text"), INDEXES.values(), ids=INDEXES)
def test_the_memory_of_an_index_is_bounded_by_its_file(saved, tmp_path, message, text):
    replace_index(tmp_path / "index.tnz", saved.read_bytes(), text)
    bounded(tmp_path / "index.tnz", f"too few for {message}")


def test_the_memory_of_a_config_is_bounded_by_its_file(tmp_path, monkeypatch):
    content = saved_files(keras.Sequential([keras.Input((12,)), layers.Dense(7)]))
    content["config.json"] = content["config.json"][:-1] + b', "more": [%s[]]}' % (b"[]," * 10**6)
    monkeypatch.setattr(files, "_bytes_for_text", lambda text: 0)
    path = tmp_path / "config.tnz"
    path.write_bytes(files.encode_model(content))
    monkeypatch.undo()
    bounded(path, "too few for a config of 3,0")


def test_the_entries_of_a_config_are_bounded_by_its_file(tmp_path, monkeypatch):
    content = saved_files(keras.Sequential([keras.Input((12,)), layers.Dense(7)]))
    content["config.json"] = content["config.json"][:-1] + b', "more": [%s[]]}' % (b"[]," * 4000)
    monkeypatch.setattr(files, "_bytes_for_text", lambda text: 0)
    path = tmp_path / "config.tnz"
    path.write_bytes(files.encode_model(content))
    monkeypatch.undo()
    bounded(path, "too few for its config: at least 8,")


@keras.saving.register_keras_serializable("test_files")
class Table(layers.Layer):
    """Saves a table that is no weight."""

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size, self.table = size, np.zeros(2, "float32")

    def call(self, inputs):
        return inputs * float(self.table[1])

    def get_config(self):
        return {**super().get_config(), "size": self.size}

    def save_own_variables(self, store):
        store["table"] = self.table

    def load_own_variables(self, store):
        self.table = store["table"][()]


@keras.saving.register_keras_serializable("test_files")
class Fixed(layers.Layer):
    """Has a weight that it does not save."""

    def build(self, _):
        self.scales = self.add_weight((10**6,), "ones", trainable=False)

    def call(self, inputs):
        return inputs * self.scales[3]

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@keras.saving.register_keras_serializable("test_files")
class Packed(layers.Dense):
    """Saves the signs of its kernel, eight in a byte."""

    def save_own_variables(self, store):
        store["signs"] = np.packbits(to_numpy(self.kernel) > 0)
        store["bias"] = self.bias

    def load_own_variables(self, store):
        size = math.prod(self.kernel.shape)
        bits = np.unpackbits(store["signs"][()], count=size).reshape(self.kernel.shape)
        self.kernel.assign(2.0 * bits - 1)
        self.bias.assign(store["bias"])


@keras.saving.register_keras_serializable("test_files")
class Joined(layers.Dense):
    """Saves its weights as one array, and a complex number."""

    def save_own_variables(self, store):
        store["all"] = np.concatenate([to_numpy(w).ravel() for w in self.weights])
        store["number"] = np.array(2 + 3j)

    def load_own_variables(self, store):
        assert store["number"][()] == 2 + 3j
        self.kernel.assign(store["all"][: -self.units].reshape(self.kernel.shape))
        self.bias.assign(store["all"][-self.units :])


@keras.saving.register_keras_serializable("test_files")
class Tied(layers.Layer):
    """Holds the embedding whose table it multiplies with."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.embedding.embeddings))

    def get_config(self):
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return {**super().get_config(), "embedding": embedding}

    @classmethod
    def from_config(cls, config):
        embedding = keras.saving.deserialize_keras_object(config.pop("embedding"))
        return cls(embedding, **config)


def dense_with(*before):
    """A functional model: a `Sequential` model is made again for each of its layers."""
    outputs = inputs = keras.Input((64,))
    for layer in (*before, layers.Dense(5)):
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def lora(rank=4, mode=None):
    dense = layers.Dense(96)
    model = dense_with(dense)
    dense.kernel.assign(RNG.normal(size=(64, 96)))
    if mode is not None:
        dense.quantize(mode)
    dense.enable_lora(rank)
    return model


def lora_table():
    table = layers.Embedding(300, 32)
    model = keras.Sequential([keras.Input((6,), dtype="int32"), table, layers.Dense(5)])
    table.enable_lora(4)
    return model


def tied():
    ids = keras.Input((6,), dtype="int32")
    table = layers.Embedding(300, 32)
    return keras.Model(ids, Tied(table)(layers.Dense(32)(table(ids))))


def zeros():
    layer = Table(10**6)
    model = dense_with(layer)
    layer.table = np.zeros(10**6, "float32")
    return model


def table():
    layer = Table(10**5)
    model = dense_with(layer)
    layer.table = RNG.normal(size=10**5).astype("float32")
    return model


def packed():
    layer = Packed(1000)
    model = dense_with(layer)
    layer.kernel.assign(np.sign(RNG.normal(size=(64, 1000))))
    return model


OTHER_ARRAYS = {
    "LoRA": lora,
    "int8 with LoRA": lambda: lora(mode="int8"),
    "int4 with LoRA": lambda: lora(mode="int4"),
    "LoRA of a table": lora_table,
    "packed": packed,
    "joined": lambda: dense_with(Joined(96)),
    "shared": tied,
    "no weight": table,
    "not saved": lambda: dense_with(Fixed()),
    "no scale": lambda: dense_with(layers.BatchNormalization(scale=False)),
    "no center": lambda: dense_with(layers.BatchNormalization(center=False)),
    "spectral": lambda: dense_with(layers.SpectralNormalization(layers.Dense(6))),
    "seeds": lambda: dense_with(layers.Dropout(0.3, seed=3), layers.GaussianNoise(0.1)),
    "zeros": zeros,
    "long config": lambda: dense_with(*[layers.Activation("relu") for _ in range(300)]),
    "tiny": lambda: dense_with(*[layers.Dense(1) for _ in range(60)]),
}


def arrays_of(model):
    """All that a model saves, by name."""
    found = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = (item.dtype, item.shape, item[()].tobytes(), dict(item.attrs))

    with h5py.File(io.BytesIO(saved_files(model)["model.weights.h5"])) as weights:
        weights.visititems(add)
    return found


def doubled(inputs):
    return 2 * inputs


class Named(layers.Layer):
    """Has a function whose config is its name, which only a scope of Keras knows."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        is_name = isinstance(function, str)
        self.function = keras.saving.get_registered_object(function) if is_name else function

    def call(self, inputs):
        return self.function(inputs)

    def get_config(self):
        return {**super().get_config(), "function": self.function.__name__}


def test_compress_knows_the_functions_of_a_model_that_is_coded():
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64), Named(doubled)])
    assert compress(model, 3, coded=True, verbose=0).report.ratio > 3


@pytest.mark.parametrize("make", OTHER_ARRAYS.values(), ids=OTHER_ARRAYS)
def test_arrays_are_coded_as_layers_save_them(make, tmp_path):
    model = make()
    with known_objects(Inventory.of(model)) as known:
        check_codable(model, known)
    save_model(model, tmp_path / "model.keras")
    size = save_model(model, tmp_path / "model.tnz")
    again = load_model(tmp_path / "model.tnz")
    assert_same(keras.models.load_model(tmp_path / "model.keras"), again)
    saved = arrays_of(keras.models.load_model(tmp_path / "model.keras"))
    assert arrays_of(again) == saved
    # Few bytes fill up a file whose layers have many weights that they do not save.
    other = (tmp_path / "model.keras").stat().st_size  # where LZMA finds what is there twice
    assert make is zeros or size < 1.4 * other + model.count_params() / 100 + 4000


def test_models_that_save_other_arrays_are_compressed_as_coded_files(tmp_path):
    rows = RNG.normal(size=(32, 64)).astype("float32")
    for make, factor in ((lora, 1.05), (table, 1.1)):
        result = compress(make(), factor, data=rows, coded=True, verbose=0)
        result.save(tmp_path / "small.tnz", overwrite=True)
        again = load_model(tmp_path / "small.tnz")
        np.testing.assert_array_equal(to_numpy(again(rows)), to_numpy(result.model(rows)))


@keras.saving.register_keras_serializable("test_files")
class Particular(layers.Dense):
    def build(self, shape):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("another thread")
        super().build(shape)


def test_what_cannot_be_coded_is_refused_before_the_work(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((12,)), Particular(3), layers.Dense(30)])
    message = "built in a thread.*RuntimeError: another thread. Save the model as a .keras file"
    with pytest.raises(ValueError, match=message):
        save_model(model, tmp_path / "model.tnz")
    monkeypatch.setattr(compressing, "survey_of", None)
    with pytest.raises(ValueError, match=message):
        compress(model, 2.0, coded=True, verbose=0)
    assert not list(tmp_path.iterdir())


def test_a_suffix_in_capitals_is_known(tmp_path):
    model = keras.Sequential([keras.Input((12,)), layers.Dense(3)])
    save_model(model, tmp_path / "MODEL.TNZ")
    assert_same(model, load_model(tmp_path / "MODEL.TNZ"))
    assert_same(model, keras_small.load(tmp_path / "MODEL.TNZ"))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="string inputs")
def test_assets_are_in_the_file(tmp_path):
    words = layers.TextVectorization(output_sequence_length=4)
    words.adapt(["a tensor network", "a n\u00e9twork"])
    texts = keras.Input((1,), dtype="string")
    inner = keras.Model(texts, words(texts))
    model = keras.Model(texts, layers.Embedding(20, 8)(inner(texts)))
    save_model(model, tmp_path / "model.tnz")
    again = load_model(tmp_path / "model.tnz")
    rows = keras.ops.convert_to_tensor([["a n\u00e9twork of a tensor"]])
    np.testing.assert_array_equal(to_numpy(again(rows)), to_numpy(model(rows)))


def test_a_lack_of_memory_is_not_the_file_s(saved, monkeypatch):
    def load(*_, **__):
        raise MemoryError

    monkeypatch.setattr(keras.models, "load_model", load)
    with pytest.raises(MemoryError):
        load_model(saved)
