"""How ONNX files hold matrices of integers, so that ONNX Runtime computes with them.

The readers of a matrix and its number of entries decide upon its form:

| read by | entries | integers | form |
| --- | --- | --- | --- |
| `MatMul` | 2^16 | 8 bits, a column one group | `DynamicQuantizeMatMul` |
| `MatMul` of rows | 2^18 | up to 8 bits, in blocks | `MatMulNBits` |
| `MatMul` | 2^16 | others | `DynamicQuantizeMatMul` with 8 bits made of them on loading |
| `LSTM` | 2^16, of both kernels | any | `DynamicQuantizeLSTM`, likewise |
| `Conv` | any, with data | any | uint8 by channel, as `onnx_convolutions` says |
| `Gather` | any, rows of 16 and more | 4 or 8 bits | `GatherBlockQuantized` |
| others | any | up to 8 bits | integers that are restored when the file is loaded |

Smaller products are faster with floats. The first four round their inputs to 8 bits, by row or in
blocks, the first also all rows of a call with one scale, where data show that it is enough; those
by `MatMulNBits` of up to 4 bits can also be exact, and all others are. Integers of 3 bits are
stored as 4, those of 6 as 8. `DynamicQuantizeLSTM` has one scale for all rows and steps of a call,
so that it takes only inputs and first states that weights bound, as those from a table.
"""

import enum
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from keras_small.storage.integer_groups import pack
from keras_small.storage.stand_ins import StoredMatrix

