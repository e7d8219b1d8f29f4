"""Models of every kind come back smaller, equal where asked, and load anywhere."""

import dataclasses
import importlib.util
import inspect
import re
import textwrap

import keras
import numpy as np
import pytest
from compressing import compress, error_of
from conformance import assert_same_arrays, relative_error, saved_and_loaded, to_numpy
from import_path import run_python
from slow_cases import slow_but

from keras_small import Data, Keeping, Promise, Smaller, Within, logits_divergence, storage
from keras_small.runtimes.file_costs import FileCosts
from keras_small.survey.copying import copy_of
from keras_small.survey.inventory import Inventory, children, places
from keras_tnattn import layers
from keras_tnattn.models import translator

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 300, (40, 12)).astype("int32")


def functional():
    """Attention, a shared dense layer and a nested model."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(300, 32, mask_zero=True, name="embedding")(ids)
    x = keras.layers.MultiHeadAttention(2, 16, name="attention")(x, x)
    shared = keras.layers.Dense(32, "relu", name="shared")
    x = shared(shared(x))
    attention = keras.layers.MultiHeadAttention(2, 16)
    x = layers.TransformerEncoder(attention, 64, name="encoder")(x)
    x = layers.MaskedAveragePooling1D()(x)
    inner_input = keras.Input((32,))
    inside = keras.layers.Dense(32, name="inside")(inner_input)
    x = keras.Model(inner_input, inside, name="nested")(x)
    return keras.Model(ids, keras.layers.Dense(5, "softmax", name="out")(x))


@keras.saving.register_keras_serializable(package="test")
class Block(keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.first = keras.layers.Dense(4 * self.units, "relu")
        self.second = keras.layers.Dense(self.units)
        self.again = self.second
        self.gain = self.add_weight((self.units,), "ones", name="gain")
        self.first.build(input_shape)
        self.second.build((*input_shape[:-1], 4 * self.units))

    def call(self, inputs):
        return inputs + self.gain * self.again(self.first(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="test")
class Subclassed(keras.Model):
    def __init__(self, depth=2, **kwargs):
        super().__init__(**kwargs)
        self.embedding = layers.TokenEmbedding(300, 32)
        self.blocks = []
        for _ in range(depth):
            self.blocks.append(Block(32))
        self.extra = [Block(32)]
        self.head = keras.Sequential([keras.layers.Dense(5, "softmax")])

    def call(self, inputs):
        x = self.embedding(inputs)
        for block in [*self.blocks, *self.extra]:
            x = block(x)
        return self.head(keras.ops.mean(x, axis=1))


def subclassed():
    model = Subclassed()
    model(IDS)
    return model


def sequential(rows=300):
    return keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            keras.layers.Embedding(rows, 32),
            keras.layers.Flatten(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(5),
        ]
    )


def plga_encoder():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(300, 32)(ids)
    attention = layers.PowerLawGraphAttention(2, residual_units=1, residual_dim=24)
    x = layers.TransformerEncoder(attention, 64, name="encoder")(x)
    return keras.Model(ids, keras.layers.Dense(3)(x))


def outputs_of(model, inputs):
    return to_numpy(model(inputs))


MODELS = {f.__name__: f for f in (functional, subclassed, sequential, plga_encoder)}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def test_every_model_becomes_smaller_and_loads(model, tmp_path):
    before = [w.copy() for w in model.get_weights()]
    outputs = outputs_of(model, IDS)
    result = compress(model, 3.0, data=IDS)
    assert result.report.ratio >= 3
    assert result.report.weights_after == result.model.count_params()
    assert result.report.weights_before == model.count_params()
    # The given model is as it was.
    assert_same_arrays(before, model.get_weights())
    np.testing.assert_array_equal(outputs_of(model, IDS), outputs)
    small = outputs_of(result.model, IDS)
    assert small.shape == outputs.shape
    # A third of an untrained model; outputs that have nothing in common differ by sqrt(2).
    assert 0 < np.linalg.norm(small - outputs) < 1.8 * np.linalg.norm(outputs)
    loaded = saved_and_loaded(result.model, IDS, tmp_path)
    assert loaded.count_params() == result.model.count_params()
    # A factor of 1 keeps all.
    result = compress(model, 1)
    np.testing.assert_array_equal(outputs_of(result.model, IDS), outputs)
    assert result.model is not model
    assert all(row.format == "kept" for row in result.report.layers)
    assert result.report.bytes_after == result.report.bytes_before


def test_tolerance_0_keeps_what_is_computed(model):
    # A kernel of low rank already: nothing is lost where it is found out.
    for layer in [p.layer for p in places(model) if isinstance(p.layer, keras.layers.Dense)]:
        kernel = to_numpy(layer.kernel)
        left = RNG.normal(size=(kernel.shape[0], 1)).astype("float32")
        right = RNG.normal(size=(1, kernel.shape[1])).astype("float32")
        layer.kernel.assign(0.1 * left @ right)
    result = compress(model, Within(1e-5), formats=["low_rank"])
    assert any(row.format == "low_rank" for row in result.report.layers)
    small = outputs_of(result.model, IDS)
    np.testing.assert_allclose(small, outputs_of(model, IDS), rtol=1e-3, atol=1e-4)


INTEGERS = [(name, bits) for name in ("subclassed", "sequential", "functional") for bits in (8, 4)]


@pytest.mark.parametrize(("name", "bits"), slow_but([("subclassed", 4)], INTEGERS))
def test_bits(name, bits, tmp_path):
    model = MODELS[name]()
    result = compress(model, 32 / bits + 1, data=IDS, bits=bits)
    assert result.report.ratio >= 32 / bits + 1
    integers = [row for row in result.report.layers if row.format == "dense"]
    assert [row.weights_after for row in integers] == [row.weights_before for row in integers]
    assert integers or result.report.weights_after == result.model.count_params()
    assert error_of(model, result.model, IDS) < 0.8
    saved_and_loaded(result.model, IDS, tmp_path)


def test_bits_without_a_target_quantize_every_layer():
    result = compress(sequential(), bits=8, formats="low_rank")
    names = {"embeddings_integers", "kernel_integers"}
    assert {w.name for w in result.model.weights if w.dtype == "uint8"} >= names
    assert [row.bits for row in result.report.layers] == [8, 8, 8]
    assert {row.format for row in result.report.layers} == {"dense"}


def test_a_target_leaves_more_bits_where_they_cost_little():
    # The table has 9,600 weights and the last layer 325, whose errors are the model's.
    model = sequential()
    report = compress(model, 6.5, bits=4, data=IDS).report
    bits = {row.path: row.bits for row in report.layers}
    assert report.ratio >= 6.5
    assert min(bits.values()) == 4
    assert bits[report.layers[-1].path] in (6, 8, 32)
    report = compress(model, Within(1e-5), bits=4, formats="low_rank").report
    assert [row.format for row in report.layers] == ["kept"] * 3


def test_shared_layers_stay_shared():
    result = compress(functional(), 4.0)
    names = [layer.name for layer in result.model.layers]
    assert names.count("shared") == 1
    block = children(compress(subclassed(), 4.0).model)["blocks/0"]
    assert block.again is block.second
    assert isinstance(block.second, storage.LowRankDense)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_fresh_process_that_imports_keras_and_the_package_loads_it(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    model = functional()
    result = compress(model, 8.0, data=IDS, bits=8)
    result.save(tmp_path / "small.keras")
    np.save(tmp_path / "ids.npy", IDS)
    np.save(tmp_path / "outputs.npy", outputs_of(result.model, IDS))
    code = """
        import sys, keras, numpy as np
        import keras_small
        folder = sys.argv[1]
        model = keras.models.load_model(folder + "/small.keras")
        outputs = model.predict(np.load(folder + "/ids.npy"), verbose=0)
        np.testing.assert_allclose(outputs, np.load(folder + "/outputs.npy"), rtol=1e-4, atol=1e-5)
    """
    run_python("-c", textwrap.dedent(code), tmp_path, backend=backend)


def test_data_make_the_outputs_better():
    keras.utils.set_random_seed(1)
    model = sequential()
    # Three texts of one word each: three rows of the table and three inputs of the kernel matter.
    ids = np.repeat(RNG.integers(1, 4, (64, 1)), 12, axis=1).astype("int32")

    def error(**options):
        return error_of(model, compress(model, 8.0, **options).model, ids)

    assert error(data=ids) < 0.3 * error()


def test_few_rows_hardly_make_a_kernel_worse():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    few, rows = np.split(RNG.normal(size=(600, 64)), [40])
    data = (None, few, np.repeat(few[:5], 9, axis=0))
    smaller = [compress(model, bits=4, formats=(), data=some).model for some in data]
    plain, *others = (error_of(model, small, rows) for small in smaller)
    assert max(others) < 1.1 * plain  # once twice as large


def test_max_drop_is_the_budget(caplog):
    caplog.set_level("INFO", "keras_small")
    model = sequential()
    outputs = outputs_of(model, IDS)

    def metric(candidate):
        return -float(np.abs(outputs_of(candidate, IDS) - outputs).max())

    result = compress(model, Keeping(metric, 0.05), data=IDS)
    assert result.report.metric_before == 0
    assert -0.05 <= result.report.metric_after <= 0
    assert result.report.ratio > 1.2
    steps = [m for m in caplog.messages if m.startswith("tried a model ")]
    assert len(steps) == 7
    assert all(m.endswith("within max_drop of the original's -0") for m in steps)
    # The factor is the one that was reached, as in the report.
    kept = [float(m.split()[3]) for m in steps if " not within " not in m]
    assert max(kept) == pytest.approx(result.report.ratio, rel=5e-3)
    assert all(float(m.split()[3]) > max(kept) for m in steps if " not within " in m)
    tighter = compress(model, Keeping(metric, 0.005), data=IDS)
    assert tighter.report.ratio < result.report.ratio


def test_max_drop_goes_as_far_as_the_formats_do(caplog):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32)])
    with caplog.at_level("INFO", "keras_small"):
        assert compress(model, Keeping(lambda model: 0.0, 0.1), bits=4).report.ratio > 4
    steps = [m for m in caplog.messages if "times smaller" in m]
    assert len(steps) == 1  # the smallest model is accepted at once
    assert 2 <= compress(model, Keeping(lambda model: 0.0, 0.1, 2.0)).report.ratio < 4
    # One of 0 takes what loses nothing.
    report = compress(model, Keeping(lambda model: 0.75, 0.0)).report
    assert report.ratio > 1.2
    assert report.metric_after == 0.75


def test_nothing_asked_is_a_report(tmp_path):
    report = compress(functional(), data=IDS).report
    assert report.ratio == 1
    row = next(row for row in report.layers if row.path == "attention/_query_dense")
    sizes, errors = zip(*[(size, error) for size, error, _ in row.curve], strict=True)
    assert errors[0] == 0
    assert len(sizes) > 5
    assert "attention/_query_dense" in str(report)
    assert report.to_csv().count("\n") == len(report.layers) + 1
    assert '"curve"' in report.to_json()
    report.plot(tmp_path / "curves.svg")
    costs = [FileCosts(f"out/{n}.onnx", 1200, 30_000, 12.0, 40.0, 0.0, 1.0) for n in "ab"]
    dataclasses.replace(report, files=tuple(costs)).plot(tmp_path / "files.svg")
    curves, files = ((tmp_path / f"{name}.svg").read_text() for name in ("curves", "files"))
    for text in ("bytes on disk", "bytes of memory", "microseconds", "32 rows", "a.onnx"):
        assert text in files  # in a comment beside its shapes
        assert text not in curves


def test_filters_leave_layers_alone():
    result = compress(functional(), 1.4, data=IDS, filters=["embedding", "shared"])
    formats = {row.path: row.format for row in result.report.layers}
    assert formats["attention/_query_dense"] == "kept"
    reasons = {row.path: row.reason for row in result.report.layers}
    assert "filters" in reasons["nested/inside"]


@pytest.mark.slow
def test_renumbered_ids():
    model = sequential(600)  # enough rows for a tensor train
    result = compress(
        model, 1.6, data=Data(IDS, kept_ids=2), formats="tensor_train", filters="embedding"
    )
    order = result.renumbering.old_ids
    assert order[:2].tolist() == [0, 1]
    assert sorted(order) == list(range(600))
    row = next(row for row in result.report.layers if row.format == "tensor_train")
    small = outputs_of(result.model, result.renumbering(IDS))
    outputs = outputs_of(model, IDS)
    assert relative_error(small, outputs) < 1.5 * row.error


def test_the_progress_of_a_large_table_is_reported(caplog):
    caplog.set_level("INFO", "keras_small")
    ids = keras.Input((12,), dtype="int32")
    model = keras.Model(ids, keras.layers.Embedding(600, 16, name="words")(ids))
    compress(model, 2, formats="tensor_train")
    groups = [f"  tensor trains: group {number} of 12" for number in range(1, 13)]
    cost, *others = caplog.messages
    assert re.fullmatch(
        r"layers that can be replaced: 1, 38.4 kB in total; expected time: about \d+ \w+", cost
    )
    assert others == ["looking for candidates of words", *groups, "building the small model"]


def test_the_divergence_of_logits_is_that_of_their_softmax():
    p, q = RNG.normal(size=(2, 3, 4, 5)).astype("float32")
    divergence = to_numpy(logits_divergence(p, q))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    np.testing.assert_allclose(divergence, (p * np.log(p / q)).sum(-1), rtol=1e-4)


def test_logits_are_healed_by_their_divergence(tmp_path):
    model = sequential()
    logits = 20 * outputs_of(model, IDS)
    model.layers[-1].kernel.assign(20 * to_numpy(model.layers[-1].kernel))
    result = compress(model, 6.0, data=IDS)
    result.model.save(tmp_path / "before.keras")

    def error():
        return float(np.mean(to_numpy(logits_divergence(logits, outputs_of(result.model, IDS)))))

    before = error()
    losses = result.heal(IDS, epochs=8, learning_rate=3e-3, loss=logits_divergence)
    assert losses[0] == pytest.approx(before, rel=0.5)
    assert error() < before / 2
    # A healed model is saved without the state of its training.
    result.model.save(tmp_path / "healed.keras")
    before, healed = ((tmp_path / f"{name}.keras").stat() for name in ("before", "healed"))
    assert healed.st_size < 1.1 * before.st_size


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow traces steps")
def test_a_step_of_healing_is_traced_once(monkeypatch):
    # Not as the tests make it, which would build any optimizer first.
    make = inspect.unwrap(keras.Model.make_train_function)
    monkeypatch.setattr(keras.Model, "make_train_function", make)
    traces = []

    def loss(targets, outputs):
        traces.append(outputs)
        return keras.ops.mean(keras.ops.square(targets - outputs))

    model = sequential()
    model.layers[-1].name = "class scores"  # which TensorFlow's graphs refuse
    compress(model, 2.0, data=IDS).heal(IDS, batch_size=len(IDS), epochs=2, loss=loss)
    assert len(traces) == 1


def test_the_learning_rate_of_healing(monkeypatch):
    rates, rows = [], []
    train = keras.Model.train_on_batch

    def noting(self, *arguments, **options):
        rates.append(float(self.optimizer.learning_rate))
        rows.append(arguments[0])
        return train(self, *arguments, **options)

    monkeypatch.setattr(keras.Model, "train_on_batch", noting)
    result = compress(sequential(), 2.0, data=IDS)
    # 40 steps: two of warm-up, then it falls to 0.
    result.heal(IDS, epochs=2, batch_size=2, learning_rate=0.01)
    expected = [0.005, *(0.01 * min(1, (40 - step) / 38) for step in range(1, 40))]
    assert rates[-1] < 0.001
    for epoch in np.split(np.concatenate(rows), 2):  # all rows, in an order of its own
        assert sorted(map(tuple, epoch)) == sorted(map(tuple, IDS))
        assert (epoch != IDS).any()
    result.heal(OfUnknownLength(), epochs=4, learning_rate=0.01)
    expected += [0.01] * 6 + [0.008] * 2
    np.testing.assert_allclose(rates, expected, rtol=1e-4)


class OfUnknownLength:
    def __iter__(self):
        return iter([IDS[:20], IDS[20:]])


@pytest.mark.parametrize(
    "case",
    [
        "another table",
        "another table, left out",
        "the same table",
        "an operation",
        "an operation, small outputs",
        "an operation, large outputs",
        "an operation, masked classes",
    ],
)
def test_ids_that_something_else_reads_keep_their_numbers(case):
    reader, _, others = case.partition(", ")
    ids, table = keras.Input((12,), dtype="int32"), keras.layers.Embedding(600, 16, name="one")
    x, is_high = table(ids), ids > 300
    if reader == "an operation":
        x = x * keras.ops.cast(is_high, "float32")[..., None]
    elif reader == "the same table":
        x = keras.layers.Add()([x, table(keras.ops.where(is_high, 7, 9))])
    else:
        x = keras.layers.Add()([x, keras.layers.Embedding(600, 16, name="two")(ids)])
    outputs = keras.layers.Dense(3)(x)
    scale = {"large outputs": 1e5, "masked classes": -np.inf}.get(others)
    outputs = outputs * 1e-6 if others == "small outputs" else outputs
    rest = [] if scale is None else [keras.ops.ones_like(outputs) * scale]
    filters = "one" if reader == "an operation" or others == "left out" else None
    options = {"formats": "tensor_train", "filters": filters}
    result = compress(
        keras.Model(ids, [outputs, *rest]), 1.2, data=Data(IDS, kept_ids=2), **options
    )
    assert any(row.format == "tensor_train" for row in result.report.layers)
    assert not result.renumbering


def test_the_report_counts_what_the_layers_compute():
    """Of all positions of a convolution, and of weights also those that are packed."""
    layers = keras.layers
    inputs = keras.Input((9, 9, 4))
    x = layers.Conv2D(16, 3, strides=2, padding="same", name="convolution")(inputs)
    x = layers.Conv2DTranspose(8, 2, strides=2, name="transposed")(x)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.Dense(24, name="each")(layers.Reshape((16, 32))(x))
    x = layers.EinsumDense("bsd,dhk->bshk", (16, 4, 6), bias_axes="hk", name="einsum")(x)
    x = layers.GRU(8, name="steps")(layers.Reshape((16, 24))(x))
    model = keras.Model(inputs, x)
    rows = np.random.default_rng(0).normal(size=(4, 9, 9, 4)).astype("float32")
    expected = {
        "convolution": 2 * 25 * 9 * 4 * 16,
        "transposed": 2 * 25 * 4 * 16 * 8,
        "depthwise": 2 * 64 * 9 * 8,
        "each": 2 * 16 * 32 * 24,
        "einsum": 2 * 16 * 24 * 24,
        "steps": 2 * 16 * (24 + 8) * 24,
    }
    for data in (None, rows):
        report = compress(model, bits=8, data=data, formats=(), verbose=0).report
        assert {row.path: row.flops_before for row in report.layers} == expected
        assert report.weights_after == report.weights_before == model.count_params()
        assert all(row.weights_after == row.weights_before for row in report.layers)
        assert "ms" not in str(report).split("\n")[0]


@pytest.mark.parametrize("bits", slow_but([4, 2], [32, 8, 4, 2]))
def test_an_impossible_target_tells_what_is_possible(bits):
    hint = {32: "Try 8 or 4 bits", 8: "Try 4 or 2 bits", 4: "Try 2 bits"}.get(bits)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu")])
    possible = r"factor of at most ([\d.]+):.*the error"
    with pytest.raises(ValueError, match=possible) as caught:
        compress(model, 1e4, bits=bits)
    assert "bits" not in str(caught.value)  # no number of them reaches that
    # Biases are most of what is left, whatever the bits.
    target = 1.02 * float(re.search(possible, str(caught.value))[1])
    with pytest.raises(ValueError, match=possible) as caught:
        compress(model, target, bits=bits)
    assert (hint or "Received: factor") in str(caught.value)
    assert ("bits" in str(caught.value)) == (hint is not None)
    for width in re.findall(r"\d", hint or ""):
        assert compress(model, target, bits=int(width)).report.ratio >= target


class OutOfMemoryError(RuntimeError):
    """Named like PyTorch's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_lack_of_memory_is_no_fault_of_the_data(error):
    class Large(keras.layers.Layer):
        def call(self, inputs):
            if keras.ops.is_tensor(inputs) and inputs.shape[0] == 8:
                raise error
            return inputs

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), Large()])
    with pytest.raises(type(error)):
        compress(model, 2.0, data=np.ones((8, 64), "float32"))


