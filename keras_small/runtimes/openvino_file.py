"""Writes OpenVINO models, whose text is an `.xml` file and whose weights are a `.bin` file.

OpenVINO multiplies with the integers of kernels and looks up those of tables; everything else that
depends on weights alone it computes when it compiles the model. The text takes about 250 bytes for
each operation.
"""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from keras_small.runtimes.computation import Computation
from keras_small.runtimes.onnx_conversion import Converted, content_of, convert, node_name, tidy
from keras_small.storage.integer_groups import pack
from keras_small.storage.stand_ins import StoredMatrix

# Maximum entries of a matrix that takes fewer bytes as floats than as integers with their text.
_OPENVINO_MAXIMUM_FLOATS = 1024


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the two files of a computation, which are exact, and checks them.

    Returns:
        The changed forms of matrices of integers in the file, and why, by their names.
    """
    expected = wanted.expected_outputs()

    def write_in(least_bits: int) -> dict[str, str]:
        # The operations of OpenVINO take kernels that it does not compute from integers.
        converted = convert(wanted, with_products=False)
        _save(_openvino_model(converted, least_bits), path)
        expected.check(expected.outputs_of_file(path))
        return converted.traced.restored

    try:
        return write_in(4)
    except ValueError:
        # OpenVINO 2026.4 is wrong with 4 bits in loops on processors with AVX2 alone.
        return write_in(8)


def _openvino_model(converted: Converted, least_bits: int) -> Any:
    """Returns an OpenVINO model with its stored weights as constants.

    They are inputs for the converter, which computes what depends on constants alone, and leaves
    out operations that do nothing. Integers of at most 4 bits take `least_bits`.
    """
    import openvino

    # What `openvino.convert_model` calls, which also asks for consent to statistics.
    from openvino._offline_transformations import apply_moc_transformations

    traced = converted.traced
    tidy(converted.model, traced.output_names)
    result = openvino.Core().read_model(content_of(converted.model))
    apply_moc_transformations(result, cf=False)
    stored = {node_name(name): value for name, value in (traced.weights | traced.matrices).items()}
    for parameter in result.get_parameters():
        value = stored.get(parameter.get_friendly_name())
        if value is not None:
            if isinstance(value, StoredMatrix):
                new = _restore(value, least_bits)
            else:
                new = _constant(value)
            parameter.output(0).replace(new.output(0))
            result.remove_parameter(parameter)
    # The reader leaves out inputs of which nothing depends.
    read = {x.get_friendly_name(): x for x in result.get_parameters()}
    inputs = [
        read.get(x.name) or _parameter(x)
        for x in converted.model.graph.inputs
        if x.name not in stored
    ]
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


def _restore(matrix: StoredMatrix, least_bits: int) -> Any:
    """Returns OpenVINO operations that restore a matrix.

    The runtime knows them: it multiplies with the integers, or restores the matrix once.
    """
    from openvino import opset13 as ops

    if matrix.numbers.size <= _OPENVINO_MAXIMUM_FLOATS:
        return _constant(matrix.values())
    padded = matrix.padded()
    bits = least_bits if matrix.bits <= 4 else 8
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


def _save(model: Any, path: Path) -> None:
    """Writes the files `.xml` and `.bin`, the first without names and comments for people."""
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
