"""Convolutions of ONNX files with integers, in the form that ONNX Runtime merges.

`DequantizeLinear` before and `QuantizeLinear` after a `Conv` make it a product of integers: uint8
with one scale for a tensor, kernels of uint8 with a scale for each channel, biases of int32. What
follows it, a normalization and ReLU, becomes part of the kernel, the bias and the range; zeros
around its inputs become padding. Operations that only choose or move numbers keep their scales.

The range of a tensor is that of the least squared error on rows of data, not that of extremes.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from keras_small.runtimes.onnx_kernels import ZERO, MatrixWriter, uses_of
from keras_small.storage.stand_ins import StoredMatrix
from keras_tnattn.typing import Shape

_RANGE_SHARES = np.linspace(1, 0.2, 25)
_SCALE_KEEPING = ("MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LARGEST_BIAS = 2**30
_MINIMUM_SCALE = 1e-30


class Range(NamedTuple):
    """The numbers of a tensor are `scale (q - zero)`, `q` of uint8."""

    scale: np.float32
    zero: np.uint8


def range_of(numbers: np.ndarray) -> Range:
    """Returns the range of 8 bits with the least squared error.

    Example:
        >>> scale, zero = range_of(np.array([0.0, 2.55, 1.02]))
        >>> round(float(scale), 6), int(zero)
        (0.01, 0)
    """
    lowest = min(0.0, float(numbers.min()))
    highest = max(0.0, float(numbers.max()))

    def error(ends: tuple[float, float]) -> float:
        scale, zero = _range(*ends)
        # Clipped to what uint8 holds, without another array.
        integers = np.clip(np.rint(numbers / scale), -float(zero), 255 - float(zero))
        return float(np.square(integers * scale - numbers).mean())

    _, highest = min(((lowest, highest * share) for share in _RANGE_SHARES), key=error)
    return _range(*min(((lowest * share, highest) for share in _RANGE_SHARES), key=error))


def _range(lowest: float, highest: float) -> Range:
    scale = np.float32(max((highest - lowest) / 255, _MINIMUM_SCALE))
    return Range(scale, np.uint8(np.rint(-lowest / scale)))


# Some numbers of a tensor in a call, and the means of its channels.
Sample = tuple[np.ndarray, np.ndarray]


class Numbers(NamedTuple):
    """Statistics of the numbers of a tensor: their range, and the mean of each channel."""

    range: Range
    means: np.ndarray


def numbers_of(samples: Sequence[Mapping[str, Sample]]) -> dict[str, Numbers]:
    """Returns the statistics of tensors, of which samples are given by name for some calls."""
    result = {}
    for name in samples[0]:
        numbers, means = zip(*(call[name] for call in samples), strict=True)
        result[name] = Numbers(range_of(np.concatenate(numbers)), np.mean(means, axis=0))
    return result


@dataclasses.dataclass
class Convolution:
    """A convolution, and the operations that become part of it.

    Attributes:
        name: The name of its kernel.
        node: The node.
        shape: The shape of its kernel, `(outputs, inputs, ...)`.
        kernel: Makes the kernel, float32 of this shape: all together take much memory.
        scales: The scales of the kernel's integers, if it has 8 bits with one for each output.
        source: Its input, before zeros are added.
        end: The output of the last operation that becomes part of it.
        pads: Its padding, or `None` to leave it as it is.
        factors, bias: The factor of each output, and the bias that is added then, `(outputs,)`.
        merged: The nodes that become part of it, with the position of the input that each changes.
    """

    name: str
    node: Any
    shape: Shape
    kernel: Callable[[], np.ndarray]
    scales: np.ndarray | None
    source: Any
    end: Any
    pads: list[int] | None
    factors: np.ndarray
    bias: np.ndarray
    merged: list[tuple[Any, int]]

    def merge(self) -> None:
        """Removes the nodes that become part of the convolution."""
        if self.pads is not None:
            self.node.replace_input_with(0, self.node.inputs[0].producer().inputs[0])
            self.node.attributes["pads"] = ir.AttrInt64s("pads", self.pads)
        for node, position in self.merged:
            source = node.inputs[position]
            node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
            node.graph.remove(node, safe=True)

    def keep_floats(self, writer: MatrixWriter) -> None:
        """Lets ONNX Runtime compute with floats also between integers.

        It would round the kernel, with one scale for all outputs. An operation that changes nothing
        prevents it, and becomes part of the convolution.
        """
        value = self.end
        if value.producer().op_type in ("Relu", "Clip"):
            value = value.producer().inputs[0]
        users = list(value.uses())
        new = writer.first("LeakyRelu", value, alpha=1.0)
        for node, position in users:
            node.replace_input_with(position, new)

    def write(self, writer: MatrixWriter, source: Range, means: np.ndarray) -> None:
        """Writes the kernel and the bias as integers, for inputs of a range and of some means.

        The bias makes up for the mean change by the integers of the kernel.
        """
        axes = tuple(range(1, len(self.shape)))
        outputs = self.shape[0]
        by_output = (outputs, *(1 for _ in axes))
        kernel = self.kernel() * self.factors.reshape(by_output).astype("float32")
        scales = np.abs(kernel).max(axis=axes) / 127
        if self.scales is not None:
            scales = self.scales * np.abs(self.factors)
        # The integers of the bias have these scales, too, times that of the inputs.
        minimum = np.abs(self.bias) / (source.scale * _LARGEST_BIAS)
        scales = np.maximum(scales, np.maximum(minimum, _MINIMUM_SCALE)).astype("float32")
        zeros = writer.constant(np.full(outputs, ZERO))
        integers = np.rint(kernel / scales.reshape(by_output)).clip(-128, 127)
        numbers = writer.constant((integers + ZERO).astype("uint8"))
        change = (kernel - integers * scales.reshape(by_output)).reshape(*kernel.shape[:2], -1)
        groups = means.reshape(-1, kernel.shape[1])
        of_output = np.repeat(groups, outputs // len(groups), axis=0)
        corrected = self.bias + (change.sum(axis=-1) * of_output).sum(axis=1)
        kernel = writer.first("DequantizeLinear", numbers, writer.constant(scales), zeros, axis=0)
        scales = scales * source.scale
        bias = writer.constant(np.rint(corrected / scales).astype("int32"))
        zeros = writer.constant(np.zeros(outputs, "int32"))
        bias = writer.first("DequantizeLinear", bias, writer.constant(scales), zeros, axis=0)
        self.node.resize_inputs(3)
        self.node.replace_input_with(1, kernel)
        self.node.replace_input_with(2, bias)


def convolutions_of(
    graph: ir.Graph, matrices: Mapping[str, tuple[Any, StoredMatrix]]
) -> list[Convolution]:
    """Returns the convolutions of a graph whose kernels and biases are not computed.

    `matrices` are by name the inputs of the graph, and the matrices for which they stand.
    """
    result = []
    for name, (value, matrix) in matrices.items():
        for node, position, view in uses_of(value, matrix):
            if node.op_type == "Conv" and position == 1 and node.graph is graph:
                firsts = view.scales.reshape(len(view.scales), -1)[:, 0]
                same = (firsts == view.scales.T).all() and (view.zeros == 128).all()
                scales = firsts if same and matrix.bits == 8 else None
                shape = view.numbers.shape
                result.append(_convolution(name, node, shape, view.values, scales))
    for node in graph:
        kernel: Any = node.inputs[1] if node.op_type == "Conv" else None
        tensor = ir.convenience.get_const_tensor(kernel) if kernel is not None else None
        if tensor is not None:
            # One of both has the path of the layer.
            names = [str(x and x.name) for x in (node, node.inputs[1])]
            name = max(names, key=lambda x: x.count("/"))
            name = name.removeprefix("PartitionedCall/").rpartition("/")[0]
            shape = tensor.numpy().shape
            result.append(_convolution(name, node, shape, tensor.numpy, None))
    return [x for x in result if x is not None]


def _convolution(
    name: str,
    node: Any,
    shape: Shape,
    kernel: Callable[[], np.ndarray],
    scales: np.ndarray | None,
) -> Convolution | None:
    outputs = shape[0]
    bias = _constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(outputs)
    if bias is None:
        return None
    result = Convolution(
        name=name,
        node=node,
        shape=shape,
        kernel=kernel,
        scales=scales,
        source=node.inputs[0],
        end=node.outputs[0],
        pads=None,
        factors=np.ones(outputs),
        bias=bias,
        merged=[],
    )
    _take_padding(result)
    value = node.outputs[0]
    rank = len(shape)
    while len(value.uses()) == 1 and not value.is_graph_output():
        follower, position = value.uses()[0]
        constants: list[Any] = [_constant(x) for x in follower.inputs if x not in (value, None)]
        kind = follower.op_type if follower.graph is node.graph else ""
        operand: Any = constants[0] if constants else None
        if kind == "Squeeze" and operand is not None and min(operand) > 1:
            rank -= len(operand)
        elif kind in ("Add", "Mul") and _is_by_channel(operand, outputs, rank):
            numbers = operand.astype("float64").ravel()
            if kind == "Mul":
                result.factors = result.factors * numbers
                result.bias = result.bias * numbers
            else:
                result.bias = result.bias + numbers
            result.merged.append((follower, position))
            result.end = follower.outputs[0]
        else:
            limits = [0.0, np.inf] if kind == "Relu" else constants
            if kind in ("Relu", "Clip") and _are_around_zero(limits):
                result.merged.append((follower, position))
                result.end = follower.outputs[0]
            break
        value = follower.outputs[0]
    return result


def _constant(value: Any) -> np.ndarray | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def _is_by_channel(numbers: np.ndarray | None, outputs: int, rank: int) -> bool:
    if numbers is None or numbers.ndim > rank:
        return False
    shape = (1,) * (rank - numbers.ndim) + numbers.shape
    return shape[1] in (1, outputs) and numbers.size == shape[1]


def _are_around_zero(limits: list[Any]) -> bool:
    """Whether two limits are constants around 0, within which a range, which holds 0, can lie."""
    return len(limits) == 2 and all(x is not None for x in limits) and limits[0] <= 0 <= limits[1]


def _take_padding(convolution: Convolution) -> None:
    """Lets a convolution add the zeros that are added before it."""
    node = convolution.source.producer()
    attributes = convolution.node.attributes
    if node is None or node.op_type != "Pad" or "auto_pad" in attributes:
        return
    sizes, *added = (_constant(x) for x in node.inputs[1:] if x is not None)
    rank = len(convolution.shape)
    mode = node.attributes.get_string("mode", "constant")
    if mode != "constant" or sizes is None or len(sizes) != 2 * rank or sizes.min() < 0:
        return
    starts = sizes[:rank]
    stops = sizes[rank:]
    if starts[:2].any() or stops[:2].any() or any(x is None or x.any() for x in added):
        return
    sizes = np.concatenate([starts[2:], stops[2:]])
    own_pads = attributes.get_ints("pads", [0 for _ in sizes])
    convolution.pads = (sizes + own_pads).tolist()
    convolution.source = node.inputs[0]


def write_integers(
    writer: MatrixWriter,
    convolutions: Sequence[Convolution],
    numbers: Mapping[str, Numbers],
    exact: Collection[str] = (),
) -> None:
    """Lets convolutions compute with integers, but for those of the names `exact`.

    `numbers` are the statistics of their sources and ends, by name.
    """
    rounded: dict[ir.Value | None, Range] = {}

    def round_to(value: Any, of: Range) -> None:
        users = list(value.uses())
        constants = [writer.constant(np.asarray(x)) for x in of]
        integers = writer.first("QuantizeLinear", value, *constants)
        new = writer.first("DequantizeLinear", integers, *constants)
        new.type = value.type
        new.shape = value.shape
        for node, position in users:
            node.replace_input_with(position, new)
        outputs = writer.graph.outputs
        outputs[:] = [new if x is value else x for x in outputs]
        rounded[new] = of

    by_node = {x.node: x for x in convolutions}
    for convolution in convolutions:
        if convolution.name not in exact:
            convolution.merge()
            round_to(convolution.node.outputs[0], numbers[convolution.end.name].range)
    for node in list(writer.graph):
        source: Any = node.inputs[0] if node.inputs else None
        if node in by_node and by_node[node].name in exact:
            if by_node[node].pads is not None:  # which ONNX Runtime merges, too
                source = source.producer().inputs[0]
            if source in rounded:
                by_node[node].keep_floats(writer)
        elif node in by_node:
            if source not in rounded:
                round_to(source, numbers[by_node[node].source.name].range)
            means = numbers[by_node[node].source.name].means
            by_node[node].write(writer, rounded[node.inputs[0]], means)
        elif node.op_type in _SCALE_KEEPING and source in rounded:
            round_to(node.outputs[0], rounded[source])