@pytest.mark.parametrize("bits", slow_but([4], [32, 8, 4]))
def test_the_highest_target_that_is_stated_can_be_reached(bits):
    model, ids = sequential(60), IDS % 60
    with pytest.raises(ValueError, match="factor of at most") as caught:
        compress(model, 1e6, data=ids, bits=bits)
    highest = float(re.search(r"at most ([\d.]+):", str(caught.value))[1])
    result = compress(model, highest, data=ids, bits=bits)
    assert result.report.ratio >= highest


def test_a_loss_of_ones_own_may_leave_the_outputs_of_the_original():
    result = compress(sequential(), 2.0, data=IDS)
    before = np.abs(outputs_of(result.model, IDS)).mean()
    result.heal(
        IDS,
        epochs=5,
        learning_rate=0.01,
        loss=lambda old, new: keras.ops.mean(keras.ops.square(new)),
    )
    assert np.abs(outputs_of(result.model, IDS)).mean() < 0.5 * before


class Rate(keras.optimizers.schedules.ExponentialDecay):
    """A schedule that Keras does not know."""


def first_output(labels, outputs):
    return outputs[:, 0]


def cut_off(x):
    return keras.ops.relu(x)


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_a_compiled_model_comes_back_compiled_and_loads(tmp_path):
    model, labels = sequential(), np.zeros(len(IDS))
    model.add(keras.layers.Dense(64, cut_off))
    options = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy", first_output]}
    model.compile(keras.optimizers.Adam(Rate(1e-3, 9, 0.9)), **options)
    model.fit(IDS, labels, verbose=0)
    options = {"goal": Keeping(lambda small: -small.evaluate(IDS, labels, verbose=0)[0], 9)}
    result = compress(model, data=IDS, bits=8, formats=(), **options)
    assert [row.bits for row in result.report.layers] == [8] * 4
    result.heal(IDS)
    result.save(tmp_path / "small.keras")
    own = {"Rate": Rate, "first_output": first_output, "cut_off": cut_off}
    loaded = keras.models.load_model(tmp_path / "small.keras", own)
    for evaluated in (result.model, loaded):
        scores = evaluated.evaluate(IDS, labels, verbose=0, return_dict=True)
        assert set(scores) == {"loss", "accuracy", "first_output"}
    result.model.fit(IDS, labels, verbose=0)
    with pytest.raises(ValueError, match="which was trained"):
        result.heal(IDS)
    model.compile("adam", lambda labels, outputs: keras.ops.mean(outputs))  # Keras cannot save it
    assert not compress(model, 3.0, data=IDS).model.compiled


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_failed_healing_changes_nothing():
    dense = keras.layers.Dense(64, "relu")
    model = keras.Sequential([keras.Input((64,)), dense, keras.layers.Dense(3, "softmax")])
    result = compress(model, 1.5)
    before = result.model.get_weights()
    for rows, options, message in (
        (np.ones((9, 64)), {"learning_rate": 1e30, "loss": "mse"}, "smaller learning_rate than"),
        (np.diag([np.nan] * 64), {}, "Look for NaN in the data"),
        (np.ones((5, 7)), {}, "The data do not fit the model"),
    ):
        with pytest.raises(ValueError, match=message):
            result.heal(rows.astype("float32"), epochs=3, **options)
        assert_same_arrays(before, result.model.get_weights())


