"""Recurrent layers of files: one operation each where it computes the same, else a loop."""

import collections
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")
import onnx
from ai_edge_litert import schema_py_generated as schema
from conformance import assert_same_arrays, relative_error, to_numpy
from exported_files import run
from slow_cases import slow_but

from keras_small import export
from keras_small.runtimes.exporting import write_file
from keras_small.storage.low_rank_cells import LOW_RANK_CELLS
from keras_small.storage.quantized import quantized_layer
from keras_small.storage.recurrent import on_other_cells

layers = keras.layers
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 50, (5, 9)).astype("int32")
# Padding on the right, in the middle, on the left, and everywhere.
IDS[0, 3:] = IDS[1, 2:5] = IDS[2, :4] = IDS[3] = 0
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


def of_integers(layer):
    layer.build((None, None, 12))
    return on_other_cells(layer, lambda cell: quantized_layer(cell, 4))


STATES = ["ids and states", "ids and states of another"]
SLOW = [
    (lambda: layers.LSTM(16, return_sequences=True, return_state=True), False, {"LSTM": 1}),
    (lambda: layers.GRU(16, return_sequences=True, go_backwards=True), True, {"GRU": 1}),
    (lambda: layers.GRU(16, reset_after=False), False, {"Loop": 1}),
    (lambda: of_integers(layers.GRU(16)), True, {"GRU": 1}),
    (lambda: layers.SimpleRNN(8, return_sequences=True), True, {"Loop": 1}),
]


@pytest.mark.parametrize(
    ("layer", "masks", "operations"),
    [
        (lambda: layers.LSTM(16, use_bias=False), True, {"LSTM": 1}),
        (lambda: layers.LSTM(16, return_state=True), True, {"Loop": 1}),
        (lambda: of_integers(layers.LSTM(16)), False, {"LSTM": 1}),
        (lambda: layers.GRU(16, return_state=True, use_bias=False), False, {"GRU": 1}),
        (lambda: layers.Bidirectional(layers.GRU(16, return_sequences=True)), True, {"GRU": 2}),
        (lambda: layers.RNN([layers.LSTMCell(8), layers.GRUCell(6)]), False, {"Loop": 1}),
        *slow_but((), SLOW),
    ],
)
def test_loops_are_one_operation_or_take_any_number_of_rows(layer, masks, operations, tmp_path):
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer()(layers.Embedding(50, 12, mask_zero=masks)(ids)))
    for weight in model.weights:
        weight.assign(weight + 0.1 * RNG.normal(size=weight.shape))
    path = str(export(model, tmp_path / "model.onnx", IDS))
    counts = collections.Counter(node.op_type for node in onnx.load(path).graph.node)
    assert {name: counts[name] for name in ("LSTM", "GRU", "Loop") if counts[name]} == operations
    small = str(export(model, tmp_path / "model.tflite", IDS))
    file = schema.ModelT.InitFromPackedBuf(Path(small).read_bytes(), 0)
    types = [x.type for graph in file.subgraphs[1:] for x in graph.tensors]
    is_of_integers = type(getattr(model.layers[-1], "cell", None)).__name__.startswith("Quantized")
    assert types.count(schema.TensorType.INT8) == 2 * is_of_integers
    for example in (IDS, np.tile(IDS[:, :7], (2, 1))):
        expected = keras.tree.flatten(model(example))
        for outputs, bound in (
            (run(path, example), 1e-5),
            (run(small, example), 0.02 if is_of_integers else 1e-5),
        ):
            assert_same_arrays(outputs, to_numpy(expected), atol=bound)


