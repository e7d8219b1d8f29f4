"""Writes LiteRT files whose constants have as few bytes as the weights they stand for.

TensorFlow's converter writes the operations. Filters of integers take the place of the floats that
stand for them. The stored weights, which were inputs for it, become constants; other constants of
floats become half floats if these are the same, with an operation `DEQUANTIZE`, which the runtime
executes once.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_small.runtimes.computation import Computation, Expected, minimum_exact
from keras_small.runtimes.litert_kernels import Filter, change_of, content_key, filter_of
from keras_small.runtimes.recurrent import loops_without_lists
from keras_small.runtimes.tracing import Traced, as_function, quiet, with_constants
from keras_small.storage.stand_ins import StoredMatrix

# The dtypes that LiteRT has no kernels for, and those that take their place.
WIDENED = {"float16": "float32", "uint16": "int32", "uint32": "int32", "bool": "bool"}
# Minimum bytes of a constant to narrow: the description of a smaller one takes about as many.
_LITERT_MINIMUM_BYTES = 256
_GRAPH_BYTES = 2**20  # about those of a file beside its constants
ZERO = "zero"  # an input of the converted graph, so that the converter does not know its value
_AFTER_PRODUCTS = ("Add", "AddV2", "BiasAdd", "Relu", "Relu6", "Maximum", "Minimum")


def stored_bytes(array: np.ndarray) -> int:
    """Returns how many bytes a file has for a constant.

    Example:
        >>> stored_bytes(np.ones((100, 30), "float32"))
        6000
    """
    return array.nbytes if array.nbytes < _LITERT_MINIMUM_BYTES else _narrowest(array).nbytes


def _narrowest(array: np.ndarray) -> np.ndarray:
    """Returns an array of the same numbers in fewer bytes: small integers, or half floats."""
    if array.dtype == np.int32 and array.min(initial=0) >= 0:
        return array.astype(np.min_scalar_type(int(array.max(initial=0))))
    if array.dtype != np.float32:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        half = array.astype("float16")
    return half if np.array_equal(half.astype("float32"), array) else array


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a computation, whose exact form is checked.

    Layers restore their matrices, those with the largest errors first, until the error of the
    others is within its bound.

    Args:
        wanted: The computation of the file.
        path: The file.
        max_error: The relative error of the outputs that products with integers may cause.

    Returns:
        The changed forms of matrices of integers in the file, and why, by their names.
    """
    restored: dict[int, str] = {}
    while True:
        graph, examples = _traced(wanted, restored, max_error)
        converted = LitertGraph(graph)
        file = converted.file()
        if file.unread:
            reason = "floats: what reads it multiplies with floats only"
            restored |= dict.fromkeys(_keys(graph, file.unread), reason)
            continue
        expected = Expected(wanted.function, examples)
        exact = converted.file(exact=graph.matrices)
        expected.check(expected.outputs_of_file(exact.content, ".tflite"))

        def error_of(
            exact: Collection[str],
            converted: LitertGraph = converted,
            expected: Expected = expected,
        ) -> float:
            content = converted.file(exact).content
            return expected.error(expected.outputs_of_file(content, ".tflite"))

        spoiling = minimum_exact(list(graph.matrices), error_of, max_error)
        if not spoiling:
            path.write_bytes(file.content)
            return graph.restored | change_of(graph.matrices, graph.matrix_names)
        reason = "floats: the error would exceed its bound"
        restored |= dict.fromkeys(_keys(graph, spoiling), reason)


def _keys(graph: Traced, names: Collection[str]) -> set[int]:
    return {content_key(graph.matrices[name]) for name in names}


def _traced(
    wanted: Computation, restored: Mapping[int, str], max_error: float
) -> tuple[Traced, Sequence[Any]]:
    """Returns a graph, and the examples for its file.

    Args:
        wanted: The computation of the graph.
        restored: Why matrices are restored, by what they contain.
        max_error: The bound of the error; with 0 all matrices are restored.
    """

    def why_not_held(matrix: StoredMatrix) -> str:
        if max_error == 0:
            return "floats: no error is allowed"
        if filter_of(matrix) is None:
            return "floats: a table, of which each call restores rows"
        return restored.get(content_key(matrix), "")

    with loops_without_lists(wanted.model):
        graph = wanted.trace(why_not_held, stored_bytes, WIDENED)
    if not graph.has_lists:
        return graph, wanted.examples
    # LiteRT's lists, in which other loops collect, have entries of one fixed size.
    graph = wanted.trace(why_not_held, stored_bytes, WIDENED, batch=1)
    return graph, [keras.tree.map_structure(lambda x: x[:1], x) for x in wanted.examples]