def test_ids_out_of_range_do_not_fit_the_model():
    with pytest.raises(ValueError, match=r"to 299 for embedding.* ids from 10\d\d to 12\d\d"):
        compress(sequential(300), 2.0, data=IDS + 1000)
    many = np.tile(IDS, (100, 1))
    many[1] = 300  # in a row that is not among those that the model is run on
    with pytest.raises(ValueError, match="ids from 1 to 300"):
        compress(sequential(300), 2.0, data=many)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"large": "no smaller model was asked for"}),
        ({"goal": 1}, {"large": "no smaller model was asked for"}),
        ({"goal": 1.5}, {"up": "no format makes it smaller without bits", "small": None}),
        ({"goal": 1.5, "bits": 8}, {"small": "the factor is reached without it"}),
        (
            {"goal": Within(1e-9), "bits": 8, "formats": ()},
            {"large": "no smaller candidate is within the tolerance"},
        ),
        ({"bits": 8, "formats": ()}, {"tiny": "no format makes it smaller"}),
        (
            {"goal": Keeping(lambda _: 1.0, 0.0, 1.5)},
            {"small": "the smallest model within max_drop keeps it"},
        ),
    ],
)
def test_the_reason_is_that_of_the_choice(options, expected):
    layers = keras.layers
    inputs = keras.Input((4, 4, 8))
    x = layers.Conv2DTranspose(8, 2, name="up")(inputs)
    x = layers.Dense(400, name="large", use_bias=False)(layers.Flatten()(x))
    x = layers.Dense(1, use_bias=False, name="tiny")(layers.Dense(8, name="small")(x)[:, :1])
    rows = np.random.default_rng(0).normal(size=(8, 4, 4, 8)).astype("float32")
    report = compress(keras.Model(inputs, x), data=rows, verbose=0, **options).report
    reasons = {row.path: row.reason for row in report.layers}
    for path, reason in expected.items():
        assert reason is None or reasons[path] == reason


