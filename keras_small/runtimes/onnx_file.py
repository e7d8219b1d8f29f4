"""Writes ONNX files, and OpenVINO files of these, whose weights stay as they are stored."""

import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from keras_small.runtimes.onnx_convolutions import (
    Convolution,
    Numbers,
    convolutions_of,
    numbers_of,
    write_integers,
)
from keras_small.runtimes.onnx_kernels import AGAIN, MatrixWriter
from keras_small.runtimes.running import is_fast, runner
from keras_small.runtimes.tracing import Traced, as_function, quiet, unique_names
from keras_small.storage.integer_groups import pack
from keras_small.storage.stand_ins import StoredMatrix

# The newest that TensorFlow's converter knows, and the first that has integers of 4 bits, which
# means the same by all operations of the other.
_OPSET_OF_CONVERTER, _OPSET, _IR_VERSION = 18, 21, 10
# Up to this number of entries OpenVINO's text for what restores a matrix is longer than floats.
_FEW = 1024
# The rows of data with which ranges are chosen, and how many of them at once.
_ROWS, _AT_ONCE = 128, 8


class OnnxFile:
    """The ONNX file of a graph, with its stored weights as constants.

    Args:
        model: The graph.

    Attributes:
        restored: The matrices that become floats when the file is loaded, with the reasons.
        coarse: The names of the matrices whose products round all rows with one scale.
    """

    def __init__(self, model: Traced) -> None:
        self._model, self.restored, self.coarse = model, dict[str, str](), set[str]()
        self._numbers: dict[str, Numbers] = {}
        self._row, self._slow, self._kernels = list[np.ndarray](), set[str](), set[str]()
        # As bytes, because each copy shares its constants with the message that it is made from.
        file = _convert(model)
        passes.ShapeInferencePass()(file)
        self._converted = _content(file)

    def calibrate(self, batches: Sequence[Any]) -> set[str]:
        """Lets convolutions use integers in ranges of data, where fast; returns their kernels."""
        content = onnx.load_model_from_string(self._converted)
        found = self._convolutions(ir.from_proto(content))
        if not found or not batches:
            return set()
        few = self._fill(self._model.matrices)[0]
        names = {value.name for x in found for value in (x.source, x.end)}
        tensors = [*few.graph.inputs, *(x for node in few.graph for x in node.outputs)]
        values = {str(x.name): x for x in tensors if x.name in names}
        few.graph.outputs[:] = values.values()
        run = runner(_content(few))
        rows = list(few_rows(batches))
        self._numbers = numbers_of(dict(zip(values, run(x), strict=True)) for x in rows)
        self._kernels, self._row = {x.name for x in found}, rows[0]
        self.keeps_fast(())
        return self._kernels

    def keeps_fast(self, exact: Collection[str]) -> bool:
        """Whether convolutions with integers are fast, but those that are exact; else drops all."""
        both = (exact, self._kernels.union(exact))
        integers, floats = (runner(_content(self._fill(names)[0])) for names in both)
        fast = is_fast(integers, floats, self._row)
        if not fast:
            self._numbers, self._slow, self._kernels = {}, {*map(_node, self._kernels)}, set()
        return fast

    def write(self, path: str, exact: Collection[str] = ()) -> set[str]:
        """Writes the file; products with matrices of the names `exact` do not round their inputs.

        Returns:
            The names of the matrices whose products round their inputs.
        """
        file, rounding, self.restored = self._fill(exact)
        _tidy(file, self._model.output_names)
        Path(path).write_bytes(_content(file))
        return rounding

    def _fill(self, exact: Collection[str]) -> tuple[ir.Model, set[str], dict[str, str]]:
        """Returns a file, and what `write` returns and has."""
        file = ir.from_proto(onnx.load_model_from_string(self._converted))
        file.ir_version = _IR_VERSION
        file.opset_imports.update({"": _OPSET, "com.microsoft": 1})
        by_name = {value.name: value for value in file.graph.inputs}
        writer = MatrixWriter(file.graph, file.graph.inputs[len(self._model.inputs) :])
        for name, array in self._model.weights.items():
            by_name[_node(name)].replace_all_uses_with(writer.constant(array))
        found = self._convolutions(file) if self._numbers else []
        write_integers(writer, found, self._numbers, exact)
        names = {by_name[_node(name)]: name for name in self._model.matrices}
        recurrent = writer.write_recurrent(names, exact)
        rounding = (
            {x.name for x in found if x.name not in exact}
            | recurrent
            | {
                name
                for name, matrix in self._model.matrices.items()
                if writer.write(
                    by_name[_node(name)], matrix, name not in exact, name in self.coarse
                )
            }
        )
        del file.graph.inputs[len(self._model.inputs) :]
        passes.TopologicalSortPass()(file)
        passes.RemoveUnusedNodesPass()(file)
        restored = writer.restored
        for convolution in found:
            name = _node(convolution.name)
            if convolution.name in exact and name in restored:
                restored[name] = "floats: the error would exceed its bound"
            elif convolution.name not in exact and convolution.scales is None:
                is_again = convolution.name in self._model.matrices
                restored[name] = AGAIN if is_again else AGAIN.replace("again, ", "")
        restored |= dict.fromkeys(map(_node, recurrent), AGAIN)
        for name in self._slow & restored.keys():
            restored[name] = "floats: integers take more time"
        return file, rounding, restored

    def _convolutions(self, file: ir.Model) -> list[Convolution]:
        by_name = {value.name: value for value in file.graph.inputs}
        return convolutions_of(
            file.graph,
            {name: (by_name[_node(name)], x) for name, x in self._model.matrices.items()},
        )


