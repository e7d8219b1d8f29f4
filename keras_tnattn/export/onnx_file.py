"""Writes ONNX files, and OpenVINO files of these, whose weights stay as they are stored."""

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

    They are inputs for the converter, which computes what depends on constants alone.
    """
    import openvino

    file = _converted(model)
    result = openvino.Core().read_model(file.SerializeToString())
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
        for port in layer.iter("port"):
            port[:] = []
            if layer.get("type") != "Parameter" and port.get("names") not in _output_names(model):
                port.attrib.pop("names", None)
    for parent in list(net.iter()):
        parent.text = parent.tail = None
        for child in parent.findall("rt_info"):
            parent.remove(child)
    ElementTree.ElementTree(net).write(path)


def _output_names(model: Any) -> set[str]:
    return {",".join(port.get_names()) for port in model.outputs}


def _converted(model: Traced) -> Any:
    """Converts a graph; its stored weights are inputs."""
    import tensorflow as tf
    import tf2onnx

    arguments = [*model.inputs, *model.weights]
    function = as_function(_without_erfc(model.graph), arguments, model.outputs)
    signature = [
        tf.TensorSpec(x.shape, x.dtype, name.partition(":")[0])
        for x, name in zip(function.inputs, arguments, strict=False)
    ]
    with quiet():
        file, _ = tf2onnx.convert.from_function(
            tf.function(lambda *tensors: function(*tensors), autograph=False),
            input_signature=signature,
            opset=_OPSET,
        )
    file.producer_name, file.producer_version = "keras_tnattn", ""
    file.graph.doc_string = ""
    del file.metadata_props[:]
    _merge_constants(file.graph, {})
    names = {x.name: new for x, new in zip(file.graph.output, model.output_names, strict=True)}
    _shorten(file.graph, {"": "", **names, **{x.name: x.name for x in file.graph.input}})
    file.graph.name = "model"
    return file


def _without_erfc(graph: Any) -> Any:
    """Replaces `erfc(x)`, which ONNX lacks, by `1 - erf(x)`."""
    import tensorflow as tf

    result = type(graph)(library=graph.library, versions=graph.versions)
    for node in graph.node:
        if node.op == "Erfc":
            kind = node.attr["T"].type
            one = result.node.add(op="Const", name=f"{node.name}/one")
            one.attr["dtype"].type = kind
            one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1, tf.as_dtype(kind)))
            erf = result.node.add(op="Erf", name=f"{node.name}/erf", input=node.input)
            difference = result.node.add(op="Sub", name=node.name, input=[one.name, erf.name])
            erf.attr["T"].type = difference.attr["T"].type = kind
        else:
            result.node.add().CopyFrom(node)
    return result


def _merge_constants(graph: Any, names: dict[bytes, str]) -> None:
    """Keeps one of several equal constants, also of those in the graphs inside."""
    replaced = {}
    for tensor in list(graph.initializer):
        content = type(tensor)()
        content.CopyFrom(tensor)
        content.name = ""
        key = content.SerializeToString(deterministic=True)
        if key in names:
            replaced[tensor.name] = names[key]
            graph.initializer.remove(tensor)
        else:
            names[key] = tensor.name
    for node in graph.node:
        node.input[:] = [replaced.get(name, name) for name in node.input]
        for inner in _graphs(node):
            _merge_constants(inner, dict(names))
            _reread(inner, replaced)


def _reread(graph: Any, replaced: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [replaced.get(name, name) for name in node.input]
        for inner in _graphs(node):
            _reread(inner, replaced)


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