def test_healing_brings_outputs_nearer():
    model = sequential()
    outputs = outputs_of(model, IDS)
    result = compress(model, 12.0, bits=8, data=IDS)

    def error():
        return np.linalg.norm(outputs_of(result.model, IDS) - outputs)

    before, weights = error(), model.get_weights()
    losses = result.heal(IDS, epochs=20, learning_rate=3e-3)
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert error() < before
    assert_same_arrays(weights, model.get_weights())


@pytest.mark.parametrize(("activation", "labels"), [("softmax", None), (None, IDS[:, 0] % 3)])
def test_labels_are_mixed_into_probabilities_only(activation, labels):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, activation)])
    result = compress(model, 1.1)
    with pytest.raises(ValueError, match=r"labels, and .* probabilities, for label_weight=0.5"):
        result.heal(IDS if labels is None else (IDS, labels), label_weight=0.5)


def test_the_loss_of_healing_has_labels_and_hidden_layers():
    hidden, scores = keras.layers.Dense(16, name="hidden"), keras.layers.Dense(3, "softmax")
    model = keras.Sequential([keras.Input((12,)), hidden, scores])
    rows, labels = np.random.default_rng(0).normal(size=(64, 12)), np.arange(64) % 3
    result = compress(model, 1.3, bits=32, data=rows)
    p, q = to_numpy(model(rows)), to_numpy(result.model(rows))
    h, g = to_numpy(hidden(rows)), to_numpy(result.model.layers[0](rows))
    mixed = 0.75 * p + 0.25 * np.eye(3)[labels]
    for data, options, part, targets in (
        ((rows, labels), {"label_weight": 0.25}, 0.0, mixed),
        (rows, {"outputs": "hidden"}, np.mean((h - g) ** 2) / np.mean(h**2), p),
    ):
        options |= {"learning_rate": 1e-9, "batch_size": 64, "loss": "kl_divergence"}
        (loss,) = result.heal(data, **options)
        divergence = (targets * np.log(targets / q)).sum(axis=-1).mean()
        assert loss == pytest.approx(divergence + part, rel=1e-3)


