"""Writes ONNX files whose weights stay as they are stored.

The computation is traced and converted once (`onnx_conversion.py`). A `Plan` says which of
its products compute with integers, and is chosen before the file is written; an `OnnxGraph` makes a
file of each plan. `onnx_kernels.py` has the forms of the products.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from keras_small.runtimes.computation import (
    Computation,
    Expected,
    is_fast,
    minimum_exact,
    samples_of,
)
from keras_small.runtimes.onnx_conversion import Converted, content_of, convert, node_name, tidy
from keras_small.runtimes.onnx_convolutions import (
    Convolution,
    Numbers,
    convolutions_of,
    numbers_of,
    write_integers,
)
from keras_small.runtimes.onnx_kernels import AGAIN, Inputs, MatrixWriter
from keras_small.survey.graph_names import flat_layers
from keras_small.survey.running import Runner

# The first with integers of 4 bits; all other operations mean the same as in the converter's.
_FILE_OPSET = 21
_IR_VERSION = 10
# The rows of data with which ranges are chosen, in all and at once.
_RANGE_ROWS = 128
_RANGE_ROWS_AT_ONCE = 8
# The numbers of a tensor in a row by which its range is chosen.
_SAMPLED_NUMBERS = 2**10


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the products of a file compute.

    Attributes:
        exact: The names of the matrices whose products, recurrent layers or convolutions do not
            round their inputs.
        coarse: The names of the matrices whose products round all rows of a call with one scale.
        convolutions: The names of the kernels of convolutions that compute with integers, but for
            the exact ones.
        ranges: The statistics of the numbers around these convolutions, by the names of tensors.
        slow: The names of the kernels of convolutions that would take more time with integers.
    """

    exact: frozenset[str] = frozenset()
    coarse: frozenset[str] = frozenset()
    convolutions: frozenset[str] = frozenset()
    ranges: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)
    slow: frozenset[str] = frozenset()


class OnnxFile(NamedTuple):
    """A file.

    Attributes:
        content: Its bytes.
        rounding: The names of the matrices whose products round their inputs.
        changes: The changed forms of matrices of integers, and why, by their names in reports.
    """

    content: bytes
    rounding: frozenset[str]
    changes: dict[str, str]


