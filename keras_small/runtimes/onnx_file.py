"""Writes ONNX files whose weights stay as they are stored.

The graph is traced (`tracing.py`) and converted (`onnx_conversion.py`) once; a `Plan` says which
products compute with integers (`onnx_plan.py`), and `onnx_kernels.py` has the forms of these.
"""

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from keras_small.runtimes.computation import Computation
from keras_small.runtimes.onnx_conversion import content_of, convert, node_name, tidy
from keras_small.runtimes.onnx_convolutions import Convolution, convolutions_of, write_integers
from keras_small.runtimes.onnx_kernels import AGAIN, Inputs, MatrixWriter, why_not_held
from keras_small.runtimes.onnx_plan import Plan, choose_plan
from keras_small.runtimes.recurrent import fused_loops
from keras_small.runtimes.tracing import Traced, flat_layers
from keras_small.runtimes.trials import outputs_of

# The first that has integers of 4 bits, which means the same as that of the converter by all other
# operations.
_OPSET = 21
_IR_VERSION = 10


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a computation, whose exact form is checked.

    Args:
        wanted: What the file computes.
        path: The file.
        max_error: The relative error of the outputs that products with integers may cause.

    Returns:
        What the file has in place of matrices of integers, and why, by their names.
    """
    with fused_loops(wanted.model):
        traced = wanted.trace(why_not_held=why_not_held)
    graph = OnnxGraph(traced)
    expected = wanted.expected_outputs()
    plan = Plan(exact=graph.file(Plan()).rounding)
    expected.check(outputs_of(graph.file(plan).content, expected.examples, ".onnx"))
    if max_error > 0 and (plan.exact or wanted.data):
        plan = choose_plan(graph, wanted, expected, max_error)
    file = graph.file(plan)
    path.write_bytes(file.content)
    return traced.restored | _by_layer(file.changes, wanted)


def _by_layer(changes: Mapping[str, str], wanted: Computation) -> dict[str, str]:
    """Names kernels of floats, whose names end with those of their layers, as reports do."""
    layers = flat_layers(wanted.model)
    counts = collections.Counter(layer.name for layer in layers)
    names = {x.name: wanted.layer_names.get(id(x), x.name) for x in layers if counts[x.name] == 1}
    return {names.get(key.rpartition("/")[2], key): change for key, change in changes.items()}


class OnnxFile(NamedTuple):
    """A file.

    Attributes:
        content: Its bytes.
        rounding: The names of the matrices whose products round their inputs.
        changes: What it has in place of matrices of integers, and why, by what reports call them.
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
        """Returns a model, and what `OnnxFile` has of it, by the names of tensors."""
        traced = self._traced
        model = self._copy()
        model.ir_version = _IR_VERSION
        model.opset_imports.update({"": _OPSET, "com.microsoft": 1})
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