@pytest.mark.parametrize(
    ("ranks", "units", "inputs_are"),
    [
        ((), 112, "ids"),
        ((), 48, "ids"),
        ((), 112, "numbers"),
        *slow_but((), [((8, 12), 112, "ids"), *(((), 112, x) for x in STATES)]),
    ],
)
def test_large_lstms_of_integers_multiply_with_integers(ranks, units, inputs_are, tmp_path):
    """Those of 66,304 entries do, unless any numbers can reach them, and one of 16,128 does not."""
    if inputs_are == "numbers":
        inputs, example = [keras.Input((None, 36))], [RNG.normal(size=(5, 9, 36)).astype("float32")]
    else:
        inputs, example = [keras.Input((None,), dtype="int32")], [IDS]
    layer = layers.LSTM(units, return_sequences=True, return_state=True)
    layer.build((None, None, 36))
    if ranks:
        layer = on_other_cells(layer, lambda x: LOW_RANK_CELLS[type(x)].from_cell(x, ranks))
    layer = on_other_cells(layer, lambda cell: quantized_layer(cell, 8))
    sequences = inputs[0] if inputs_are == "numbers" else layers.Embedding(50, 36)(inputs[0])
    states = None
    if inputs_are == "ids and states":
        states = [keras.Input((units,), name=name) for name in ("hidden", "memory")]
        inputs, example = [*inputs, *states], [*example, *np.ones((2, 5, units), "float32")]
    elif inputs_are == "ids and states of another":
        states = layers.LSTM(units, return_state=True)(sequences)[1:]
    model = keras.Model(inputs, layer(sequences, initial_state=states))
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * RNG.normal(size=weight.shape))
    does = units == 112 and inputs_are in ("ids", "ids and states of another")

    def error_within(max_error):
        path = str(tmp_path / f"{max_error}.onnx")
        write_file(model, path, example, max_error=max_error, data=[example])
        kinds = {node.op_type for node in onnx.load(path).graph.node}
        assert ("DynamicQuantizeLSTM" in kinds) == (does and max_error > 0.01)
        pairs = zip(run(path, example), map(to_numpy, model(example)), strict=True)
        return max(relative_error(outputs, array) for outputs, array in pairs)

    assert error_within(0.0) < 1e-5
    assert 1e-4 * does <= error_within(0.05) < 0.05
    assert error_within(1e-4) <= 1e-4


def test_openvino_has_a_loop_where_kernels_are_products_of_integers(tmp_path):
    pytest.importorskip("openvino")
    layer = layers.LSTM(16)
    layer.build((None, None, 36))
    layer = on_other_cells(layer, lambda cell: LOW_RANK_CELLS[type(cell)].from_cell(cell, (4, 8)))
    layer = on_other_cells(layer, lambda cell: quantized_layer(cell, 8))
    x = RNG.normal(size=(5, 9, 36)).astype("float32")
    model = keras.Sequential([keras.Input((None, 36)), layer])
    path = export(model, tmp_path / "model.xml", x)
    assert relative_error(run(path, x)[0], to_numpy(model(x))) < 1e-5
    assert "LSTMSequence" not in path.read_text()


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_the_last_states_of_a_layer_can_be_the_first_of_another(kind, tmp_path):
    first, second = (keras.Input((None, 12), name=name) for name in "ab")
    _, *states = kind(16, return_state=True)(first)
    model = keras.Model([first, second], kind(16)(second, initial_state=states))
    inputs = [RNG.normal(size=(3, n, 12)).astype("float32") for n in (7, 4)]
    path = str(export(model, tmp_path / "model.onnx", inputs))
    (outputs,) = run(path, inputs)
    np.testing.assert_allclose(outputs, to_numpy(model(inputs)), atol=1e-5)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_rows_can_share_a_first_state(kind, tmp_path):
    inputs = keras.Input((None, 12))
    state = layers.Embedding(1, 16)(keras.ops.zeros((1,), "int32"))
    states = [state] * (2 if kind is layers.LSTM else 1)
    model = keras.Model(inputs, kind(16)(inputs, initial_state=states))
    x = RNG.normal(size=(3, 5, 12)).astype("float32")
    (outputs,) = run(export(model, tmp_path / "model.onnx", x), x)
    np.testing.assert_allclose(outputs, to_numpy(model(x)), atol=1e-5)


def test_an_optimization_of_the_converter_that_fails_is_left_out(monkeypatch, tmp_path):
    from tf2onnx.optimizer import IdentityOptimizer

    failures = []

    def fail(*_):
        failures.append(None)
        raise KeyError

    monkeypatch.setattr(IdentityOptimizer, "optimize", fail)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    export(model, tmp_path / "model.onnx")
    assert len(failures) > 1
