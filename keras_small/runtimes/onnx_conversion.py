"""Converts computations to ONNX models, whose stored weights and matrices are inputs.

The ONNX file replaces these inputs by constants in its own form, and so does OpenVINO's.
"""

import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from keras_small.runtimes.computation import Computation
from keras_small.runtimes.normalizations import known_normalizations
from keras_small.runtimes.recurrent import fused_loops
from keras_small.runtimes.tracing import Traced, as_function, quiet, unique_names
from keras_small.storage.stand_ins import StoredMatrix

# The newest that TensorFlow's converter knows.
_CONVERTER_OPSET = 18


class Converted(NamedTuple):
    """A computation as an ONNX model.

    Attributes:
        traced: Its graph, with the weights and matrices that are inputs of the model.
        model: The ONNX model; `node_name` says the names of these inputs.
    """

    traced: Traced
    model: ir.Model


def convert(wanted: Computation, with_products: bool = True) -> Converted:
    """Traces and converts a computation.

    Args:
        wanted: The computation.
        with_products: Whether recurrent layers whose kernels are products of integers are one
            operation, too. Defaults to `True`.
    """
    with fused_loops(wanted.model, with_products), known_normalizations(wanted.model):
        traced = wanted.trace(_why_not_held)
    return Converted(traced, _onnx_model(traced))


def _why_not_held(matrix: StoredMatrix) -> str:
    """Says why a file does not hold the integers of a matrix in about their bytes, or nothing."""
    if not np.array_equal(matrix.zeros, np.rint(matrix.zeros)):
        return "floats: zeros between two integers"
    if matrix.axis == 1 and matrix.bits not in (4, 8):
        return f"floats: a table of {matrix.bits} bits, of which each call restores rows"
    return ""


def _onnx_model(model: Traced) -> ir.Model:
    """Converts a graph."""
    import tensorflow as tf
    import tf2onnx

    arguments = [*model.inputs, *model.matrices, *model.weights]
    function = as_function(_with_known_operations(model), arguments, model.outputs)
    signature = [
        tf.TensorSpec(x.shape, x.dtype, node_name(name))
        for x, name in zip(function.inputs, arguments, strict=False)
    ]

    def attempt() -> ir.Model:
        with quiet():
            file, _ = tf2onnx.convert.from_function(
                tf.function(lambda *tensors: function(*tensors), autograph=False),
                input_signature=signature,
                opset=_CONVERTER_OPSET,
                custom_op_handlers={
                    "CudnnRNNV3": (_convert_recurrent, []),
                    "Einsum": (_convert_einsum, []),
                    "Erfc": (_convert_erfc, []),
                    "FloorDiv": (_convert_quotient, []),
                    "FloorMod": (_convert_remainder, []),
                    "Reshape": (_convert_reshape, []),
                    "SelectV2": (_convert_choice, []),
                },
            )
        return ir.from_proto(file)

    # Set to any value, it takes a third of the time: there are no copies of the graph to return to.
    with mock.patch.dict(os.environ, TF2ONNX_CATCH_ERRORS="FALSE"):
        try:
            return attempt()
        except Exception:  # of an optimization, maybe, which the converter then leaves out
            del os.environ["TF2ONNX_CATCH_ERRORS"]
            return attempt()


def content_of(file: ir.Model) -> bytes:
    """Returns the bytes of the file of a model, whose constants are freed.

    Its values and nodes refer to one another, so that they stay until the collector finds them.
    """
    content = ir.to_proto(file).SerializeToString()
    for value in file.graph.initializers.values():
        value.const_value = None
    return content


def node_name(tensor: str) -> str:
    """Returns the name of the node that makes a tensor of TensorFlow."""
    return tensor.partition(":")[0]


def tidy(file: ir.Model, output_names: Sequence[str]) -> None:
    """Merges equal constants, leaves out unread values, and shortens names."""
    graph = file.graph
    for step in (
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(size_limit=2**31),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.ClearMetadataAndDocStringPass(),
    ):
        step(file)
    file.producer_name = "keras_small"
    file.producer_version = ""
    graph.name = "model"
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
    remainder = context.make_node("Mod", node.input, dtypes=types, shapes=node.output_shapes)
    multiple = context.make_node(
        "Sub", [node.input[0], remainder.output[0]], dtypes=types, shapes=node.output_shapes
    )
    node.type = "Div"
    context.replace_input(node, node.input[0], multiple.output[0], 0)