def openvino_model(model: Traced) -> Any:
    """Returns the OpenVINO model of a graph, with its stored weights as constants.

    They are inputs for the converter, which computes what depends on constants alone, and leaves
    out operations that do nothing.
    """
    import openvino

    # What `openvino.convert_model` calls, which also asks for consent to statistics.
    from openvino._offline_transformations import apply_moc_transformations

    file = _convert(model)
    _tidy(file, model.output_names)
    result = openvino.Core().read_model(_content(file))
    apply_moc_transformations(result, cf=False)
    stored = {_node(name): value for name, value in (model.weights | model.matrices).items()}
    for parameter in result.get_parameters():
        value = stored.get(parameter.get_friendly_name())
        if value is not None:
            new = _restore(value) if isinstance(value, StoredMatrix) else _constant(value)
            parameter.output(0).replace(new.output(0))
            result.remove_parameter(parameter)
    # The reader leaves out inputs of which nothing depends.
    read = {x.get_friendly_name(): x for x in result.get_parameters()}
    inputs = [read.get(x.name) or _parameter(x) for x in file.graph.inputs if x.name not in stored]
    return openvino.Model(result.get_results(), inputs)


def _parameter(value: Any) -> Any:
    """Returns the OpenVINO input for one of an ONNX graph."""
    import openvino

    sizes = [size if isinstance(size, int) else -1 for size in value.shape or ()]
    kind = openvino.Type(value.dtype.numpy())
    parameter = openvino.op.Parameter(kind, openvino.PartialShape(sizes))
    parameter.set_friendly_name(value.name)
    parameter.output(0).set_names({value.name})
    return parameter


def _constant(array: np.ndarray, bits: int = 8) -> Any:
    """Returns an OpenVINO constant; of integers below 16 in 4 bits each with `bits=4`."""
    import openvino

    if bits == 8:
        return openvino.op.Constant(np.ascontiguousarray(array))
    tensor = openvino.Tensor(openvino.Type.u4, array.shape)
    tensor.data.reshape(-1)[:] = pack(array.ravel(), bits)
    return openvino.op.Constant(tensor)


def _restore(matrix: StoredMatrix) -> Any:
    """Returns OpenVINO operations that restore a matrix.

    The runtime knows them: it multiplies with the integers, or restores the matrix once.
    """
    from openvino import opset13 as ops

    if matrix.numbers.size <= _FEW:
        return _constant(matrix.values())
    padded, bits = matrix.padded(), 4 if matrix.bits <= 4 else 8
    numbers, zeros = (
        ops.convert(_constant(array.astype("uint8"), bits), "f32")
        for array in (padded.grouped(padded.numbers), padded.grouped(padded.zeros))
    )
    value = ops.multiply(ops.subtract(numbers, zeros), _constant(padded.grouped(padded.scales)))
    if padded.numbers.shape != matrix.numbers.shape:
        value = ops.reshape(value, _constant(np.array(padded.numbers.shape)), False)
        ends = [np.array([n]) for n in (0, matrix.numbers.shape[matrix.axis], 1, matrix.axis)]
        value = ops.slice(value, *map(_constant, ends))
    value = ops.reshape(value, _constant(np.array([matrix.shape[n] for n in matrix.order])), False)
    order = np.argsort(matrix.order)
    return value if list(order) == sorted(order) else ops.transpose(value, _constant(order))