def test_healing_uses_no_dropout():
    inputs = keras.Input((64,))
    x = keras.layers.Dropout(0.9)(keras.layers.Dense(64, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    result = compress(model, 1.1)
    rows = RNG.normal(size=(64, 64)).astype("float32")
    (loss,) = result.heal(rows, learning_rate=1e-9, batch_size=64)
    error = outputs_of(result.model, rows) - outputs_of(model, rows)
    np.testing.assert_allclose(loss, np.square(error).mean(), rtol=1e-3)


@pytest.mark.parametrize("bits", slow_but([8], [32, 8]))
def test_a_healing_that_lowers_the_metric_is_undone(bits):
    # Of the original, the small model before, after and since its corrections, two healed ones.
    values = iter([0.9, 0.8, 0.8, 0.8, 0.7, np.nan, np.inf, KeyboardInterrupt, 0.85])

    def metric(model):
        if (value := next(values)) is KeyboardInterrupt:
            raise value
        return value

    result = compress(sequential(), Smaller(2.0, metric=metric), bits=bits, data=IDS)
    before, floating = outputs_of(result.model, IDS), result._assembly.floating.model.get_weights()
    assert result.heal(IDS) == []
    assert "Healing was undone: it would lower the metric from 0.8 to 0.7." in str(result)
    np.testing.assert_array_equal(outputs_of(result.model, IDS), before)
    assert (result.report.metric_before, result.report.metric_after) == (0.9, 0.8)
    for _ in range(3):  # a metric that fails leaves the model as it was
        with pytest.raises((ValueError, KeyboardInterrupt), match=r"a finite metric|^$"):
            result.heal(IDS, learning_rate=0.1)
        np.testing.assert_array_equal(outputs_of(result.model, IDS), before)
        assert_same_arrays(floating, result._assembly.floating.model.get_weights())
    assert result.healed_epochs == 0
    result.heal(IDS, epochs=2)
    assert (result.report.metric_after, result.healed_epochs) == (0.85, 2)
    values = iter([0.85])  # one that is as good as before is kept
    result.heal(IDS)
    assert result.healed_epochs == 3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"goal": 0.5}, "factor=0.5"),
        ({"goal": 1e6}, "factor of at most"),
        ({"goal": 2.0, "formats": ["svd"]}, "svd"),
        ({"goal": 2.0, "bits": 5}, "32 for floats.* bits=5"),
        ({"goal": Smaller(2.0, metric=lambda model: float("nan"))}, "nan"),
        ({"goal": 2.0, "data": np.ones((4, 12, 3, 2), "int32")}, "do not fit"),
        ({"goal": 2.0, "data": np.ones((0, 12), "int32")}, "no rows"),
        ({"goal": 2.0, "data": Data(IDS, kept_ids=300)}, "300 of .*kept_ids=300"),
        (
            {"goal": Smaller(1, metric=lambda m: 1.0), "data": Data(IDS, kept_ids=2)},
            "kept_ids without a metric.*kept_ids=2",
        ),
    ],
)
def test_bad_input_is_a_clear_error(options, match):
    with pytest.raises(ValueError, match=match):
        compress(sequential(), **options)


