"""Graphs in ONNX form, whose products compute as a plan says."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from keras_small.runtimes.onnx_conversion import content_of, convert, node_name, tidy
from keras_small.runtimes.onnx_convolutions import (
    Convolution,
    Numbers,
    convolutions_of,
    write_integers,
)
from keras_small.runtimes.onnx_kernels import AGAIN, Inputs, MatrixWriter
from keras_small.runtimes.tracing import Traced

# The first with integers of 4 bits; all other operations mean the same as in the converter's.
_FILE_OPSET = 21
_IR_VERSION = 10


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
    """A converted graph, of which each plan makes a file.

    Args:
        traced: The traced graph.
    """

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        file = convert(traced)
        passes.ShapeInferencePass()(file)
        # As bytes, because each copy shares its constants with the message that it is made from.
        self._converted = content_of(file)

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