class LitertFile(NamedTuple):
    """A file.

    Attributes:
        content: Its bytes.
        unread: The names of the matrices that are floats because no product reads them.
    """

    content: bytes
    unread: frozenset[str]


class LitertGraph:
    """A converted graph of builtin operations, of which each choice of integers makes a file.

    The signature `serving_default` of a file has the inputs and outputs of the model by name.
    """

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._filters = {name: filter_of(matrix) for name, matrix in traced.matrices.items()}
        self._arguments = [*traced.inputs, *traced.computed, f"{ZERO}:0"]
        # As bytes, because each file changes its source.
        self._main = self._convert(self._arguments, traced.outputs)
        self._once = b""
        if traced.computed:
            self._once = self._convert([*traced.weights], traced.computed)

    def _convert(self, inputs: list[str], outputs: list[str]) -> bytes:
        """Converts the part of the graph between tensors; its ends keep their order."""
        import tensorflow as tf

        matrices = self._traced.matrices
        graph = _convertible(self._traced.graph, matrices)
        function = as_function(graph, [*inputs, *matrices], outputs)
        sources = function.inputs[: len(inputs)]
        arrays = [(x.op.name, [-1 if n is None else n for n in x.shape]) for x in sources]
        ends = [x.name for x in function.outputs]
        floats = {name: matrix.values() for name, matrix in matrices.items()}
        names = [x.op.name for x in [*sources, *function.outputs]]
        graph = with_constants(function.graph.as_graph_def(), floats, names)
        del floats
        # The converter of functions first makes copies of all constants.
        with quiet():
            converter = tf.compat.v1.lite.TFLiteConverter(graph, None, None, arrays, ends)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            return converter.convert()

    def file(self, exact: Collection[str] = ()) -> LitertFile:
        """Returns the file in which the matrices of the names `exact` are floats."""
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema

        traced = self._traced
        file = schema.ModelT.InitFromPackedBuf(self._main, 0)
        edit = _Edit(schema, file)
        main = file.subgraphs[0]
        places = dict(zip(self._arguments, map(int, main.inputs), strict=True))
        edit.bind(main, places[f"{ZERO}:0"], np.float32(0))
        inputs = {name.partition(":")[0]: places[name] for name in traced.inputs}
        main.inputs = np.array(list(inputs.values()), "int32")
        filters = {name: form for name, form in self._filters.items() if name not in exact}
        # Bodies of loops are graphs of their own.
        unread = set.intersection(*(edit.multiply(graph, filters) for graph in file.subgraphs))
        edit.narrow(main)
        if traced.computed:
            first = schema.ModelT.InitFromPackedBuf(self._once, 0)
            computed = [places[x] for x in traced.computed]
            edit.compute_once(first, list(traced.weights.values()), computed)
        outputs = dict(zip(traced.output_names, map(int, main.outputs), strict=True))
        edit.finish(inputs, outputs, not (traced.computed or traced.matrices))
        # A builder that is too small doubles, and copies what it has.
        size = sum(len(x.data) for x in file.buffers if x.data is not None)
        builder = flatbuffers.Builder(size + _GRAPH_BYTES)
        builder.Finish(file.Pack(builder), b"TFL3")
        content = bytes(memoryview(builder.Bytes)[builder.Head() :])
        return LitertFile(content, frozenset(unread))


