"""Integers with which LiteRT multiplies: their form in files, and errors."""

import keras
import numpy as np
import pytest
from conformance import relative_error
from exported_files import run
from slow_cases import slow_but

pytest.importorskip("ai_edge_litert")
from ai_edge_litert import schema_py_generated as schema

from keras_small import compress, export
from keras_small.runtimes.litert_kernels import change_of, filter_of
from keras_small.storage.quantized import quantized_layer
from keras_small.storage.stand_ins import stored_matrices
from keras_small.survey.graph_names import flat_layers

layers = keras.layers
TYPES = schema.TensorType
NAMES = {TYPES.FLOAT32: "float", TYPES.INT8: "int8", TYPES.INT4: "int4"}
RNG = np.random.default_rng(0)
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


def filters_of(path):
    """Returns the kinds of the filters of products, and whether their scales are of blocks."""
    file = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    operators, main = schema.BuiltinOperator, file.subgraphs[0]
    kinds = []
    for operator in main.operators:
        code = file.operatorCodes[operator.opcodeIndex].builtinCode
        if code in (operators.FULLY_CONNECTED, operators.CONV_2D):
            tensor = main.tensors[operator.inputs[1]]
            form = tensor.quantization
            kinds.append((NAMES[tensor.type], form is not None and form.details is not None))
    return kinds


def dense(bits, group=32, symmetric=True):
    parts = [layers.Dense(96, activation="relu"), layers.Dense(40)]
    model = keras.Sequential([keras.Input((64,)), *parts])
    new = [quantized_layer(x, bits, group, symmetric=symmetric) for x in model.layers]
    for layer in new:
        layer.bias.assign(RNG.normal(size=layer.bias.shape))
    return keras.Sequential([keras.Input((64,)), *new])


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (lambda: dense(8, 96), ("int8", False)),
        (lambda: dense(8, symmetric=False), ("int8", False)),
        (lambda: dense(6, symmetric=False), ("int8", False)),
        (lambda: dense(4), ("int4", True)),
        (lambda: dense(4, 96), ("int4", False)),
        (lambda: dense(2), ("int4", True)),
        (lambda: dense(4, symmetric=False), ("int8", False)),
        (lambda: dense(4, 48), ("int8", False)),  # blocks of another size
    ],
)
def test_products_read_integers(model, kind, tmp_path):
    model = model()
    path = export(model, tmp_path / "model.tflite")
    assert filters_of(path) == [kind] * 2
    x = RNG.normal(size=(7, 64)).astype("float32")
    (got,) = run(path, x)
    assert relative_error(got, model.predict(x, verbose=0)) < 0.015


def test_convolutions_with_folded_normalizations_and_attention(tmp_path):
    image = keras.Input((12, 12, 8))
    conv = layers.Conv2D(64, 3, use_bias=False)  # with a bias that half floats could stand for
    conv.build(image.shape)
    normalization = layers.BatchNormalization()
    x = layers.ReLU()(normalization(quantized_layer(conv, 8)(image)))
    x = layers.Reshape((100, 64))(x)
    project = layers.EinsumDense("bld,dhk->blhk", (None, 2, 16))
    project.build(x.shape)
    model = keras.Model(image, quantized_layer(project, 8)(x))
    for weight in normalization.weights:
        sign = 1 if "variance" in weight.name else RNG.choice([-1, 1], weight.shape)
        weight.assign(sign * RNG.uniform(0.5, 2, weight.shape))
    path = export(model, tmp_path / "model.tflite")
    assert filters_of(path) == [("int8", False)] * 2
    example = RNG.normal(size=(3, 12, 12, 8)).astype("float32")
    (got,) = run(path, example)
    assert relative_error(got, model.predict(example, verbose=0)) < 0.015


def test_layers_are_restored_until_the_error_is_within_its_bound(tmp_path):
    model = dense(8, 96)
    x = RNG.normal(size=(4, 64)).astype("float32")
    expected, bound = model.predict(x, verbose=0), 1.0
    for count in (2, 1, 0):  # those of products with restored matrices are no constants
        path = export(model, tmp_path / f"{count}.tflite", x, max_error=bound)
        assert len(filters_of(path)) == count
        error = relative_error(run(path, x)[0], expected)
        assert error <= bound
        bound = 0.9 * error
    assert error < 1e-5
    path = export(model, tmp_path / "exact.tflite", x, max_error=0)
    assert not filters_of(path)


class Growing(layers.Layer):
    """Multiplies by a number that grows with each call."""

    number = 1.0

    def call(self, inputs):
        Growing.number *= 1.001
        return inputs * Growing.number


def test_a_file_must_compute_the_same_but_for_its_integers(tmp_path):
    model = keras.Sequential([keras.Input((64,)), *dense(8, 96).layers, Growing()])
    with pytest.raises(RuntimeError, match="something else"):
        export(model, tmp_path / "model.tflite")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_integers_without_zeros_stay_as_they_are(bits):
    layer = layers.Dense(24)
    layer.build((None, 64))
    small = quantized_layer(layer, bits, 64, symmetric=True)
    matrix = stored_matrices(small)["kernel"]
    assert (matrix.zeros == 2 ** (bits - 1)).all()
    form = filter_of(matrix)
    floats = keras.ops.convert_to_numpy(small.kernel).T
    factors = np.linspace(-2, 3, 24, dtype="float32")
    np.testing.assert_allclose(form.factors(floats * factors[:, None]), factors, rtol=1e-5)
    for other in (floats[::-1], np.concatenate([floats[:1], floats[:0:-1]]), floats.T):
        assert form.factors(other) is None
    assert form.error < 1e-6
    np.testing.assert_array_equal(form.numbers.T, matrix.numbers - matrix.zeros[:1])


@pytest.mark.parametrize("bits", slow_but([4], [8, 4]))
def test_compress_rounds_for_litert(bits, tmp_path):
    loop = [layers.Reshape((8, 32)), layers.LSTM(64)]
    parts = [layers.Dense(256, activation="relu"), *loop, layers.Dense(64)]
    model = keras.Sequential([keras.Input((256,)), *parts])
    data = RNG.normal(size=(64, 256)).astype("float32")
    small = compress(model, bits=bits, data=data, for_runtime="litert", verbose=0).model
    path = export(small, tmp_path / "model.tflite", data)
    assert filters_of(path) == [("int4", True) if bits == 4 else ("int8", False)] * 2
    matrices = [matrix for x in flat_layers(small) for matrix in stored_matrices(x).values()]
    assert len(matrices) == 4
    assert not change_of({str(n): matrix for n, matrix in enumerate(matrices)})
    (got,) = run(path, data)
    assert relative_error(got, small.predict(data, verbose=0)) < 0.015


def test_kernels_that_keras_quantized_keep_their_bytes(tmp_path):
    model = keras.Sequential([keras.Input((256,)), layers.Dense(512), layers.Dense(256)])
    model.quantize("int8")
    path = export(model, tmp_path / "model.tflite")
    assert path.stat().st_size < model.count_params() + 10_000