class OnnxGraph:
    """A converted computation, of which each plan makes a file."""

    def __init__(self, converted: Converted) -> None:
        self._traced = converted.traced
        passes.ShapeInferencePass()(converted.model)
        # As bytes, because each copy shares its constants with the message that it is made from.
        self._converted = content_of(converted.model)

    def file(self, plan: Plan) -> OnnxFile:
        """Returns the file in which products compute as a plan says."""
        model, rounding, changes = self._fill(plan)
        tidy(model, self._traced.output_names)
        names = self._traced.matrix_names
        shown = {names.get(name, name): change for name, change in changes.items()}
        return OnnxFile(content_of(model), rounding, shown)

    def convolutions(self) -> list[Convolution]:
        """Returns the convolutions that can compute with integers."""
        return self._convolutions(self._copy())

    def content_with_outputs(self, names: set[str]) -> tuple[bytes, list[str]]:
        """Returns an exact file that returns the tensors of these names, and their order."""
        model, _, _ = self._fill(Plan(exact=frozenset(self._traced.matrices)))
        tensors = [*model.graph.inputs, *(x for node in model.graph for x in node.outputs)]
        outputs = {str(x.name): x for x in tensors if x.name in names}
        model.graph.outputs[:] = outputs.values()
        return content_of(model), list(outputs)

    def _copy(self) -> ir.Model:
        return ir.from_proto(onnx.load_model_from_string(self._converted))

    def _convolutions(self, model: ir.Model) -> list[Convolution]:
        by_name = {value.name: value for value in model.graph.inputs}
        matrices = self._traced.matrices.items()
        return convolutions_of(
            model.graph, {name: (by_name[node_name(name)], matrix) for name, matrix in matrices}
        )

    def _fill(self, plan: Plan) -> tuple[ir.Model, frozenset[str], dict[str, str]]:
        """Returns a model, and `rounding` and `changes` of its `OnnxFile`, by names of tensors."""
        traced = self._traced
        model = self._copy()
        model.ir_version = _IR_VERSION
        model.opset_imports.update({"": _FILE_OPSET, "com.microsoft": 1})
        graph = model.graph
        by_name = {value.name: value for value in graph.inputs}
        writer = MatrixWriter(graph, graph.inputs[len(traced.inputs) :])
        for name, array in traced.weights.items():
            by_name[node_name(name)].replace_all_uses_with(writer.constant(array))
        convolutions = self._convolutions(model) if plan.ranges else []
        write_integers(writer, convolutions, plan.ranges, plan.exact)
        names = {by_name[node_name(name)]: name for name in traced.matrices}
        recurrent = writer.write_recurrent(names, plan.exact)
        held = {
            name: writer.write(value, traced.matrices[name], _inputs_of(plan, name))
            for value, name in names.items()
        }
        del graph.inputs[len(traced.inputs) :]
        passes.TopologicalSortPass()(model)
        passes.RemoveUnusedNodesPass()(model)
        rounding = {name for name, how in held.items() if how.rounds} | recurrent
        changes = {name: how.change for name, how in held.items() if how.change}
        for convolution in convolutions:
            name = convolution.name
            if name not in plan.exact:
                rounding.add(name)
                if convolution.scales is None:
                    is_again = name in traced.matrices
                    changes[name] = AGAIN if is_again else AGAIN.replace("again, ", "")
            elif name in changes:
                changes[name] = "floats: the error would exceed its bound"
        changes |= dict.fromkeys(recurrent, AGAIN)
        for name in plan.slow & changes.keys():
            changes[name] = "floats: integers take more time"
        return model, frozenset(rounding), changes