def _convertible(graph: Any, matrices: Collection[str]) -> Any:
    """Returns a graph that converts correctly when the tensors of some names are constants."""
    import tensorflow as tf

    result = type(graph)(library=graph.library, versions=graph.versions)
    nodes = {node.name: node for node in graph.node}
    constants = {node.name for node in graph.node if node.op == "Const"}
    constants |= {name.partition(":")[0] for name in matrices}

    for node in graph.node:
        if node.op in _AFTER_PRODUCTS and _is_product(node.input[0], nodes, constants):
            # The converter transposes a computed matrix before a sum, and loses an activation.
            added = result.node.add(op="AddV2", name=f"{node.name}/added")
            added.input.extend([node.input[0], ZERO])
            added.attr["T"].type = node.attr["T"].type
            result.node.add().CopyFrom(node)
            result.node[-1].input[0] = added.name
        elif node.op == "StridedSlice" and (axes := _new_axes(node, nodes)):
            # The converter knows new axes only where all sizes are known.
            source = node.input[0]
            for axis in axes:
                name = node.name if axis == axes[-1] else f"{node.name}/axis_{axis}"
                number = result.node.add(op="Const", name=f"{name}/number")
                number.attr["dtype"].type = tf.int32.as_datatype_enum
                number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(axis, tf.int32))
                expanded = result.node.add(op="ExpandDims", name=name, input=[source, number.name])
                expanded.attr["T"].type = node.attr["T"].type
                expanded.attr["Tdim"].type = tf.int32.as_datatype_enum
                source = name
        else:
            result.node.add().CopyFrom(node)
    zero = result.node.add(op="Placeholder", name=ZERO)
    zero.attr["dtype"].type = tf.float32.as_datatype_enum
    zero.attr["shape"].shape.SetInParent()
    return result


def _new_axes(node: Any, nodes: dict[str, Any]) -> list[int]:
    """Returns the axes that a slice adds, if it does nothing else."""
    import tensorflow as tf

    strides = nodes[node.input[3].partition(":")[0]]
    if strides.op != "Const" or node.attr["shrink_axis_mask"].i:
        return []
    count = tf.make_ndarray(strides.attr["value"].tensor).size
    added = node.attr["new_axis_mask"].i
    ellipsis = node.attr["ellipsis_mask"].i
    everything = 2**count - 1
    if any(
        (node.attr[name].i | added | ellipsis) != everything for name in ("begin_mask", "end_mask")
    ):
        return []
    # Axes after an ellipsis are counted from the end, and added from the last one on.
    before = ellipsis.bit_length() - 1 if ellipsis else count
    axes = [axis for axis in range(before) if added >> axis & 1]
    return axes + [axis - count for axis in reversed(range(before, count)) if added >> axis & 1]


def _is_product(name: str, nodes: dict[str, Any], constants: Collection[str]) -> bool:
    """Whether a tensor is, but for its shape, the product of two computed matrices."""
    node = nodes[name.partition(":")[0]]
    while node.op in ("Reshape", "Identity", "Squeeze", "ExpandDims"):
        node = nodes[node.input[0].partition(":")[0]]
    products = ("MatMul", "BatchMatMulV2", "BatchMatMulV3")
    return node.op in products and node.input[1].partition(":")[0] not in constants


def _pack_halves(numbers: np.ndarray) -> np.ndarray:
    """Returns bytes of two integers each, the first one in the lower bits."""
    flat = np.append(numbers.ravel(), np.zeros(numbers.size % 2, "int8")).view("uint8") & 15
    return flat[0::2] | (flat[1::2] << 4)