@pytest.mark.parametrize(
    ("kind", "arguments", "match"),
    [
        (Smaller, {"factor": 0.5}, "at least 1. Received: factor=0.5"),
        (Smaller, {"factor": True}, "factor=True"),
        (Smaller, {"factor": float("inf")}, "factor=inf"),
        (Smaller, {"factor": 2, "metric": 3}, "metric=3"),
        (Within, {"tolerance": [0.1]}, r"tolerance=\[0.1\]"),
        (Smaller, {"factor": 0.01}, r"pass Within\(0.01\)"),
        (Within, {"tolerance": -1}, "tolerance=-1$"),
        (Within, {"tolerance": 1}, r"relative error in \[0, 1\).*tolerance=1$"),
        (Within, {"tolerance": 8}, r"tolerance=8.*pass Smaller\(8\)"),
        (Within, {"tolerance": float("nan")}, "tolerance=nan$"),
        (Promise, {"max_flips": 5}, "max_flips=5.*hundredth part, 0.05$"),
        (Promise, {"max_flips": 0.1, "confidence": 95}, "confidence=95.*hundredth part, 0.95$"),
        (Promise, {"max_change": 0}, "max_change=0$"),
        (Within, {"tolerance": 0.1, "metric": 3}, "metric=3"),
        (Keeping, {"metric": None, "max_drop": 0.1}, "max_drop=0.1, metric=None"),
        (Keeping, {"metric": 3, "max_drop": 0.1}, "metric=3"),
        (Keeping, {"metric": len, "max_drop": -0.1}, "max_drop=-0.1"),
        (Keeping, {"metric": len, "max_drop": 0.1, "factor": 0.9}, "factor=0.9"),
        (Keeping, {"metric": len, "max_drop": 0.1, "factor": "2"}, "factor='2'"),
        (Data, {"inputs": IDS, "kept_ids": -1}, "kept_ids=-1"),
        (Data, {"inputs": IDS, "batch_size": 0}, "batch_size=0"),
        (Data, {"inputs": None}, "inputs=None"),
    ],
)
def test_goals_and_data_check_their_arguments(kind, arguments, match):
    with pytest.raises(ValueError, match=match):
        kind(**arguments)