def write_openvino(model: Any, path: Path) -> None:
    """Writes the files `.xml` and `.bin`, the first without what only people read."""
    import openvino

    openvino.save_model(model, path, compress_to_fp16=False)
    net = ElementTree.parse(path).getroot()
    names = {",".join(port.get_names()) for port in model.outputs}
    for n, layer in enumerate(net.iter("layer")):
        ends = layer.get("type") in ("Parameter", "Result")
        if not ends:
            layer.set("name", f"{n:x}")
        for port in layer.iterfind("input/port"):
            port.attrib.pop("precision")  # that of the output that it reads
        for port in layer.iter("port"):
            port[:] = []
            if layer.get("type") != "Parameter" and port.get("names") not in names:
                port.attrib.pop("names", None)
    for parent in list(net.iter()):
        parent.text = parent.tail = None
        for child in parent.findall("rt_info"):
            parent.remove(child)
    path.write_bytes(ElementTree.tostring(net).replace(b" />", b"/>"))


def _convert(model: Traced) -> Any:
    """Converts a graph; its stored weights are inputs."""
    import tensorflow as tf
    import tf2onnx

    arguments = [*model.inputs, *model.matrices, *model.weights]
    function = as_function(_with_known_operations(model), arguments, model.outputs)
    signature = [
        tf.TensorSpec(x.shape, x.dtype, _node(name))
        for x, name in zip(function.inputs, arguments, strict=False)
    ]

    def convert() -> ir.Model:
        with quiet():
            file, _ = tf2onnx.convert.from_function(
                tf.function(lambda *tensors: function(*tensors), autograph=False),
                input_signature=signature,
                opset=_OPSET_OF_CONVERTER,
                custom_op_handlers={
                    "CudnnRNNV3": (_convert_recurrent, []),
                    "Einsum": (_convert_einsum, []),
                    "FloorDiv": (_convert_quotient, []),
                    "FloorMod": (_convert_remainder, []),
                    "Reshape": (_convert_reshape, []),
                    "SelectV2": (_convert_choice, []),
                },
            )
        return ir.from_proto(file)

    # Whatever its value is: without copies of the graph to return to, a third of the time.
    with mock.patch.dict(os.environ, TF2ONNX_CATCH_ERRORS="FALSE"):
        try:
            return convert()
        except Exception:  # of an optimization, maybe, which the converter then leaves out
            del os.environ["TF2ONNX_CATCH_ERRORS"]
            return convert()


def _content(file: ir.Model) -> bytes:
    return ir.to_proto(file).SerializeToString()


