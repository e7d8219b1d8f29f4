"""ONNX files whose convolutions compute with integers. The oracles are the models in floats."""

import collections
import dataclasses

import keras
import numpy as np
import pytest
from conformance import relative_error
from exported_files import run

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from keras_small import compress  # noqa: E402
from keras_small.asked.inputs import specs_of  # noqa: E402
from keras_small.runtimes import computation, exporting, onnx_file  # noqa: E402
from keras_small.runtimes.computation import Computation  # noqa: E402
from keras_small.runtimes.onnx_conversion import convert  # noqa: E402
from keras_small.runtimes.onnx_convolutions import range_of  # noqa: E402
from keras_small.runtimes.onnx_file import OnnxGraph  # noqa: E402

layers = keras.layers
RNG = np.random.default_rng(0)
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="ONNX from its graphs"),
]


@pytest.fixture(autouse=True)
def integers_are_fast(monkeypatch):
    monkeypatch.setattr(onnx_file, "is_fast", lambda *_: True)


def normalized(x):
    """Scales channels by numbers of both signs and of different sizes."""
    layer, rng = layers.BatchNormalization(), np.random.default_rng(0)
    y, size = layer(x), x.shape[-1]
    gamma = rng.uniform(0.2, 2, size) * np.where(np.arange(size) % 3, 1, -1)
    layer.set_weights([gamma, *rng.normal(size=(2, size)), np.full(size, 0.3)])
    return y


def mobile():
    """Reads a normalized input beside a depthwise branch with zeros around it."""
    inputs = keras.Input((12, 12, 3))
    x = layers.ReLU(6.0)(normalized(layers.Conv2D(8, 3, padding="same", strides=2)(inputs)))
    y = layers.ZeroPadding2D(((0, 1), (1, 0)))(normalized(layers.Conv2D(16, 1)(x)))
    y = layers.ReLU()(normalized(layers.DepthwiseConv2D(3, padding="valid", use_bias=False)(y)))
    y = layers.Conv2D(8, 1)(layers.ZeroPadding2D(((1, 0), (0, 1)))(y))
    x = layers.MaxPooling2D()(layers.Add()([x, y]))
    x = layers.Conv2D(6, 2, activation="relu")(x)
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))


def words():
    ids = keras.Input((None,), dtype="int32")
    x = layers.MaxPooling1D(2)(
        layers.Conv1D(12, 3, activation="relu")(layers.Embedding(20, 8)(ids))
    )
    return keras.Model(ids, [layers.Conv1D(4, 2, padding="same")(x), layers.Dense(3)(x)])


IMAGES = RNG.normal(size=(24, 12, 12, 3)).astype("float32")
IDS = RNG.integers(0, 20, (24, 10)).astype("int32")


def written(model, path, data, max_error):
    """Returns what changed, the error, the operations that run, and the file."""
    changes = exporting.write_file(model, path, data[:8], max_error=max_error, data=[data])
    options = ort.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 3, f"{path}.run"
    session = ort.InferenceSession(str(path), options)
    outputs = session.run(None, {session.get_inputs()[0].name: data})
    pairs = list(zip(outputs, keras.tree.flatten(model(data)), strict=True))
    errors = [relative_error(x, y) for x, y in pairs]
    nodes = onnx.load(f"{path}.run").graph.node
    return changes, max(errors), collections.Counter(x.op_type for x in nodes), onnx.load(path)


@pytest.mark.parametrize(
    ("network", "data", "convolutions", "few"),
    [(mobile, IMAGES, 5, {"QLinearAdd": 1, "Clip": 0, "Pad": 0, "Relu": 0, "Mul": 0}),
     (words, IDS, 2, {"Relu": 0})],
)  # fmt: skip
def test_all_convolutions_compute_with_integers(network, data, convolutions, few, tmp_path):
    model = network()
    changes, error, counts, file = written(model, tmp_path / "x.onnx", data, 1.0)
    onnx.checker.check_model(file, full_check=True)
    assert counts["QLinearConv"] == len(changes) == convolutions
    assert {**few, "Conv": 0} == {name: counts[name] for name in {**few, "Conv": 0}}
    assert 1e-4 < error < 0.03
    # A part of them stays in floats, or all.
    path = tmp_path / "bound.onnx"
    changes, bounded, counts, _ = written(model, path, data, error / 2)
    assert bounded < error / 2 + 1e-3
    assert counts["Conv"] > 0
    assert len(changes) == counts["QLinearConv"]
    _, exact, counts, _ = written(model, tmp_path / "exact.onnx", data, 0)
    assert exact < 1e-5
    assert counts["QLinearConv"] == 0


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_of_bytes_stay_what_they_are(bits, tmp_path, capsys):
    inputs = keras.Input((12, 12, 3))
    x = normalized(layers.Conv2D(16, 3, name="first")(inputs))
    model = keras.Model(inputs, layers.Flatten()(layers.ReLU()(x)))
    options = {"formats": (), "for_runtime": "onnxruntime", "verbose": 0}
    result = compress(model, bits=bits, data=IMAGES, **options)
    result.export(tmp_path / "x.onnx")
    assert ("rounded again, to 8 bits" in capsys.readouterr().out) == (bits == 4)
    result.export(tmp_path / "exact.onnx", max_error=0)
    errors = [costs.error for costs in result.report.files]
    assert errors[1] < 1e-5 < errors[0] < 0.012
    file = onnx.load(tmp_path / "x.onnx")
    arrays = [onnx.numpy_helper.to_array(x) for x in file.graph.initializer]
    (kernel,) = (x for x in arrays if x.dtype == np.uint8 and x.ndim == 4)
    (matrix,) = result.model.get_layer("first").stored_matrices().values()
    if bits == 8:
        integers = matrix.arranged(matrix.numbers).astype(int).transpose(3, 2, 0, 1) - 128
        assert set(matrix.zeros.ravel()) == {128}
        signs = np.where(np.arange(16) % 3, 1, -1)[:, None, None, None]
        np.testing.assert_array_equal(kernel, (signs * integers).clip(-128, 127) + 128)