def test_a_drop_in_points_of_percent_is_refused():
    with pytest.raises(ValueError, match=r"max_drop=2, and a metric of 0.9.*hundredth part, 0.02"):
        compress(sequential(), Keeping(lambda _: 0.9, max_drop=2), data=IDS, verbose=0)
    # A metric in percent may drop by more than 1.
    result = compress(sequential(), Keeping(lambda _: 90.0, max_drop=2), data=IDS, verbose=0)
    assert result.report.ratio > 2


@pytest.mark.parametrize("verbose", ["x", "auto", 2, None])
def test_verbose_is_0_or_1(verbose):
    with pytest.raises(ValueError, match=f"0 .silent. or 1.*verbose={verbose!r}"):
        compress(sequential(), 2.0, data=IDS, verbose=verbose)


@pytest.mark.parametrize("goal", [None, 1])
def test_without_a_goal_the_report_says_how_small_the_model_could_be(goal):
    report = compress(sequential(), goal, data=IDS, verbose=0).report
    assert report.ratio == 1
    smallest = sum(min(size for size, *_ in row.curve) for row in report.layers if row.curve)
    others = sum(row.bytes_before for row in report.layers if not row.curve)
    factor = report.bytes_before / (smallest + others)
    assert 'report.plot("curves.png") draws' in report.notes[-1]
    assert report.notes[-1].endswith(f"the model is {factor:.3g} times smaller.")


