"""Writes ONNX files, and OpenVINO files of these, whose weights stay as they are stored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from keras_tnattn.export.tracing import Traced, as_function, quiet

# The newest that TensorFlow's converter knows.
_OPSET = 18


def onnx_file(model: Traced) -> Any:
    """Returns the ONNX model of a graph, with its stored weights as initializers."""
    from onnx import numpy_helper

    file = _converted(model)
    weights = {name.partition(":")[0]: value for name, value in model.weights.items()}
    inputs = [x for x in file.graph.input if x.name not in weights]
    for name, value in weights.items():
        file.graph.initializer.append(numpy_helper.from_array(value, name))
    del file.graph.input[:]
    file.graph.input.extend(inputs)
    return file


def openvino_model(model: Traced) -> Any:
    """Returns the OpenVINO model of a graph, with its stored weights as constants.

    They are inputs for the converter, which computes what depends on constants alone, and leaves
    out operations that do nothing.
    """
    import openvino

    # What `openvino.convert_model` calls, which also asks for consent to statistics.
    from openvino._offline_transformations import apply_moc_transformations

    result = openvino.Core().read_model(_converted(model).SerializeToString())
    apply_moc_transformations(result, cf=False)
    weights = {name.partition(":")[0]: value for name, value in model.weights.items()}
    for parameter in result.get_parameters():
        value = weights.get(parameter.get_friendly_name())
        if value is not None:
            constant = openvino.op.Constant(np.ascontiguousarray(value))
            parameter.output(0).replace(constant.output(0))
            result.remove_parameter(parameter)
    return result


def write_openvino(model: Any, path: Path) -> None:
    """Writes the files `.xml` and `.bin`, the first without what only people read."""
    import openvino

    openvino.save_model(model, path, compress_to_fp16=False)
    net = ElementTree.parse(path).getroot()
    for n, layer in enumerate(net.iter("layer")):
        ends = layer.get("type") in ("Parameter", "Result")
        if not ends:
            layer.set("name", f"{n:x}")
        for port in layer.iterfind("input/port"):
            port.attrib.pop("precision")  # that of the output that it reads
        for port in layer.iter("port"):
            port[:] = []
            if layer.get("type") != "Parameter" and port.get("names") not in _output_names(model):
                port.attrib.pop("names", None)
    for parent in list(net.iter()):
        parent.text = parent.tail = None
        for child in parent.findall("rt_info"):
            parent.remove(child)
    path.write_bytes(ElementTree.tostring(net).replace(b" />", b"/>"))


def _output_names(model: Any) -> set[str]:
    return {",".join(port.get_names()) for port in model.outputs}


def _converted(model: Traced) -> Any:
    """Converts a graph; its stored weights are inputs."""
    import tensorflow as tf
    import tf2onnx

    arguments = [*model.inputs, *model.weights]
    function = as_function(_with_known_operations(model), arguments, model.outputs)
    signature = [
        tf.TensorSpec(x.shape, x.dtype, name.partition(":")[0])
        for x, name in zip(function.inputs, arguments, strict=False)
    ]
    with quiet():
        file, _ = tf2onnx.convert.from_function(
            tf.function(lambda *tensors: function(*tensors), autograph=False),
            input_signature=signature,
            opset=_OPSET,
            custom_op_handlers={
                "FloorDiv": (_convert_quotient, []),
                "FloorMod": (_convert_remainder, []),
                "Reshape": (_convert_reshape, []),
            },
        )
    file.producer_name, file.producer_version = "keras_tnattn", ""
    file.graph.doc_string = ""
    del file.metadata_props[:]
    _merge_constants(file.graph, {})
    names = {x.name: new for x, new in zip(file.graph.output, model.output_names, strict=True)}
    _shorten(file.graph, {"": "", **names, **{x.name: x.name for x in file.graph.input}})
    file.graph.name = "model"
    return file


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


def _convert_reshape(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Converts a reshape, and reads what another one reshapes instead of its result.

    The converter would do so later, when a size of the second may be a 0, "that of the input".
    """
    from tf2onnx.onnx_opset.tensor import Reshape

    first = node.inputs[0]
    if first.type == "Reshape":
        context.replace_input(node, node.input[0], first.input[0], 0)
    Reshape.version_5(context, node)


def _with_known_operations(model: Traced) -> Any:
    """Replaces operations that the converter lacks.

    `erfc(x)` becomes `1 - erf(x)`, and an update of one index of an axis a choice between the old
    and the new values.
    """
    import tensorflow as tf

    graph = model.graph
    result = type(graph)(library=graph.library, versions=graph.versions)
    tensors = as_function(graph, [*model.inputs, *model.weights], model.outputs).graph

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
            axis = [
                n for n, (x, y) in enumerate(zip(new.shape, old.shape, strict=True)) if x == 1 != y
            ]
            if len(axis) != 1:
                raise ValueError(f"ONNX cannot update a slice of shape {new.shape} of {old.shape}")
            at, index, int32 = (
                f"{node.name}/",
                number(f"{node.name}/axis", axis, tf.int32),
                tf.int32,
            )
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
            sizes = [-1, *[1] * (len(old.shape) - axis[0] - 1)]
            column = number(f"{at}sizes", sizes, int32)
            mask = add("Reshape", f"{at}mask", [here, column], T=tf.bool, Tshape=int32)
            add("SelectV2", node.name, [mask, node.input[1], node.input[0]], T=old.dtype)
        else:
            result.node.add().CopyFrom(node)
    return result


def _merge_constants(graph: Any, names: dict[bytes, str]) -> None:
    """Keeps one of several equal constants, also of those in the graphs inside."""
    new_names = {}
    for tensor in list(graph.initializer):
        content = type(tensor)()
        content.CopyFrom(tensor)
        content.name = ""
        key = content.SerializeToString(deterministic=True)
        if key in names:
            new_names[tensor.name] = names[key]
            graph.initializer.remove(tensor)
        else:
            names[key] = tensor.name
    for node in graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
        for inner in _graphs(node):
            _merge_constants(inner, dict(names))
            _reread(inner, new_names)


def _reread(graph: Any, new_names: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [new_names.get(name, name) for name in node.input]
        for inner in _graphs(node):
            _reread(inner, new_names)


def _graphs(node: Any) -> list[Any]:
    return [
        inner
        for attribute in node.attribute
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else []))
    ]


def _shorten(graph: Any, names: dict[str, str]) -> None:
    """Renames the tensors of a graph and of the graphs inside it, which read its tensors."""

    def short(name: str) -> str:
        if name not in names:
            names[name] = f"_{len(names):x}"
        return names[name]

    del graph.value_info[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name, value.doc_string = short(value.name), ""
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [short(name) for name in node.input]
        node.output[:] = [short(name) for name in node.output]
        for inner in _graphs(node):
            _shorten(inner, names)
