"""Writes ONNX files whose weights stay as they are stored.

The graph is traced (`tracing.py`) and converted once; which of its products compute with integers
is decided here, before the file is written. `onnx_graph.py` makes a file of a graph and a plan, and
`onnx_kernels.py` has the forms of its products.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.computation import Computation, Expected, minimum_exact
from keras_small.runtimes.onnx_convolutions import numbers_of
from keras_small.runtimes.onnx_graph import OnnxGraph, Plan
from keras_small.runtimes.onnx_kernels import why_not_held
from keras_small.runtimes.recurrent import fused_loops
from keras_small.runtimes.trials import is_fast, outputs_of
from keras_small.survey.graph_names import flat_layers

# The rows of data with which ranges are chosen, in all and at once.
_RANGE_ROWS = 128
_RANGE_ROWS_AT_ONCE = 8


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a computation, whose exact form is checked.

    Args:
        wanted: The computation of the file.
        path: The file.
        max_error: The relative error of the outputs that products with integers may cause.

    Returns:
        The changed forms of matrices of integers in the file, and why, by their names.
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
        return expected.error(outputs_of(graph.file(plan).content, expected.examples, ".onnx"))

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
    outputs = outputs_of(content, rows, ".onnx")
    ranges = numbers_of(dict(zip(names, arrays, strict=True)) for arrays in outputs)
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
    parts = list(zip(*few_rows(wanted.data), strict=True))
    if not products or not parts:
        return frozenset()
    if any(len({x.shape[1:] for x in part}) > 1 for part in parts):
        return frozenset()
    # Rows from all of the data in one call.
    arrays = [np.concatenate(part) for part in parts]
    rows = keras.tree.pack_sequence_as(wanted.data[0], arrays)
    expected = Expected(wanted.function, [rows])

    def error_of(fine: frozenset[str]) -> float:
        file = graph.file(dataclasses.replace(plan, coarse=products - fine))
        return expected.row_error(outputs_of(file.content, expected.examples, ".onnx"))

    return products - minimum_exact(sorted(products), error_of, bound)


def few_rows(batches: Sequence[Any]) -> Iterator[list[np.ndarray]]:
    """Yields few rows of inputs at a time, about 128 in all, from all batches."""
    for batch in batches:
        arrays = keras.tree.flatten(batch)
        step = max(-(-len(arrays[0]) * len(batches) // _RANGE_ROWS), 1)  # 1 of no rows
        for start in range(0, len(arrays[0]), step * _RANGE_ROWS_AT_ONCE):
            yield [array[start : start + step * _RANGE_ROWS_AT_ONCE : step] for array in arrays]