# Sizes above which integer products win, by column and in blocks.
_MINIMUM_BY_COLUMN = 2**16
_MINIMUM_BLOCKED = 2**18
# The sizes of blocks. Larger ones are faster.
_BLOCK_SIZES = (128, 64, 32, 16)
_STORED_BITS = {3: 4, 6: 8}  # the bits in a file of integers of other bits
# Maximum entries of a matrix that takes fewer bytes as floats than as integers with operations.
_ONNX_MAXIMUM_FLOATS = 256
# Levels of accuracy of `MatMulNBits`, with exact and with rounded inputs. Exact products of more
# than 4 bits are slow.
_EXACT_INPUTS = 0
_ROUNDED_INPUTS = 4
AGAIN = "rounded again, to 8 bits with a scale for each unit"
# Operations whose outputs are bounded, those whose outputs their first states bound, and those that
# only move numbers, or choose among them.
_BOUNDED = ("ConstantOfShape", "Sigmoid", "Softmax", "Tanh")
_RECURRENT = ("LSTM", "DynamicQuantizeLSTM", "GRU")
_MOVING = (
    "Gather",
    "Identity",
    "Reshape",
    "ReverseSequence",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
_POSITIVE = ("Relu", "Sigmoid", "Softmax", "Softplus")
# The zero of integers that are made here. Those without a sign are right everywhere: processors
# without VNNI add two products with int8 in 16 bits, which overflow.
ZERO = np.uint8(128)
# A row whose largest number is smaller is divided by this.
_MINIMUM_ROW_SIZE = np.float32(1e-30)


class Inputs(enum.Enum):
    """How a product with integers rounds its inputs."""

    FLOATS = enum.auto()  # nothing: the product is exact
    BY_ROW = enum.auto()  # rounds them to 8 bits, each row with a scale of its own
    BY_CALL = enum.auto()  # rounds all rows of a call with one scale, which takes less time


class Held(NamedTuple):
    """How a file holds a matrix.

    Attributes:
        rounds: Whether a product with it rounds its inputs.
        change: The changed form of the integers, and why; empty if they are as stored.
    """

    rounds: bool
    change: str


class _Written(NamedTuple):
    """The output of an operation with integers, and whether these were rounded again."""

    value: ir.Value
    is_rounded_again: bool = False


class _View(NamedTuple):
    """A matrix as a node that reads it sees it: three arrays of one shape."""

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray

    def values(self) -> np.ndarray:
        """Returns the entries, float32."""
        values = self.numbers - self.zeros
        values *= self.scales
        return values

    def after(self, node: ir.Node) -> "_View | None":
        """Returns the view after a node, or `None` if the node does not only move entries."""
        shape = self.numbers.shape
        if node.op_type == "Identity":
            return self
        if node.op_type == "Transpose":
            axes = list(node.attributes["perm"].as_ints())
            return _View(*(x.transpose(axes) for x in self))
        if node.op_type not in ("Reshape", "Squeeze", "Unsqueeze") or len(node.inputs) < 2:
            return None
        operand = node.inputs[1]
        constant = None if operand is None else ir.convenience.get_const_tensor(operand)
        if constant is None:
            return None
        numbers = [int(n) for n in constant.numpy().ravel()]
        if node.op_type == "Reshape":
            sizes = [shape[n] if size == 0 else size for n, size in enumerate(numbers)]
            return _View(*(x.reshape(sizes) for x in self))
        change = np.squeeze if node.op_type == "Squeeze" else np.expand_dims
        return _View(*(change(x, tuple(numbers)) for x in self))


def _sources(value: ir.Value | None) -> set[ir.Value]:
    """Returns the values, but constants, that a value depends on and that nothing makes here."""
    seen = set()
    todo = [value]
    sources = set()
    while todo:
        value = todo.pop()
        if value is None or value in seen or value.is_initializer():
            continue
        seen.add(value)
        node = value.producer()
        if node is None or node.op_type in ("If", "Loop", "Scan"):
            sources.add(value)
        else:
            todo += node.inputs
    return sources


def uses_of(value: ir.Value, matrix: StoredMatrix) -> Iterator[tuple[Any, int, _View]]:
    """Yields each node that reads a matrix, the position of that input, and its view."""
    arrays = (matrix.numbers, matrix.scales, matrix.zeros)
    return _uses(value, _View(*map(matrix.arranged, arrays)))


def _uses(value: ir.Value, view: _View) -> Iterator[tuple[Any, int, _View]]:
    for node, position in list(value.uses()):
        view_of_output = view.after(node) if position == 0 else None
        if view_of_output is None or node.outputs[0].is_graph_output():
            yield node, position, view
        else:
            yield from _uses(node.outputs[0], view_of_output)


class MatrixWriter:
    """Writes the matrices of a graph.

    Args:
        graph: The graph. Graphs inside it may read its matrices.
        weights: The inputs of the graph that stand for weights.
    """

    def __init__(self, graph: ir.Graph, weights: Sequence[ir.Value] = ()) -> None:
        self.graph = graph
        self._weights = set(weights)
        # Inputs divided by the largest number of each row, and these numbers, made once.
        self._rows: dict[tuple[Any, Any], tuple[ir.Value, ir.Value]] = {}

    def write(self, value: ir.Value, matrix: StoredMatrix, inputs: Inputs = Inputs.BY_ROW) -> Held:
        """Replaces the tensor that stands for a matrix by its integers.

        Args:
            value: The tensor.
            matrix: The matrix.
            inputs: How its products may round their inputs.
        """
        rounds = is_rounded_again = False
        reason = ""
        for node, position, view in uses_of(value, matrix):
            new: _Written | str
            if node.op_type == "MatMul" and position == 1:
                new = self._product(node, view, matrix, inputs)
                rounds |= inputs is not Inputs.FLOATS and not isinstance(new, str)
            elif node.op_type == "Gather" and position == 0:
                new = self._lookup(node, view, matrix.bits)
            else:
                new = f"{node.op_type}, which reads it, takes floats"
            if isinstance(new, str):
                reason = new
                continue
            is_rounded_again |= new.is_rounded_again
            output = node.outputs[0]
            new.value.type = output.type
            new.value.shape = output.shape
            output.replace_all_uses_with(new.value, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
        change = f"floats: {reason}" if reason else AGAIN if is_rounded_again else ""
        if change and value.uses():
            value.replace_all_uses_with(self._restore(matrix))
        return Held(rounds, change)

    def constant(self, array: np.ndarray) -> ir.Value:
        """Adds a constant to the graph."""
        return self._initializer(ir.tensor(np.asarray(array, order="C")))

    def _initializer(self, tensor: Any) -> ir.Value:
        value = ir.Value(name=f"matrix_{len(self.graph.initializers)}", const_value=tensor)
        value.shape = ir.Shape(tensor.shape)
        value.type = ir.TensorType(tensor.dtype)
        self.graph.register_initializer(value)
        return value

    def add(self, before: Any, op: str, *inputs: Any, **attributes: Any) -> Any:
        domain = attributes.pop("domain", "")
        node = ir.node(op, inputs, attributes, domain=domain)
        before.graph.insert_before(before, node)
        return node.outputs[0]

    def _is_of_weights(self, value: ir.Value | None) -> bool:
        """Whether a value depends on weights alone."""
        return _sources(value) <= self._weights

    def write_recurrent(self, names: Mapping[ir.Value, str], exact: Collection[str]) -> set[str]:
        """Lets LSTMs compute with 8 bits, to which the runtime rounds their kernels on loading.

        Returns the names of the matrices whose LSTMs are written so.
        """
        rounding: set[str] = set()
        nodes: list[Any] = [x for x in self.graph.all_nodes() if x.op_type == "LSTM"]
        for node in nodes:
            kernels = {names[x] for x in _sources(node.inputs[1]) & names.keys()}
            if not kernels or not kernels.isdisjoint(exact):
                continue
            is_large = sum(math.prod(x.shape) for x in node.inputs[1:3]) >= _MINIMUM_BY_COLUMN
            # Sequences are rounded, and states, which are bounded after the first.
            rounded = (node.inputs[0], *node.inputs[5:6])
            if not is_large or not all(map(self._is_bounded, rounded)):
                continue
            inputs = list(node.inputs)
            while len(inputs) < 8:
                inputs.append(None)
            for position in (1, 2):
                numbers, scales, zeros = self._by_unit(node, node.inputs[position])
                inputs[position] = numbers
                inputs += [scales, zeros]
            options = list(node.attributes.values())
            new = ir.Node("com.microsoft", "DynamicQuantizeLSTM", inputs, options, num_outputs=3)
            node.graph.insert_before(node, new)
            for old, output in zip(node.outputs, new.outputs, strict=False):
                output.type = old.type
                output.shape = old.shape
                old.replace_all_uses_with(output, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)
            rounding |= kernels
        return rounding

    def _is_bounded(self, value: Any) -> bool:
        """Whether weights bound the numbers of a tensor, whatever the inputs of the graph are."""
        if value is None or self._is_of_weights(value):
            return True
        maker = value.producer()
        if maker is None:
            return False
        op = maker.op_type
        inputs = maker.inputs
        if op in _RECURRENT:
            return all(map(self._is_bounded, inputs[5:7]))
        if op in _MOVING:
            return self._is_bounded(inputs[0])
        if op == "MatMul":
            return self._is_of_weights(inputs[1]) and self._is_bounded(inputs[0])
        return op in _BOUNDED or (op in ("Add", "Concat") and all(map(self._is_bounded, inputs)))

    def _by_unit(self, node: Any, kernel: Any) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Returns 8 bits `(1, I, 4 H)` of a kernel `(1, 4 H, I)`, with scales and zeros."""
        sizes = self.add(node, "Abs", kernel)
        sizes = self.add(node, "ReduceMax", sizes, self.constant(np.array([2])), keepdims=0)
        scales = self.add(node, "Max", sizes, self.constant(_MINIMUM_ROW_SIZE))
        scales = self.add(node, "Div", scales, self.constant(np.float32(127)))
        zeros = np.full(kernel.shape[:2], ZERO)
        columns = self.add(node, "Transpose", kernel, perm=[0, 2, 1])
        vector = self.add(node, "Squeeze", scales, self.constant(np.array([0])))
        numbers = self.add(node, "QuantizeLinear", columns, vector, self.constant(zeros[0]), axis=2)
        return numbers, scales, self.constant(zeros)

    def _product(
        self, node: Any, view: _View, matrix: StoredMatrix, inputs: Inputs
    ) -> _Written | str:
        """Writes `x W` with integers, or returns why not."""
        rounds_inputs = inputs is not Inputs.FLOATS
        if self._is_of_weights(node.inputs[0]):
            return "a product of weights, which the runtime forms once"
        if view.numbers.ndim != 2:
            return "it has more than two axes where it is read"
        rows, columns = view.numbers.shape
        bits = matrix.bits
        run = _run_length(view, axis=0)
        if rounds_inputs and rows * columns >= _MINIMUM_BY_COLUMN:
            if bits == 8 and run == rows:
                numbers, zeros = map(self.constant, (view.numbers, view.zeros[0].astype("uint8")))
                return _Written(self._by_column(node, numbers, view.scales[0], zeros, inputs))
            is_slow = rows * columns < _MINIMUM_BLOCKED or _block(run, rows) is None
            if (
                is_slow or _are_steps(node.inputs[0])
            ) and matrix.axis == 0:  # the integers of a table are those of its lookups
                value = self._rounded_again(node, view, bits, inputs)
                return _Written(value, is_rounded_again=True)
        block = _block(run, rows)
        if rows * columns < _MINIMUM_BLOCKED:
            return f"faster below {_MINIMUM_BLOCKED:,} weights"
        if block is None or (bits > 4 and not rounds_inputs):
            return f"groups of {run}" if block is None else "the error would exceed its bound"
        stored = _STORED_BITS.get(bits, bits)
        if bits == 2 and (block < 32 or not rounds_inputs):
            stored = 4  # with 2 bits the runtime has fast kernels for these blocks only
        padded = np.pad(view.numbers, ((0, -rows % block), (0, 0)))
        packed = pack(padded, stored).T
        shape = (columns, -1, block * stored // 8)
        if matrix.axis == 1:  # a table, which a lookup reads as it is
            numbers = self._reshape(self.constant(packed), shape)
        else:
            numbers = self.constant(packed.reshape(shape))
        product = self.add(
            node,
            "MatMulNBits",
            node.inputs[0],
            numbers,
            self.constant(view.scales[::block].T),
            self.constant(pack(view.zeros[::block], stored).T),
            domain="com.microsoft",
            K=rows,
            N=columns,
            bits=stored,
            block_size=block,
            accuracy_level=_ROUNDED_INPUTS if rounds_inputs else _EXACT_INPUTS,
        )
        return _Written(product)

    def _rounded_again(self, node: Any, view: _View, bits: int, inputs: Inputs) -> ir.Value:
        """Writes `x W` with 8 bits, to which the runtime rounds integers when it loads the file.

        The runtime keeps the output of each operation until all is loaded, so that there are few.
        """
        scales = np.maximum(np.abs(view.values()).max(axis=0), _MINIMUM_ROW_SIZE).astype(
            "float32"
        ) / np.float32(127)
        rows, columns = view.numbers.shape
        run = _run_length(view, axis=0)
        zeros = self.constant(np.full(columns, ZERO))
        if rows % run:
            operands = (node.inputs[1], self.constant(scales), zeros)
            numbers = self.add(node, "QuantizeLinear", *operands, axis=1)
            return self._by_column(node, numbers, scales, zeros, inputs)
        groups = _View(*(array.reshape(-1, run, columns) for array in view))
        kind = ml_dtypes.uint4 if bits <= 4 else np.uint8
        centered = self.first(
            "Sub",
            *(
                self.first("Cast", self.constant(array.astype(kind)), to=ir.DataType.FLOAT)
                for array in (groups.numbers, groups.zeros[:, :1])
            ),
        )
        steps = self.first("Div", self.constant(scales), self._scales(groups.scales[:, :1]))
        shape = self.constant(np.array([rows // run, 1, columns]))
        zero = self.first("Expand", self.constant(ZERO), shape)
        numbers = self.first("QuantizeLinear", centered, steps, zero, axis=1, block_size=run)
        numbers = self._reshape(numbers, (rows, columns))
        return self._by_column(node, numbers, scales, zeros, inputs)

    def _by_column(
        self,
        node: Any,
        numbers: ir.Value,
        scales: np.ndarray,
        zeros: ir.Value,
        inputs: Inputs,
    ) -> ir.Value:
        x = node.inputs[0]
        key = (x, node.graph)
        parts = (numbers, self.constant(scales), zeros)
        if inputs is Inputs.BY_CALL:
            return self.add(node, "DynamicQuantizeMatMul", x, *parts, domain="com.microsoft")
        if key not in self._rows:
            # One scale for all inputs is coarse. The largest number of each row becomes 1.
            producer = x.producer()
            axis = self.constant(np.array([-1]))
            positive = producer is not None and producer.op_type in _POSITIVE
            sizes = x if positive else self.add(node, "Abs", x)
            size = self.add(node, "ReduceMax", sizes, axis, keepdims=1)
            size = self.add(node, "Max", size, self.constant(_MINIMUM_ROW_SIZE))
            inverse = self.add(node, "Reciprocal", size)
            self._rows[key] = (self.add(node, "Mul", x, inverse), size)
        rows, size = self._rows[key]
        product = self.add(node, "DynamicQuantizeMatMul", rows, *parts, domain="com.microsoft")
        return self.add(node, "Mul", product, size)

    def _lookup(self, node: Any, view: _View, bits: int) -> _Written | str:
        """Writes a lookup of rows of integers, or returns why there is no operation for it."""
        axis = node.attributes.get_int("axis", 0)
        if view.numbers.ndim != 2 or axis != 0 or bits not in (4, 8):
            return f"no lookup of {bits} bits"
        block = _block(_run_length(view, axis=1), view.numbers.shape[1])
        if block is None:
            return f"no lookup in groups of {_run_length(view, axis=1)}"
        scales, zeros = (x[:, ::block] for x in view[1:])
        rows = self.add(
            node,
            "GatherBlockQuantized",
            self.constant(pack(view.numbers.T, bits).T),
            node.inputs[1],
            self.constant(scales),
            self.constant(pack(zeros.T, bits).T),
            domain="com.microsoft",
            gather_axis=0,
            quantize_axis=1,
            block_size=block,
            bits=bits,
        )
        width = view.numbers.shape[1]
        if width % (8 // bits) == 0:
            return _Written(rows)
        ends = [self.constant(np.array([n])) for n in (0, width, -1)]
        return _Written(self.add(node, "Slice", rows, *ends))

    def _restore(self, matrix: StoredMatrix) -> ir.Value:
        """Returns a matrix that the runtime restores when it loads the file."""
        if matrix.numbers.size <= _ONNX_MAXIMUM_FLOATS:
            return self.constant(matrix.values())
        padded = matrix.padded()
        kind = ml_dtypes.uint4 if matrix.bits <= 4 else np.uint8
        numbers, zeros = (
            self.first("Cast", self.constant(array.astype(kind)), to=ir.DataType.FLOAT)
            for array in (padded.grouped(padded.numbers), padded.grouped(padded.zeros))
        )
        values = self.first("Sub", numbers, zeros)
        values = self.first("Mul", values, self._scales(padded.grouped(padded.scales)))
        if padded.numbers.shape != matrix.numbers.shape:
            values = self._reshape(values, padded.numbers.shape)
            ends = (0, matrix.numbers.shape[matrix.axis], matrix.axis)
            values = self.first("Slice", values, *(self.constant(np.array([n])) for n in ends))
        values = self._reshape(values, [matrix.shape[n] for n in matrix.order])
        order = [int(n) for n in np.argsort(matrix.order)]
        return self.first("Transpose", values, perm=order) if order != sorted(order) else values

    def _reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        return self.first("Reshape", value, self.constant(np.array(shape)))

    def first(self, op: str, *inputs: Any, **attributes: Any) -> Any:
        """Adds a node that depends on constants alone; the graph is sorted in the end."""
        return self.add(self.graph[0], op, *inputs, **attributes)

    def _scales(self, scales: np.ndarray) -> ir.Value:
        """Returns scales, of which few differ, by one byte each."""
        different, codes = np.unique(scales, return_inverse=True)
        if len(different) > 256 or 4 * len(different) + scales.size > 3 * scales.size:
            return self.constant(scales)
        bytes_of = self.constant(codes.reshape(scales.shape).astype("uint8"))
        indices = self.first("Cast", bytes_of, to=ir.DataType.INT32)
        return self.first("Gather", self.constant(different), indices)


def _are_steps(value: Any) -> bool:
    """Whether rows are, or may be, the steps of sequences, of which there are many."""
    while value.shape is not None and len(value.shape) <= 2:
        maker = value.producer()
        if maker is None or not maker.inputs:
            return False
        shape = maker.inputs[0].shape
        if shape is not None and len(shape) > 2:  # else it can be a mean over steps
            return maker.op_type == "Reshape" and shape[-1] == value.shape[-1]
        value = maker.inputs[0]
    return True


def _run_length(view: _View, axis: int) -> int:
    """Returns the largest length of equal runs along an axis that each share a scale and a zero."""
    changes = np.zeros(view.numbers.shape[axis] - 1, bool)
    for array in view[1:]:
        if array.strides[axis] == 0:  # one number for all
            continue
        entries = np.moveaxis(array, axis, 0)
        changes |= (entries[1:] != entries[:-1]).any(axis=1)
    starts = 1 + np.flatnonzero(changes)
    return math.gcd(*starts) or len(changes) + 1


def _block(run: int, size: int) -> int | None:
    """Returns a size of blocks in which scales and zeros are the same, or `None`."""
    sizes = [block for block in _BLOCK_SIZES if run % block == 0 or run == size]
    # OpenVINO reads files with whole blocks only.
    return max(sizes, key=lambda block: (size % block == 0, block), default=None)