class _Edit:
    """Changes a file that TensorFlow's converter wrote."""

    def __init__(self, schema: Any, file: Any) -> None:
        self._schema = schema
        self._file = file

    def bind(self, graph: Any, position: int, value: np.ndarray) -> None:
        """Makes an input a constant."""
        graph.tensors[position].buffer = self._buffer(value)
        graph.tensors[position].shapeSignature = None

    def multiply(self, graph: Any, filters: Mapping[str, Filter | None]) -> set[str]:
        """Lets products read filters of integers; returns the names of those that none reads."""
        operators = self._schema.BuiltinOperator
        unread = set(filters)
        readers: dict[int, set[int]] = {}
        for operator in graph.operators:
            kind = self._file.operatorCodes[operator.opcodeIndex].builtinCode
            for n, position in enumerate(operator.inputs):
                readers.setdefault(int(position), set()).add(kind if n == 1 else -1)
        for position, kinds in readers.items():
            if not kinds <= {operators.FULLY_CONNECTED, operators.CONV_2D}:
                continue
            array = self._constant(graph.tensors[position])
            if array is None or array.dtype != np.float32:
                continue
            array = array.reshape(len(array), -1)
            for name, form in filters.items():
                if form is None or (form.bits == 4 and operators.CONV_2D in kinds):
                    continue
                factors = form.factors(array)
                if factors is not None:
                    self._set_filter(graph, position, form, factors)
                    unread.discard(name)
                    break
        return unread

    def _is_product(self, operator: Any) -> bool:
        """Whether an operation has an input, a filter and a bias."""
        operators = self._schema.BuiltinOperator
        kind = self._file.operatorCodes[operator.opcodeIndex].builtinCode
        kinds = (operators.FULLY_CONNECTED, operators.CONV_2D, operators.DEPTHWISE_CONV_2D)
        return kind in kinds and len(operator.inputs) == 3

    def _set_filter(self, graph: Any, position: int, form: Filter, factors: np.ndarray) -> None:
        scales = (form.scales * np.abs(factors[:, None])).astype("float32")
        numbers = form.numbers * np.sign(factors[:, None]).astype("int8")
        kind = self._schema.TensorType.INT4 if form.bits == 4 else self._schema.TensorType.INT8
        parameters = self._schema.QuantizationParametersT()
        if scales.shape[1] == 1:
            parameters.scale = scales[:, 0]
            parameters.zeroPoint = np.zeros(len(scales), "int64")
        else:
            details = parameters.details = self._schema.BlockwiseQuantizationT()
            parameters.detailsType = self._schema.QuantizationDetails.BlockwiseQuantization
            half = self._schema.TensorType.FLOAT16
            details.scales = self._tensor(graph, half, scales.shape, scales.astype("float16"))
            details.zeroPoints = -1
            details.blockSize = numbers.shape[1] // scales.shape[1]
        tensor = graph.tensors[position]
        tensor.type = kind
        tensor.quantization = parameters
        tensor.buffer = self._buffer(_pack_halves(numbers) if form.bits == 4 else numbers)

    def narrow(self, graph: Any) -> None:
        """Stores constants in fewer bytes, where it can be done without loss."""
        first: list[Any] = []
        # Products with integers take constants only.
        biases = {int(x.inputs[2]) for x in graph.operators if self._is_product(x)}
        for position in range(len(graph.tensors)):
            array = self._constant(graph.tensors[position])
            if array is None or position in biases:
                continue
            narrow = _narrowest(array)
            if narrow.nbytes == array.nbytes:
                continue
            kind = getattr(self._schema.TensorType, narrow.dtype.name.upper())
            source = self._tensor(graph, kind, array.shape, narrow)
            graph.tensors[position].buffer = 0
            if array.dtype == np.int32:
                cast = self._operator(
                    "CAST",
                    [source],
                    [position],
                    inDataType=kind,
                    outDataType=graph.tensors[position].type,
                )
                first.append(cast)
            else:
                first.append(self._operator("DEQUANTIZE", [source], [position]))
        graph.operators = [*first, *graph.operators]

    def compute_once(self, file: Any, weights: list[np.ndarray], positions: list[int]) -> None:
        """Adds the graph of a file, which computes tensors of the main one before the first call.

        The weights become constants for its inputs; its outputs are at the positions there.
        """
        main = self._file.subgraphs[0]
        once = file.subgraphs[0]
        for tensor in once.tensors:
            data = file.buffers[tensor.buffer].data
            tensor.buffer = 0 if data is None else self._buffer(np.asarray(data))
        for operator in once.operators:
            operator.opcodeIndex = self._code_like(file.operatorCodes[operator.opcodeIndex])
        for position, value in zip(once.inputs, weights, strict=True):
            self.bind(once, int(position), value)
        operators = [
            self._operator("CALL_ONCE", [], [], initSubgraphIndex=len(self._file.subgraphs))
        ]
        for n, (source, position) in enumerate(zip(once.outputs, positions, strict=True)):
            write, read = (self._variable(graph, n) for graph in (once, main))
            once.operators += [write, self._operator("ASSIGN_VARIABLE", [write.outputs[0], source])]
            operators += [read, self._operator("READ_VARIABLE", read.outputs, [position])]
        main.operators = [*operators, *main.operators]
        once.inputs = np.array([], "int32")
        once.outputs = np.array([], "int32")
        once.name = b"once"
        self._file.subgraphs.append(once)

    def finish(self, inputs: dict[str, int], outputs: dict[str, int], is_float: bool) -> None:
        """Drops the traces of the conversion; the tensors of a model of floats are numbered.

        Tools that quantize such files need their names.
        """
        for graph in self._file.subgraphs:
            for n, tensor in enumerate(graph.tensors):
                tensor.name = f"{n:x}".encode() if is_float else None
                form = tensor.quantization
                if form is not None and form.scale is None and form.details is None:
                    tensor.quantization = None
                if tensor.shapeSignature is not None and -1 not in tensor.shapeSignature:
                    tensor.shapeSignature = None
        signature = self._schema.SignatureDefT()
        signature.signatureKey = b"serving_default"
        signature.inputs = self._maps(inputs)
        signature.outputs = self._maps(outputs)
        self._file.signatureDefs = [signature]
        self._file.metadata = []
        self._file.metadataBuffer = None
        self._file.description = b""
        self._drop_buffers()

    def _drop_buffers(self) -> None:
        """Keeps the first buffer, which is empty, and one of each content that a tensor has."""
        buffers = self._file.buffers[:1]
        places = {b"": 0}
        for tensor in (x for graph in self._file.subgraphs for x in graph.tensors):
            data = self._file.buffers[tensor.buffer].data
            is_empty = data is None or not len(data)
            key = b"" if is_empty else hashlib.sha256(data).digest()
            if key not in places:
                places[key] = len(buffers)
                buffers.append(self._file.buffers[tensor.buffer])
            tensor.buffer = places[key]
        self._file.buffers = buffers

    def _maps(self, positions: dict[str, int]) -> list[Any]:
        maps = []
        for name, position in positions.items():
            entry = self._schema.TensorMapT()
            entry.name = name.encode()
            entry.tensorIndex = position
            self._file.subgraphs[0].tensors[position].name = name.encode()
            maps.append(entry)
        return maps

    def _constant(self, tensor: Any) -> np.ndarray | None:
        """Returns the value of a tensor if it is a constant that can be worth narrowing."""
        types = self._schema.TensorType
        dtype = {types.FLOAT32: "float32", types.INT32: "int32"}.get(tensor.type)
        data = self._file.buffers[tensor.buffer].data
        if data is None or dtype is None or len(data) < _LITERT_MINIMUM_BYTES:
            return None
        return np.frombuffer(data, dtype).reshape(tensor.shape)

    def _buffer(self, array: np.ndarray) -> int:
        buffer = self._schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array), "uint8")
        self._file.buffers.append(buffer)
        return len(self._file.buffers) - 1

    def _tensor(self, graph: Any, kind: int, shape: Any, data: np.ndarray | None = None) -> int:
        tensor = self._schema.TensorT()
        tensor.shape = np.array(shape, "int32")
        tensor.type = kind
        tensor.hasRank = True
        tensor.buffer = 0 if data is None else self._buffer(data)
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def _variable(self, graph: Any, number: int) -> Any:
        """Returns an operation whose output is a variable of the file."""
        handle = self._tensor(graph, self._schema.TensorType.RESOURCE, ())
        return self._operator("VAR_HANDLE", [], [handle], container="", sharedName=str(number))

    def _operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int] = (), **options: Any
    ) -> Any:
        code = self._schema.OperatorCodeT()
        code.builtinCode = getattr(self._schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = {"CAST": 6, "DEQUANTIZE": 6}.get(name, 1)
        operator = self._schema.OperatorT()
        operator.opcodeIndex = self._code_like(code)
        operator.inputs = np.array(inputs, "int32")
        operator.outputs = np.array(outputs, "int32")
        kind = "".join(word.capitalize() for word in name.split("_")) + "Options"
        operator.builtinOptionsType = getattr(self._schema.BuiltinOptions, kind)
        operator.builtinOptions = getattr(self._schema, f"{kind}T")()
        vars(operator.builtinOptions).update(options)
        return operator

    def _code_like(self, wanted: Any) -> int:
        """Returns the index of an operation's code, at least of the wanted version."""
        for n, code in enumerate(self._file.operatorCodes):
            if code.builtinCode == wanted.builtinCode:
                code.version = max(code.version, wanted.version)
                return n
        self._file.operatorCodes.append(wanted)
        return len(self._file.operatorCodes) - 1
