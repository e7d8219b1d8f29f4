"""How ONNX files hold matrices of integers. The oracles multiply with restored floats."""

import collections
import itertools

import numpy as np
import pytest
from conformance import relative_error

ir = pytest.importorskip("onnx_ir")
ort = pytest.importorskip("onnxruntime")

from onnx_ir.passes import common as passes  # noqa: E402

from keras_small.runtimes import onnx_kernels  # noqa: E402
from keras_small.runtimes.onnx_conversion import content_of  # noqa: E402
from keras_small.storage.integer_groups import numbers_of_groups, quantize_groups  # noqa: E402
from keras_small.storage.stand_ins import StoredMatrix  # noqa: E402


@pytest.fixture(autouse=True)
def small_products_count(monkeypatch):
    monkeypatch.setattr(onnx_kernels, "_MINIMUM_BY_COLUMN", 1)
    monkeypatch.setattr(onnx_kernels, "_MINIMUM_BLOCKED", 1)


def stored(rows, columns, bits, group_size, axis=0, shape=None, order=(0, 1)):
    """Returns a matrix of integers in groups, and the floats that it stands for, in float64."""
    floats = np.random.default_rng(0).normal(0.3, 1, (rows, columns))
    groups = quantize_groups(floats, bits, group_size, axis)
    size = (rows, columns)[axis]
    numbers, scales, zeros = numbers_of_groups(groups, size, bits, axis)
    values = np.empty((rows, columns))
    for i, j in np.ndindex(rows, columns):
        group = (i // group_size, j) if axis == 0 else (i, j // group_size)
        code = float(groups.scales[group])
        scale = float(groups.largest) * 2 ** (-code / 16)
        values[i, j] = scale * (float(numbers[i, j]) - float(zeros[group]))
    shape = (rows, columns) if shape is None else shape
    return StoredMatrix(numbers, scales, zeros, bits, group_size, axis, shape, order), values


def run(matrix, nodes_of, inputs, exact=False):
    """Writes nodes that read a matrix, runs them, and returns the output and the operations."""
    kind = ir.DataType.INT32 if inputs.dtype == np.int32 else ir.DataType.FLOAT
    x = ir.Value(name="x", type=ir.TensorType(kind), shape=ir.Shape([None] * inputs.ndim))
    w = ir.Value(
        name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(list(matrix.shape))
    )
    nodes = nodes_of(x, w)
    output = nodes[-1].outputs[0]
    output.name, output.type = "y", ir.TensorType(ir.DataType.FLOAT)
    opsets = {"": 21, "com.microsoft": 1}
    graph = ir.Graph([x, w], [output], nodes=nodes, opset_imports=opsets, name="graph")
    rows = onnx_kernels.Inputs.FLOATS if exact else onnx_kernels.Inputs.BY_ROW
    rounds = onnx_kernels.MatrixWriter(graph, [w]).write(w, matrix, rows).rounds
    del graph.inputs[1:]
    graph.outputs[0].name = "y"
    graph.sort()
    model = ir.Model(graph, ir_version=10)
    passes.RemoveUnusedNodesPass()(model)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    counts = collections.Counter(node.op_type for node in graph)
    return session.run(None, {"x": inputs})[0], counts, rounds


def product(x, w):
    return [ir.node("MatMul", [x, w])]


@pytest.mark.parametrize(
    ("bits", "group_size", "rows", "operation"),
    [
        (2, 32, 96, "MatMulNBits"),
        (2, 16, 48, "MatMulNBits"),
        (3, 32, 50, "MatMulNBits"),  # the last group has 18 entries
        (4, 32, 96, "MatMulNBits"),
        (4, 48, 96, "MatMulNBits"),  # blocks of 16
        (4, 20, 60, "DynamicQuantizeMatMul"),  # rounded again
        (6, 64, 128, "MatMulNBits"),
        (8, 32, 96, "MatMulNBits"),
        (8, 1000, 96, "DynamicQuantizeMatMul"),
        (4, 1000, 96, "MatMulNBits"),
    ],
)
def test_products(bits, group_size, rows, operation):
    matrix, values = stored(rows, 24, bits, group_size)
    rng = np.random.default_rng(1)
    # Rows of different sizes: one scale for all would lose the small ones.
    inputs = (rng.normal(size=(3, rows)) * [[1], [100], [1e-3]]).astype("float32")
    expected = inputs.astype("float64") @ values
    output, counts, rounds = run(matrix, product, inputs)
    assert counts[operation] == 1
    assert rounds
    for row, others in zip(output, expected, strict=True):
        assert relative_error(row, others) < 0.02
    assert relative_error(output, expected) < 0.011
    output, counts, rounds = run(matrix, product, inputs, exact=True)
    assert counts["MatMulNBits"] == (bits <= 4 and operation == "MatMulNBits")
    assert not rounds
    assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize("group_size", [1000, 20])
def test_products_of_large_integers_do_not_overflow(group_size):
    signs = np.random.default_rng(0).choice([-1, 1], (100, 24))
    numbers = (128 + 127 * signs).astype("uint8")
    groups = -(-100 // group_size)
    scales = np.ones((groups, 24), "float32")
    matrix = StoredMatrix(numbers, scales, 128 * scales, 8, group_size, 0, (100, 24), (0, 1))
    inputs = np.random.default_rng(1).uniform(0.5, 1, (3, 100)).astype("float32")
    output, counts, _ = run(matrix, product, inputs)
    assert counts["DynamicQuantizeMatMul"] == 1
    assert relative_error(output, inputs @ (127.0 * signs)) < 0.011


def test_a_product_of_weights_is_formed_once():
    matrix, values = stored(96, 24, 8, 96)
    left, inputs = np.random.default_rng(1).normal(size=(2, 32, 96)).astype("float32")
    inputs = inputs[:3, :32]

    def merged(x, w):
        constant = ir.node("Constant", [], {"value": ir.tensor(left)})
        right = ir.node("MatMul", [constant.outputs[0], w])
        return [constant, right, ir.node("MatMul", [x, right.outputs[0]])]

    output, counts, rounds = run(matrix, merged, inputs)
    assert counts["MatMul"] == 2
    assert not rounds
    assert relative_error(output, inputs.astype("float64") @ left @ values) < 1e-5


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_sequences_multiply_with_8_bits(bits):
    matrix, values = stored(96, 24, bits, 32)
    inputs = np.random.default_rng(1).normal(size=(2, 3, 96)).astype("float32")
    expected = inputs.astype("float64") @ values
    output, counts, rounds = run(matrix, product, inputs)
    assert rounds
    assert (counts["DynamicQuantizeMatMul"], counts["QuantizeLinear"]) == (1, 1)
    assert relative_error(output, expected) < 0.015
    output, counts, rounds = run(matrix, product, inputs, exact=True)
    assert not rounds
    assert counts["QuantizeLinear"] == 0
    assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize("operation", ["DynamicQuantizeMatMul", "MatMulNBits"])
def test_small_products_stay_in_floats(operation, monkeypatch):
    monkeypatch.setattr(onnx_kernels, "_MINIMUM_BY_COLUMN", 2**17)
    monkeypatch.setattr(onnx_kernels, "_MINIMUM_BLOCKED", 2**18)
    group_size = 1000 if operation == "DynamicQuantizeMatMul" else 32
    matrix, values = stored(64, 24, 8, group_size)
    inputs = np.random.default_rng(1).normal(size=(3, 64)).astype("float32")
    output, counts, _ = run(matrix, product, inputs)
    assert not counts[operation]
    assert relative_error(output, inputs @ values) < 1e-6


@pytest.mark.parametrize(
    ("shape", "order", "rows"),
    [((64, 2, 12), (0, 1, 2), 64), ((12, 64, 2), (1, 2, 0), 128), ((8, 8, 24), (0, 1, 2), 64)],
)
def test_kernels_are_seen_through_what_moves_their_entries(shape, order, rows):
    columns = int(np.prod(shape)) // rows
    matrix, values = stored(rows, columns, 4, 32, shape=shape, order=order)
    inputs = np.random.default_rng(1).normal(size=(3, rows)).astype("float32")

    def nodes_of(x, w):
        sizes = ir.node("Constant", [], {"value": ir.tensor(np.array([rows, columns]))})
        moved = ir.node("Transpose", [w], {"perm": list(order)})
        matrix_of = ir.node("Reshape", [moved.outputs[0], sizes.outputs[0]])
        return [sizes, moved, matrix_of, ir.node("MatMul", [x, matrix_of.outputs[0]])]

    output, counts, _ = run(matrix, nodes_of, inputs, exact=True)
    assert counts["MatMulNBits"] == 1
    assert relative_error(output, inputs @ values) < 1e-5


@pytest.mark.parametrize(
    ("bits", "group_size", "columns"), [(4, 32, 96), (4, 16, 33), (8, 32, 50), (8, 100, 17)]
)
def test_lookups_and_products_share_a_table(bits, group_size, columns):
    table, values = stored(20, columns, bits, group_size, axis=1)
    ids = np.array([[0, 19, 7]], "int32")

    def lookup(x, w):
        return [ir.node("Gather", [w, x])]

    output, counts, rounds = run(table, lookup, ids)
    assert counts["GatherBlockQuantized"] == 1
    assert not rounds
    assert relative_error(output, values[ids]) < 1e-6

    def tied(x, w):
        rows = ir.node("Gather", [w, x])
        transposed = ir.node("Transpose", [w], {"perm": [1, 0]})
        return [rows, transposed, ir.node("MatMul", [rows.outputs[0], transposed.outputs[0]])]

    output, counts, _ = run(table, tied, ids)
    assert (counts["GatherBlockQuantized"], counts["MatMul"]) == (1, 0)
    assert counts["QuantizeLinear"] == 0  # else the file has the table twice
    assert relative_error(output, values[ids] @ values.T) < 0.012


@pytest.mark.parametrize(("bits", "axis"), list(itertools.product((2, 3, 4, 6, 8), (0, 1))))
def test_others_are_restored_when_a_file_is_loaded(bits, axis):
    kernel, values = stored(3 * 3 * 5, 7, bits, 16, axis, (7, 3, 3, 5), (1, 2, 3, 0))
    inputs = np.random.default_rng(1).normal(size=(2, 5, 6, 6)).astype("float32")

    def convolution(x, w):
        moved = ir.node("Transpose", [w], {"perm": [0, 3, 1, 2]})
        return [moved, ir.node("Conv", [x, moved.outputs[0]])]

    output, counts, rounds = run(kernel, convolution, inputs)
    assert counts["Conv"] == 1
    assert not rounds
    windows = np.lib.stride_tricks.sliding_window_view(inputs, (3, 3), axis=(2, 3))
    kernel_values = values.reshape(3, 3, 5, 7)
    expected = np.einsum("bcxyij,ijcf->bfxy", windows.astype("float64"), kernel_values)
    assert relative_error(output, expected) < 1e-6


@pytest.mark.parametrize(
    ("scales", "length"),
    [
        ([1, 1, 1, 1, 2, 2, 3, 3], 2),  # the first two groups share a scale
        ([1, 1, 1, 1, 2, 2], 4),  # the last block is not full
        ([1, 1, 1, 2, 2, 2, 3, 3, 3], 3),
        ([1, 1, 2, 2, 2, 3, 3], 1),
        ([5, 5, 5], 3),
    ],
)
def test_runs_divide_all_changes_of_scales(scales, length):
    scales = np.float32(scales)
    view = onnx_kernels._View(*(x[:, None] for x in (scales, scales, np.zeros_like(scales))))
    assert onnx_kernels._run_length(view, axis=0) == length


@pytest.mark.parametrize("states", ["none", "of weights", "of inputs"])
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_first_states_bound_what_a_recurrent_layer_computes(op, states):
    float32 = ir.TensorType(ir.DataType.FLOAT)
    x, w, first = (ir.Value(name=name, type=float32) for name in ("x", "w", "first"))
    state = {"none": None, "of weights": w, "of inputs": first}[states]
    node = ir.Node("", op, [x, w, w, None, None, state, state if op == "LSTM" else None])
    moved = ir.node("Identity", [node.outputs[0]])
    graph = ir.Graph([x, first, w], moved.outputs, nodes=[node, moved])
    writer = onnx_kernels.MatrixWriter(graph, [w])
    assert writer._is_bounded(moved.outputs[0]) == (states != "of inputs")
    assert not writer._is_bounded(x)


def test_constants_are_freed_once_they_are_written():
    numbers = np.arange(12, dtype="float32")
    weights = ir.Value(name="w", const_value=ir.tensor(numbers))
    weights.type, weights.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([12])
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([12]))
    node = ir.node("Add", [x, weights])
    output = node.outputs[0]
    output.name, output.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], [output], nodes=[node], initializers=[weights], name="graph")
    graph.opset_imports[""] = 21
    content = content_of(ir.Model(graph, ir_version=10))
    (result,) = ort.InferenceSession(content).run(None, {"x": numbers})
    np.testing.assert_array_equal(result, 2 * numbers)
    assert weights.const_value is None