def test_integers_of_kernels_change_no_mean(tmp_path):
    # Inputs whose mean is far from 0 show what the integers of a kernel lack.
    inputs = keras.Input((12, 12, 3))
    x = layers.DepthwiseConv2D(3, depth_multiplier=8, padding="valid")(inputs)
    model = keras.Model(inputs, layers.Conv2D(6, 3, groups=2)(x))
    images = IMAGES + np.float32([9, -9, 9])
    options = {"max_error": 1.0, "data": [images]}
    exporting.write_file(model, tmp_path / "x.onnx", images[:2], **options)
    (outputs,) = run(tmp_path / "x.onnx", images)
    expected = np.asarray(model(images))
    change, size = outputs.mean(axis=(0, 1, 2)) - expected.mean(axis=(0, 1, 2)), expected.std()
    assert np.abs(change).max() < 0.002 * size


def test_one_of_them_can_stay_in_floats(tmp_path):
    # ONNX Runtime makes integers of a kernel of floats between integers.
    model = mobile()
    specs = specs_of(model, IMAGES)
    wanted = Computation(model, lambda x: model(x, training=False), specs, [IMAGES], [IMAGES])
    graph = OnnxGraph(convert(wanted))
    plan = onnx_file.choose_plan(graph, wanted, wanted.expected_outputs(), 1.0)
    assert (len(plan.convolutions), plan.exact) == (5, frozenset())
    for name in plan.convolutions:
        content = graph.file(dataclasses.replace(plan, exact=frozenset([name]))).content
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "run.onnx")
        ort.InferenceSession(content, options)
        nodes = onnx.load(tmp_path / "run.onnx").graph.node
        assert collections.Counter(x.op_type for x in nodes)["QLinearConv"] == 4


def test_numbers_around_convolutions_are_read_row_by_row(tmp_path, monkeypatch):
    asked = []

    def samples_of(content, examples, *options):
        asked.extend(len(array) for (array,) in examples)
        return computation.samples_of(content, examples, *options)

    monkeypatch.setattr(onnx_file, "samples_of", samples_of)
    _, error, counts, _ = written(mobile(), tmp_path / "x.onnx", IMAGES, 1.0)
    assert asked == [1] * len(IMAGES)
    assert counts["QLinearConv"] == 5
    assert error < 0.05


@pytest.mark.parametrize("then_slow", [False, True])
def test_slow_integers_stay_in_floats(then_slow, tmp_path, monkeypatch):
    answers = iter([then_slow, False])  # the second one if some do not stay in floats
    monkeypatch.setattr(onnx_file, "is_fast", lambda *_: next(answers))
    bound = 0.004 if then_slow else 1.0
    changes, error, counts, _ = written(words(), tmp_path / "x.onnx", IDS, bound)
    assert list(answers) == [False] * (not then_slow)
    assert (changes, counts["QLinearConv"]) == ({}, 0)
    assert error < 1e-5


@pytest.mark.parametrize("heavy", [False, True])
def test_range_has_the_least_error(heavy):
    numbers = np.append(RNG.normal(size=10**5), 60) if heavy else RNG.uniform(-1, 3, 4000)
    scale, zero = range_of(numbers)

    def error(scale, zero):
        nearest = np.rint(numbers / scale).clip(-float(zero), 255 - float(zero)) * scale
        return np.square(nearest - numbers).mean()

    step = np.ptp(numbers) / 255
    extremes = error(step, np.rint(-numbers.min() / step))
    assert error(float(scale), zero) <= (0.95 if heavy else 1.01) * extremes


@pytest.mark.parametrize("numbers", [[0, 0], [2, 3], [-3, -2]])
def test_range_has_zero(numbers):
    scale, zero = range_of(np.array(numbers, "float64"))
    integers = np.rint(np.array(numbers) / scale) + float(zero)
    assert scale > 0
    assert np.all((integers >= 0) & (integers <= 255))