def _inputs_of(plan: Plan, name: str) -> Inputs:
    if name in plan.exact:
        return Inputs.FLOATS
    return Inputs.BY_CALL if name in plan.coarse else Inputs.BY_ROW


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a computation, whose exact form is checked.

    Args:
        wanted: The computation of the file.
        path: The file.
        max_error: The relative error of the outputs that products with integers may cause.

    Returns:
        The changed forms of matrices of integers in the file, and why, by their names.
    """
    converted = convert(wanted)
    graph = OnnxGraph(converted)
    expected = wanted.expected_outputs()
    plan = Plan(exact=graph.file(Plan()).rounding)
    expected.check(expected.outputs_of_file(graph.file(plan).content, ".onnx"))
    if max_error > 0 and (plan.exact or wanted.data):
        plan = choose_plan(graph, wanted, expected, max_error)
    file = graph.file(plan)
    path.write_bytes(file.content)
    return converted.traced.restored | _by_layer(file.changes, wanted)


def _by_layer(changes: Mapping[str, str], wanted: Computation) -> dict[str, str]:
    """Names kernels of floats, whose names end with those of their layers, as reports do."""
    layers = flat_layers(wanted.model)
    counts = collections.Counter(layer.name for layer in layers)
    names = {x.name: wanted.layer_names.get(id(x), x.name) for x in layers if counts[x.name] == 1}
    return {names.get(key.rpartition("/")[2], key): change for key, change in changes.items()}


def choose_plan(
    graph: OnnxGraph, wanted: Computation, expected: Expected, max_error: float
) -> Plan:
    """Returns a plan with as many products of integers as the maximum error allows.

    Args:
        graph: The graph.
        wanted: The computation of the file. With data, convolutions compute with integers, in
            ranges that suit the data, and products round rows with one scale, where it is enough
            for the data.
        expected: The outputs for the examples.
        max_error: The largest relative error of these outputs.
    """

    def error_of(plan: Plan) -> float:
        return expected.error(expected.outputs_of_file(graph.file(plan).content, ".onnx"))

    def with_exact_products(plan: Plan) -> Plan:
        names = sorted(products | plan.convolutions)
        exact = minimum_exact(
            names, lambda exact: error_of(dataclasses.replace(plan, exact=exact)), max_error
        )
        return dataclasses.replace(plan, exact=exact)

    products = graph.file(Plan()).rounding
    rows = list(few_rows(wanted.data))
    base = _with_convolutions(graph, rows)
    coarse = _coarse_products(graph, wanted, base, products, max_error)
    if coarse and error_of(dataclasses.replace(base, coarse=coarse)) <= max_error:
        base = dataclasses.replace(base, coarse=coarse)
    plan = with_exact_products(base)
    # With some of them in floats, convolutions with integers can be slow.
    if plan.exact & plan.convolutions and not _is_fast(graph, plan, rows[0]):
        plan = with_exact_products(_without_convolutions(base))
    return plan


def _with_convolutions(graph: OnnxGraph, rows: Sequence[list[np.ndarray]]) -> Plan:
    """Returns a plan whose convolutions compute with integers, if that is fast."""
    found = graph.convolutions() if rows else []
    if not found:
        return Plan()
    wanted = {str(value.name) for x in found for value in (x.source, x.end)}
    content, names = graph.content_with_outputs(wanted)
    # One row at a time, because all these tensors are in memory at once.
    single = [[x[n : n + 1] for x in arrays] for arrays in rows for n in range(len(arrays[0]))]
    samples = samples_of(content, single, ".onnx", _SAMPLED_NUMBERS)
    ranges = numbers_of([dict(zip(names, of_row, strict=True)) for of_row in samples])
    plan = Plan(convolutions=frozenset(x.name for x in found), ranges=ranges)
    return plan if _is_fast(graph, plan, rows[0]) else _without_convolutions(plan)


def _without_convolutions(plan: Plan) -> Plan:
    return dataclasses.replace(plan, convolutions=frozenset(), ranges={}, slow=plan.convolutions)


def _is_fast(graph: OnnxGraph, plan: Plan, row: list[np.ndarray]) -> bool:
    """Whether a plan takes about as little time as the same with all convolutions in floats."""
    floats = dataclasses.replace(plan, exact=plan.exact | plan.convolutions)
    return is_fast(graph.file(plan).content, graph.file(floats).content, row, ".onnx")


def _coarse_products(
    graph: OnnxGraph, wanted: Computation, plan: Plan, products: frozenset[str], bound: float
) -> frozenset[str]:
    """Returns the products whose rows can share a scale by the errors of the data's rows."""
    parts = list(few_rows(wanted.data))
    if not products or not parts:
        return frozenset()
    if any(len({x.shape[1:] for x in arrays}) > 1 for arrays in zip(*parts, strict=True)):
        return frozenset()
    # A run that is compiled keeps few outputs of layers at once.
    run = Runner(wanted.model, wanted.function, runs=_RANGE_ROWS)
    outputs = [run(keras.tree.pack_sequence_as(wanted.data[0], part)) for part in parts]
    # For the file, rows from all of the data are one call.
    expected = Expected(lambda _: _joined(outputs), [_joined(parts)])

    def error_of(fine: frozenset[str]) -> float:
        file = graph.file(dataclasses.replace(plan, coarse=products - fine))
        return expected.row_error(expected.outputs_of_file(file.content, ".onnx"))

    return products - minimum_exact(sorted(products), error_of, bound)


def _joined(parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def few_rows(batches: Sequence[Any]) -> Iterator[list[np.ndarray]]:
    """Yields few rows of inputs at a time, about 128 in all, from all batches."""
    for batch in batches:
        arrays = keras.tree.flatten(batch)
        step = max(-(-len(arrays[0]) * len(batches) // _RANGE_ROWS), 1)  # 1 of no rows
        for start in range(0, len(arrays[0]), step * _RANGE_ROWS_AT_ONCE):
            yield [array[start : start + step * _RANGE_ROWS_AT_ONCE : step] for array in arrays]