def _convert_einsum(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a sum over the last axes, with a matrix or a kernel, to a product of matrices."""
    from tf2onnx.onnx_opset.math import Einsum
    from tf2onnx.utils import make_name

    labels = re.fullmatch(r"(\w+),(\w+)->(\w+)", node.get_attr_value("equation").decode())
    inputs, kernel, result = labels.groups() if labels else ("", "", "")
    if _convert_products(context, node, inputs, kernel, result):
        return
    sizes = dict(zip(kernel, context.get_shape(node.input[1]) or (), strict=False))
    summed = "".join(label for label in inputs if label in kernel and label not in result)
    lead = inputs.removesuffix(summed)
    kept = "".join(label for label in result if label not in inputs)
    known = all(sizes.get(label, -1) > 0 for label in kernel)
    if not (lead and summed and kept and known) or result != lead + kept:
        Einsum.version_12(context, node)
        return

    def const(numbers: Sequence[int]) -> str:
        return context.make_const(make_name("sizes"), np.array(numbers, "int64")).output[0]

    rows = math.prod(sizes[label] for label in summed)
    columns = math.prod(sizes[label] for label in kept)
    order = [kernel.index(label) for label in summed + kept]
    moved = context.make_node("Transpose", [node.input[1]], attr={"perm": order}).output[0]
    matrix = context.make_node("Reshape", [moved, const((rows, columns))]).output[0]
    folded = node.input[0]
    same_sizes = [0 for _ in lead]
    if len(summed) > 1:
        if node.inputs[0].type == "Reshape":
            # Else the converter merges both, and a size of 0 is one of another input. Runtimes
            # leave the cast out.
            to = {"to": context.get_dtype(folded)}
            folded = context.make_node("Cast", [folded], attr=to).output[0]
        folded = context.make_node("Reshape", [folded, const([*same_sizes, rows])]).output[0]
    product = context.make_node("MatMul", [folded, matrix]).output[0]
    node.type = "Reshape"
    for attribute in list(node.attr):
        del node.attr[attribute]
    unfolded = const([*same_sizes, *(sizes[label] for label in kept)])
    context.replace_inputs(node, [product, unfolded])


def _convert_products(context: Any, node: Any, left: str, right: str, result: str) -> bool:
    """Converts a sum over one axis of two tensors, of matrices in a row, as those of heads are."""
    batch = "".join(x for x in result if x in left and x in right)
    ends = "".join(x for x in result if x not in batch)
    summed = "".join(x for x in left if x in right and x not in result)
    first, second = node.input
    if ends[:1] in right:
        left, right, first, second = right, left, second, first
    if not batch or len(ends) != 2 or len(summed) != 1:
        return False
    rows, columns = ends[0], ends[1]
    orders = ((left, batch + rows + summed), (right, batch + summed + columns))
    if any(sorted(labels) != sorted(order) for labels, order in orders):
        return False
    matrices = [
        context.make_node("Transpose", [x], attr={"perm": list(map(labels.index, order))}).output[0]
        for x, (labels, order) in zip((first, second), orders, strict=True)
    ]
    product = context.make_node("MatMul", matrices).output[0]
    for attribute in list(node.attr):
        del node.attr[attribute]
    node.type = "Transpose"
    node.set_attr("perm", list(map((batch + ends).index, result)))
    context.replace_inputs(node, [product])
    return True


def _convert_erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts `erfc(x)` to `1 - erf(x)`.

    That of gelu, `erfc(-x / sqrt(2))`, becomes `erf(x / sqrt(2)) + 1`, which runtimes know.
    """
    from tf2onnx.utils import make_name

    def const(number: float) -> str:
        return context.make_const(make_name("number"), np.float32(number)).output[0]

    source = node.input[0]
    is_of_gelu = False
    if node.inputs[0].type == "Mul":
        negative, factor = node.inputs[0].inputs
        if negative.type == "Neg" and factor.is_const():
            is_of_gelu = np.allclose(factor.get_tensor_value(as_list=False), math.sqrt(0.5))
    if is_of_gelu:
        source = context.make_node("Div", [negative.input[0], const(math.sqrt(2))]).output[0]
    erf = context.make_node("Erf", [source]).output[0]
    node.type = "Add" if is_of_gelu else "Sub"
    context.replace_inputs(node, [erf, const(1)] if is_of_gelu else [const(1), erf])


def _convert_recurrent(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts the operation that `recurrent.py` traces to `LSTM` or `GRU`."""
    from tf2onnx.utils import make_name

    def add(op: str, inputs: Sequence[str], count: int = 1, **options: Any) -> Any:
        return context.make_node(op, inputs, output_count=count, **options).output

    def const(array: Any) -> str:
        return context.make_const(make_name("recurrent"), np.array(array)).output[0]

    x, first, memory, parameters = node.input[:4]
    size = context.get_shape(x)[-1]
    units = context.get_shape(first)[-1]
    op = "LSTM" if node.get_attr_value("rnn_mode") == b"lstm" else "GRU"
    gates = 4 if op == "LSTM" else 3
    biases = 1 if op == "LSTM" else 2
    rows = gates * units
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
    """Converts a reshape; of two in a row, the second reads the input of the first.

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
    alternative = node.inputs[2]
    number = np.zeros(0)
    if alternative.type == "ConstantOfShape":
        number = numpy_helper.to_array(alternative.get_attr_value("value"))
    elif alternative.type == "Expand" and alternative.inputs[0].is_const():
        number = alternative.inputs[0].get_tensor_value(as_list=False)
    shape = alternative.inputs[-1] if number.size == 1 else node
    while shape.type == "Cast":
        shape = shape.inputs[0]
    if shape.type == "Shape" and shape.input == [node.input[1]]:
        number = context.make_const(make_name("number"), number.reshape(())).output[0]
        context.replace_input(node, node.input[2], number, 2)
    node.type = "Where"


def _with_known_operations(model: Traced) -> Any:
    """Replaces updates of one index of an axis, which the converter lacks.

    They become choices between the old and the new values.
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
        if node.op == "XlaDynamicUpdateSlice":
            old, new, start = tensors.get_operation_by_name(node.name).inputs
            sizes = zip(new.shape, old.shape, strict=True)
            axis = [n for n, (new_size, size) in enumerate(sizes) if new_size == 1 != size]
            if len(axis) != 1:
                raise ValueError(f"ONNX cannot update a slice of shape {new.shape} of {old.shape}")
            at = f"{node.name}/"
            int32 = tf.int32
            index = number(f"{at}axis", axis, int32)
            zero = number(f"{at}zero", 0, int32)
            unit = number(f"{at}unit", 1, int32)
            shape = add("Shape", f"{at}shape", [node.input[0]], T=old.dtype, out_type=int32)
            gathering = {"Tparams": int32, "Tindices": int32, "Taxis": int32}
            ends = add("GatherV2", f"{at}ends", [shape, index, zero], **gathering)
            none = number(f"{at}none", np.zeros(0, "int32"), int32)
            end = add("Reshape", f"{at}end", [ends, none], T=int32, Tshape=int32)
            steps = add("Range", f"{at}steps", [zero, end, unit], Tidx=int32)
            first = add("Cast", f"{at}first", [node.input[2]], SrcT=start.dtype, DstT=int32)
            place = add("GatherV2", f"{at}place", [first, index, zero], **gathering)
            here = add("Equal", f"{at}here", [steps, place], T=int32)
            ones = [1 for _ in old.shape[axis[0] + 1 :]]
            column = number(f"{at}sizes", [-1, *ones], int32)
            mask = add("Reshape", f"{at}mask", [here, column], T=tf.bool, Tshape=int32)
            add("SelectV2", node.name, [mask, node.input[1], node.input[0]], T=old.dtype)
        else:
            result.node.add().CopyFrom(node)
    return result