def few_rows(batches: Sequence[Any]) -> Iterator[list[np.ndarray]]:
    """Yields few inputs at a time, and not too many, from all batches."""
    for batch in batches:
        arrays = keras.tree.flatten(batch)
        step = max(-(-len(arrays[0]) * len(batches) // _ROWS), 1)  # 1 of no rows
        for start in range(0, len(arrays[0]), step * _AT_ONCE):
            yield [array[start : start + step * _AT_ONCE : step] for array in arrays]


def _node(tensor: str) -> str:
    return tensor.partition(":")[0]


def _tidy(file: ir.Model, output_names: Sequence[str]) -> None:
    """Merges equal constants, leaves out what nothing reads, and shortens names."""
    graph = file.graph
    for step in (
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(size_limit=2**31),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.ClearMetadataAndDocStringPass(),
    ):
        step(file)
    file.producer_name, file.producer_version, graph.name = "keras_small", "", "model"
    file.metadata_props.clear()
    ends = {id(value) for g in file.graphs() for value in (*g.inputs, *g.outputs)}
    values = [*graph.initializers.values(), *(x for g in graph.subgraphs() for x in g.inputs)]
    for node in graph.all_nodes():
        node.name = None
        values += node.outputs
    for value in values:
        if id(value) not in ends:
            value.type = value.shape = None
    values = [value for value in values if value not in graph.outputs]
    # Names of inputs are taken, also where an output is an input.
    inputs = [value.name or "" for value in graph.inputs]
    output_names = unique_names([*inputs, *output_names])[len(inputs) :]
    names = [*output_names, *(f"_{n:x}" for n in range(len(values)))]
    ir.convenience.rename_values([*graph.outputs, *values], names)


def _is_integer(context: Any, node: Any) -> bool:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(context.get_dtype(node.input[0])).kind in "iu"


def _convert_remainder(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a remainder, which has the sign of the divisor, for the TensorFlow converter."""
    from tf2onnx.onnx_opset.math import FloorMod

    if _is_integer(context, node):
        node.type = "Mod"
    else:
        FloorMod.version_7(context, node)


def _convert_quotient(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a quotient rounded down, where ONNX rounds that of integers towards 0."""
    from tf2onnx.onnx_opset.math import FloorDiv

    if not _is_integer(context, node):
        FloorDiv.version_6(context, node)
        return
    types = [context.get_dtype(node.input[0])]
    rest = context.make_node("Mod", node.input, dtypes=types, shapes=node.output_shapes)
    multiple = context.make_node(
        "Sub", [node.input[0], rest.output[0]], dtypes=types, shapes=node.output_shapes
    )
    node.type = "Div"
    context.replace_input(node, node.input[0], multiple.output[0], 0)


def _convert_einsum(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a sum over the last axes, with a matrix or a kernel, to a product of matrices."""
    from tf2onnx.onnx_opset.math import Einsum
    from tf2onnx.utils import make_name

    labels = re.fullmatch(r"(\w+),(\w+)->(\w+)", node.get_attr_value("equation").decode())
    left, right, result = labels.groups() if labels else ("", "", "")
    sizes = dict(zip(right, context.get_shape(node.input[1]) or (), strict=False))
    summed = "".join(label for label in left if label in right and label not in result)
    lead, kept = left.removesuffix(summed), "".join(x for x in result if x not in left)
    known = all(sizes.get(label, -1) > 0 for label in right)
    if not (lead and summed and kept and known) or result != lead + kept:
        Einsum.version_12(context, node)
        return

    def const(numbers: Sequence[int]) -> str:
        return context.make_const(make_name("sizes"), np.array(numbers, "int64")).output[0]

    rows, columns = (math.prod(sizes[label] for label in x) for x in (summed, kept))
    order = [right.index(label) for label in summed + kept]
    moved = context.make_node("Transpose", [node.input[1]], attr={"perm": order}).output[0]
    matrix = context.make_node("Reshape", [moved, const((rows, columns))]).output[0]
    folded = node.input[0]
    if len(summed) > 1:
        if node.inputs[0].type == "Reshape":
            # Else the converter merges both, and a size of 0 is one of another input. Runtimes
            # leave the cast out.
            to = {"to": context.get_dtype(folded)}
            folded = context.make_node("Cast", [folded], attr=to).output[0]
        folded = context.make_node("Reshape", [folded, const([0] * len(lead) + [rows])]).output[0]
    product = context.make_node("MatMul", [folded, matrix]).output[0]
    node.type = "Reshape"
    for attribute in list(node.attr):
        del node.attr[attribute]
    unfolded = const([0] * len(lead) + [sizes[label] for label in kept])
    context.replace_inputs(node, [product, unfolded])


def _convert_recurrent(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts what `recurrent.py` traces to an operation `LSTM` or `GRU`."""
    from tf2onnx.utils import make_name

    def add(op: str, inputs: Sequence[str], count: int = 1, **options: Any) -> Any:
        return context.make_node(op, inputs, output_count=count, **options).output

    def const(array: Any) -> str:
        return context.make_const(make_name("recurrent"), np.array(array)).output[0]

    x, first, memory, parameters = node.input[:4]
    size, units = context.get_shape(x)[-1], context.get_shape(first)[-1]
    op, gates = ("LSTM", 4) if node.get_attr_value("rnn_mode") == b"lstm" else ("GRU", 3)
    rows, biases = gates * units, 1 if op == "LSTM" else 2
    sizes = [rows * size, rows * units, rows * biases]
    shapes = [(1, rows, size), (1, rows, units), (1, rows * biases)]
    parts = zip(add("Split", [parameters, const(sizes)], 3), shapes, strict=True)
    kernels = [add("Reshape", [part, const(shape)])[0] for part, shape in parts]
    attributes = {"hidden_size": units}
    if op == "LSTM":  # has a second bias
        zeros = const(np.zeros((1, rows), "float32"))
        kernels[2] = add("Concat", [kernels[2], zeros], attr={"axis": 1})[0]
    else:
        attributes["linear_before_reset"] = 1
    are_zeros = all(x.is_const() and not x.get_tensor_value(False).any() for x in node.inputs[1:3])
    states = [] if are_zeros else [first, memory] if op == "LSTM" else [first]
    ends = list(zip(node.output, node.output_dtypes, node.output_shapes, strict=True))
    context.remove_node(node.name)
    count = 3 if op == "LSTM" else 2
    new = add(op, [x, *kernels, "", *states], count, attr=attributes)
    for source, (output, dtype, shape) in zip(new, ends, strict=False):
        of_steps = source == new[0]
        inputs = [source, const([1])] if of_steps else [source]
        end = "Squeeze" if of_steps else "Identity"
        add(end, inputs, outputs=[output], dtypes=[dtype], shapes=[shape])


def _convert_reshape(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a reshape, and reads what another one reshapes instead of its result.

    The converter would do so later, when a size of the second may be a 0, "that of the input".
    """
    from tf2onnx.onnx_opset.tensor import Reshape

    first = node.inputs[0]
    if first.type == "Reshape":
        context.replace_input(node, node.input[0], first.input[0], 0)
    Reshape.version_5(context, node)


def _convert_choice(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a choice of floats, of which the others may be NaN or infinite.

    The converter multiplies, which makes NaN of these, and takes more time if one side is a tensor
    that has one number everywhere. Such a tensor becomes the number.
    """
    from onnx import helper, numpy_helper
    from tf2onnx.onnx_opset.controlflow import Select
    from tf2onnx.utils import make_name

    if helper.tensor_dtype_to_np_dtype(context.get_dtype(node.output[0])).kind != "f":
        Select.version_9(context, node)  # ONNX Runtime chooses no booleans
        return
    other, number = node.inputs[2], np.zeros(0)
    if other.type == "ConstantOfShape":
        number = numpy_helper.to_array(other.get_attr_value("value"))
    elif other.type == "Expand" and other.inputs[0].is_const():
        number = other.inputs[0].get_tensor_value(as_list=False)
    shape = other.inputs[-1] if number.size == 1 else node
    while shape.type == "Cast":
        shape = shape.inputs[0]
    if shape.type == "Shape" and shape.input == [node.input[1]]:
        number = context.make_const(make_name("number"), number.reshape(())).output[0]
        context.replace_input(node, node.input[2], number, 2)
    node.type = "Where"


def _with_known_operations(model: Traced) -> Any:
    """Replaces operations that the converter lacks.

    `erfc(x)` becomes `1 - erf(x)`, and an update of one index of an axis a choice between the old
    and the new values.
    """
    import tensorflow as tf

    graph = model.graph
    result = type(graph)(library=graph.library, versions=graph.versions)
    arguments = [*model.inputs, *model.matrices, *model.weights]
    tensors = as_function(graph, arguments, model.outputs).graph

    def add(op: str, name: str, inputs: Sequence[str], **types: Any) -> str:
        node = result.node.add(op=op, name=name, input=inputs)
        for key, kind in types.items():
            node.attr[key].type = kind.as_datatype_enum
        return name

    def number(name: str, value: Any, dtype: Any) -> str:
        add("Const", name, [], dtype=dtype)
        content = tf.make_tensor_proto(value, dtype)
        result.node[-1].attr["value"].tensor.CopyFrom(content)
        return name

    for node in graph.node:
        if node.op == "Erfc":
            dtype = tf.as_dtype(node.attr["T"].type)
            one = number(f"{node.name}/one", 1, dtype)
            erf = add("Erf", f"{node.name}/erf", node.input, T=dtype)
            add("Sub", node.name, [one, erf], T=dtype)
        elif node.op == "XlaDynamicUpdateSlice":
            old, new, start = tensors.get_operation_by_name(node.name).inputs
            sizes = zip(new.shape, old.shape, strict=True)
            axis = [n for n, (size, whole) in enumerate(sizes) if size == 1 != whole]
            if len(axis) != 1:
                raise ValueError(f"ONNX cannot update a slice of shape {new.shape} of {old.shape}")
            at, int32 = f"{node.name}/", tf.int32
            index = number(f"{at}axis", axis, int32)
            zero, unit = number(f"{at}zero", 0, int32), number(f"{at}unit", 1, int32)
            shape = add("Shape", f"{at}shape", [node.input[0]], T=old.dtype, out_type=int32)
            gathering = {"Tparams": int32, "Tindices": int32, "Taxis": int32}
            ends = add("GatherV2", f"{at}ends", [shape, index, zero], **gathering)
            none = number(f"{at}none", np.zeros(0, "int32"), int32)
            end = add("Reshape", f"{at}end", [ends, none], T=int32, Tshape=int32)
            steps = add("Range", f"{at}steps", [zero, end, unit], Tidx=int32)
            first = add("Cast", f"{at}first", [node.input[2]], SrcT=start.dtype, DstT=int32)
            place = add("GatherV2", f"{at}place", [first, index, zero], **gathering)
            here = add("Equal", f"{at}here", [steps, place], T=int32)
            column = number(f"{at}sizes", [-1, *[1] * (len(old.shape) - axis[0] - 1)], int32)
            mask = add("Reshape", f"{at}mask", [here, column], T=tf.bool, Tshape=int32)
            add("SelectV2", node.name, [mask, node.input[1], node.input[0]], T=old.dtype)
        else:
            result.node.add().CopyFrom(node)
    return result