def test_models_that_do_not_fit_are_refused():
    layer = keras.layers.Embedding(300, 32, mask_zero=True)
    model = keras.Sequential([keras.Input((12,), dtype="int32"), layer])
    with pytest.raises(ValueError, match=r"id 0, the padding.*kept_ids=0"):
        compress(model, 2.0, data=Data(IDS, kept_ids=0))
    with pytest.raises(ValueError, match="built model"):
        compress(keras.Sequential([keras.layers.Dense(3)]), 2.0)
    with pytest.raises(TypeError, match=r"keras\.Model"):
        compress(keras.layers.Dense(3), 2.0)


def test_a_model_without_a_config_is_refused():
    class Hidden(keras.Model):
        def __init__(self, function):
            super().__init__()
            self.function = function
            self.dense = keras.layers.Dense(64)

        def call(self, inputs):
            return self.dense(inputs)

    model = Hidden(object())
    model(np.ones((2, 64)))
    with pytest.raises(ValueError, match="Could not copy"):
        compress(model, 2.0)


def test_a_copy_of_a_copy():
    model = functional()
    once = compress(model, 2.0).model
    again = copy_of(Inventory.of(once)).model
    np.testing.assert_array_equal(outputs_of(again, IDS), outputs_of(once, IDS))


@pytest.mark.slow
def test_translators_stay_translators(tmp_path):
    model = translator(300, 200, "sdpa", model_dim=16, num_heads=2, feedforward_dim=32, dropout=0.0)
    pairs = {"source": IDS[:, :6] % 300, "target": IDS[:, 6:] % 200}
    outputs = outputs_of(model, pairs)
    small = compress(model, 2.0, data=pairs).model
    assert isinstance(small, type(model))
    assert model.count_params() > 2 * small.count_params() - 10
    logits = outputs_of(small, pairs)
    assert 0 < np.linalg.norm(logits - outputs) < np.linalg.norm(outputs)
    assert small.encode(pairs["source"]) is not None
    loaded = saved_and_loaded(small, pairs, tmp_path)
    assert isinstance(loaded, type(model))
