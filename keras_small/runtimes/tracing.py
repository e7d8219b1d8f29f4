"""Traces models as TensorFlow graphs in which no converter can fold the stored weights.

Converters evaluate everything that depends on constants only, and store the result: the table that
the cores of a tensor train describe, or the floats that integers stand for. A weight from which
something larger would be computed is therefore an input of the graph, and becomes a constant of the
converted file; all else that is computed from weights alone is a constant of the graph. A matrix
that a layer stores as integers is one input of the graph, as floats: a file says how its runtime
gets it.
"""

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.storage.stand_ins import StoredMatrix, standing_in, stored_matrices
from keras_small.survey.graph_names import flat_layers

# A result counts as larger than its weights beyond this factor and these bytes.
_FOLDED_FACTOR = 1.02
_FOLDED_BYTES = 64
_BYTE_OPERATIONS = ("BitwiseAnd", "BitwiseXor", "RightShift", "Sub", "Add", "AddV2", "Mul")
_PREFIX = "weight_"


@dataclasses.dataclass(frozen=True)
class Traced:
    """A model as a graph.

    Attributes:
        graph: The `GraphDef`.
        inputs: The names of the inputs' tensors.
        outputs: The names of the outputs' tensors.
        output_names: The names that a file gives to the outputs.
        weights: The values of the stored weights, by the names of their tensors.
        computed: The names of the tensors, computed from the stored weights alone, that the rest of
            the graph reads.
        matrices: The matrices of integers, by the names of the tensors that stand for them.
        matrix_names: The names in reports of these matrices, by the names of these tensors.
        restored: Why layers restore other matrices of integers, by their names in reports.
    """

    graph: Any
    inputs: list[str]
    outputs: list[str]
    output_names: list[str]
    weights: dict[str, np.ndarray]
    computed: list[str]
    matrices: dict[str, StoredMatrix]
    matrix_names: dict[str, str]
    restored: dict[str, str]

    @property
    def has_lists(self) -> bool:
        """Whether the graph has lists of tensors, in which loops collect their results."""
        functions = [function.node_def for function in self.graph.library.function]
        return any(
            node.op == "TensorListReserve"
            for nodes in (self.graph.node, *functions)
            for node in nodes
        )


def trace(
    function: Callable[..., Any],
    model: keras.Model,
    specs: Any,
    stored_bytes: Callable[[np.ndarray], int] = lambda array: array.nbytes,
    widened: Mapping[str, str] | None = None,
    why_not_held: Callable[[StoredMatrix], str] = lambda matrix: "floats",
    layer_names: Mapping[int, str] | None = None,
) -> Traced:
    """Traces a function of tensors, in the structure of `specs`, and of the variables of a model.

    Args:
        function: Takes one argument of this structure, and returns tensors.
        model: The model whose variables and layers it uses.
        specs: `keras.InputSpec`s.
        stored_bytes: How many bytes a file has for a constant.
        widened: The dtypes that the runtime does not compute with, and those to use instead.
        why_not_held: Says why a file does not hold the integers of a matrix, so that the layer
            restores it; nothing if a tensor stands for it. Default: it holds those of none.
        layer_names: The names in reports of the layers, by their `id`. Default: their names.
    """
    import tensorflow as tf

    flat = keras.tree.flatten(specs)
    variables = list({id(v): v for v in model.variables if v.dtype != "string"}.values())
    widened = {"bfloat16": "float32", **(widened or {})}
    values = [_value(v, widened) for v in variables]
    output_names: list[str] = []
    places = []
    shown_names: list[str] = []
    restored: dict[str, str] = {}
    for layer in flat_layers(model):
        of_layer = stored_matrices(layer)
        layer_name = (layer_names or {}).get(id(layer), layer.name)
        for name, matrix in of_layer.items():
            shown = layer_name if len(of_layer) == 1 else f"{layer_name}/{name}"
            if reason := why_not_held(matrix):
                restored[shown] = reason
            else:
                places.append((layer, name, matrix))
                shown_names.append(shown)
    count = len(flat) + len(places)
    names = unique_names([x.name for x in flat] + [f"{x.path}_{name}" for x, name, _ in places])

    def call(*args: Any) -> list[Any]:
        inputs = args[: len(flat)]
        tensors = args[len(flat) : count]
        weights = args[count:]
        scope = keras.StatelessScope()
        # Set here, because the constructor converts values to the dtypes of the variables.
        floats = [tf.cast(x, "float32") if x.dtype == "float16" else x for x in weights]
        scope.state_mapping = {id(v): x for v, x in zip(variables, floats, strict=True)}
        keys = [(id(layer), name) for layer, name, _ in places]
        with scope, standing_in(dict(zip(keys, tensors, strict=True))):
            result = function(keras.tree.pack_sequence_as(specs, inputs))
        output_names[:] = _names_of(result)
        return [tf.identity(x) for x in keras.tree.flatten(result)]

    kinds = [(x.shape, x.dtype) for x in flat] + [(x.shape, "float32") for _, _, x in places]
    kinds += [(x.shape, x.dtype) for x in values]
    names += [f"{_PREFIX}{n}" for n in range(len(values))]
    signature = [tf.TensorSpec(*kind, name) for kind, name in zip(kinds, names, strict=True)]
    with quiet(), _without_functions(), steps_as_rows(model):
        graph_function = tf.compat.v1.wrap_function(call, signature)
    traced = as_function(
        _with_plain_integers(_without_identity_n(graph_function.graph.as_graph_def())),
        [x.name for x in graph_function.inputs[: len(signature)]],
        [x.name for x in graph_function.outputs],
    )
    inputs = traced.inputs[:count]
    weights = traced.inputs[count : len(signature)]
    folds, stored, computed = _partition(traced, weights, values, stored_bytes)
    feeds = [*inputs, *(x for x, _ in folds), *(weights[n] for n in stored)]
    main = traced.prune(feeds, traced.outputs)
    arguments = [x.name for x in main.inputs[: len(feeds)]]
    constants = dict(zip(arguments[count:], (value for _, value in folds), strict=False))
    ends = [x.op.name for x in [*main.inputs[: len(flat)], *main.outputs]]
    tensors = arguments[len(flat) : count]
    by_name = main.graph.get_tensor_by_name  # none of those that no output depends on
    return Traced(
        with_constants(main.graph.as_graph_def(), constants, ends),
        arguments[: len(flat)],
        [x.name for x in main.outputs],
        output_names,
        dict(zip(arguments[count + len(folds) :], (values[n] for n in stored), strict=True)),
        computed,
        {
            name: matrix
            for name, (_, _, matrix) in zip(tensors, places, strict=True)
            if by_name(name).consumers()
        },
        dict(zip(tensors, shown_names, strict=True)),
        restored,
    )


@contextlib.contextmanager
def with_calls(calls: Mapping[keras.layers.Layer, Callable[..., Any]]) -> Iterator[None]:
    """Gives layers other calls for a while."""
    try:
        for layer, call in calls.items():
            layer.call = call
        yield
    finally:
        for layer in calls:
            del layer.call


def steps_as_rows(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Lets `TimeDistributed` layers compute all steps at once, as rows, for a while.

    Keras calls the layer inside once for each step, or, where their number is free, in a map that
    TensorFlow's graphs compute wrongly. A layer with states sees its steps one after another.
    """
    wrappers = [
        layer
        for layer in flat_layers(model)
        if isinstance(layer, keras.layers.TimeDistributed)
        and type(layer).call is keras.layers.TimeDistributed.call
        and not any(getattr(inner, "stateful", False) for inner in flat_layers(layer))
    ]
    return with_calls({wrapper: _rows_call(wrapper) for wrapper in wrappers})


def _rows_call(wrapper: keras.layers.TimeDistributed) -> Callable[..., Any]:
    layer = wrapper.layer
    known = inspect.signature(layer.call).parameters

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        options: dict[str, Any] = {}
        if "mask" in known and mask is not None:
            options["mask"] = _as_rows(mask)
        if "training" in known:
            options["training"] = training
        outputs = layer.call(_as_rows(inputs), **options)
        shape = keras.ops.shape(inputs)[:2]
        return keras.ops.reshape(outputs, (*shape, *keras.ops.shape(outputs)[1:]))

    return call


def _as_rows(tensor: Any) -> Any:
    """Makes rows `(B T, ...)` of steps `(B, T, ...)`."""
    return keras.ops.reshape(tensor, (-1, *keras.ops.shape(tensor)[2:]))


def as_function(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Returns a concrete function of a `GraphDef`, from and to the tensors of these names."""
    import tensorflow as tf

    with quiet():
        imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    by_name = imported.graph.get_tensor_by_name
    return imported.prune([by_name(name) for name in inputs], [by_name(name) for name in outputs])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides the logs of converters, which warn of a way to wrap graphs that has no successor.

    tf2onnx also logs parts that it could not simplify as errors; its files are checked.
    """
    loggers = [logging.getLogger(name) for name in ("root", "tensorflow", "absl", "tf2onnx")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL if logger.name == "tf2onnx" else logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _without_functions() -> Iterator[None]:
    """Lets a graph have the operations of compiled functions, and not their calls.

    Keras compiles convolutions in groups on a CPU, and ONNX has no calls.
    """
    import tensorflow as tf

    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(eagerly)


def _without_identity_n(graph: Any) -> Any:
    """Removes the operation that ties tensors of inputs and of weights together.

    TensorFlow adds it where a function has a gradient of its own.
    """
    sources: dict[str, str] = {}
    for node in graph.node:
        if node.op == "IdentityN":
            names = [f"{node.name}:{n}" if n else node.name for n in range(len(node.input))]
            sources |= dict(zip(names, node.input, strict=True))
            sources[f"{node.name}:0"] = node.input[0]
    for node in graph.node:
        for n, name in enumerate(node.input):
            while name in sources:
                name = sources[name]
            node.input[n] = name
    return graph


def _with_plain_integers(graph: Any) -> Any:
    """Replaces operations on bytes, which most runtimes lack, by those of int32.

    `x & (2^n - 1)` becomes a remainder, a shift a division that rounds down.
    """
    import tensorflow as tf

    result = type(graph)(library=graph.library, versions=graph.versions)
    nodes = {node.name: node for node in graph.node}
    int32 = tf.int32.as_datatype_enum

    def cast(name: str, source: str, old: int, new: int) -> str:
        node = result.node.add(op="Cast", name=name, input=[source])
        node.attr["SrcT"].type = old
        node.attr["DstT"].type = new
        return name

    def binary(op: str, name: str, first: str, second: str | int) -> str:
        if isinstance(second, int):
            number = result.node.add(op="Const", name=f"{name}_right")
            number.attr["dtype"].type = int32
            number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(second, tf.int32))
            second = number.name
        result.node.add(op=op, name=name, input=[first, second]).attr["T"].type = int32
        return name

    for node in graph.node:
        kind = node.attr["T"].type if node.op in _BYTE_OPERATIONS else None
        if kind is None or tf.as_dtype(kind) not in (tf.int8, tf.uint8):
            result.node.add().CopyFrom(node)
            continue
        name = f"{node.name}/wide"
        inputs = [cast(f"{name}_{n}", x, kind, int32) for n, x in enumerate(node.input)]
        if node.op in ("BitwiseAnd", "RightShift"):
            source = nodes[node.input[1].partition(":")[0]]
            while source.op == "Cast":
                source = nodes[source.input[0].partition(":")[0]]
            value = int(tf.make_ndarray(source.attr["value"].tensor))
            # Made positive first, because runtimes round quotients of negative numbers differently.
            positive = binary("AddV2", f"{name}_positive", inputs[0], 256)
            if node.op == "BitwiseAnd":
                binary("FloorMod", name, positive, value + 1)
            else:
                quotient = binary("FloorDiv", f"{name}_quotient", positive, 2**value)
                binary("Sub", name, quotient, 256 >> value)
        else:
            binary(node.op, name, *inputs)
        cast(node.name, name, int32, kind)
    return result


def unique_names(names: Sequence[str]) -> list[str]:
    """Returns names in which only letters, digits and underscores occur, each once.

    Example:
        >>> unique_names(["ids", "a/b", "a_b"])
        ['ids', 'a_b', 'a_b_']
    """
    result: list[str] = []
    for name in names:
        clean = "".join(c if c.isalnum() else "_" for c in name or "input")
        while clean in [*result, "self"]:  # which no keyword of LiteRT's runner can be
            clean += "_"
        result.append(clean)
    return result


def _names_of(result: Any) -> list[str]:
    flat = keras.tree.flatten(result)
    if isinstance(result, Mapping) and len(result) == len(flat):
        return unique_names(sorted(result))
    return [f"output_{n}" for n in range(len(flat))]


def _value(variable: keras.Variable, widened: Mapping[str, str]) -> np.ndarray:
    value = np.asarray(keras.ops.convert_to_numpy(variable))
    return value.astype(widened.get(value.dtype.name, value.dtype))


def _partition(
    function: Any,
    weights: Sequence[Any],
    values: Sequence[np.ndarray],
    stored_bytes: Callable[[np.ndarray], int],
) -> tuple[list[tuple[Any, np.ndarray]], list[int], list[str]]:
    """Returns tensors to fold with their values, and the positions of the weights to store.

    The third result are the names of the tensors that are computed from the weights to store.

    It is decided for all weights together from which some tensor is computed.
    """
    import tensorflow as tf

    sources: dict[str, frozenset[int]] = {x.name: frozenset([n]) for n, x in enumerate(weights)}
    derived: dict[str, Any] = {}  # the tensors of weights alone that the inputs' part reads
    for op in function.graph.get_operations():
        if op.type == "Placeholder":
            continue
        arguments = [x for x in op.inputs if x.name in sources]
        impure = op.op_def.is_stateful or op.control_inputs or op.type.endswith("While")
        if not impure and len(arguments) == len(op.inputs):
            of_op = frozenset().union(*(sources[x.name] for x in arguments))
            sources |= {x.name: of_op for x in op.outputs}
        else:
            derived |= {x.name: x for x in arguments if sources[x.name]}
    derived |= {x.name: x for x in function.outputs if sources.get(x.name)}
    if not derived:
        return [], [], []
    evaluate = function.prune(list(weights), list(derived.values()))
    results = dict(
        zip(derived, (x.numpy() for x in evaluate(*map(tf.constant, values))), strict=True)
    )
    constants: list[tuple[Any, np.ndarray]] = []
    stored: list[int] = []
    computed: list[str] = []
    for group in _join([sources[name] for name in derived]):
        names = [name for name in derived if sources[name] <= group]
        size = sum(stored_bytes(results[name]) for name in names)
        if size <= _FOLDED_FACTOR * sum(stored_bytes(values[n]) for n in group) + _FOLDED_BYTES:
            constants += [(derived[name], results[name]) for name in names]
        else:
            stored += sorted(group)
            computed += names
    return constants, stored, computed


def _join(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Unites sets that share an element."""
    result: list[frozenset[int]] = []
    for new in sets:
        overlapping = [old for old in result if old & new]
        result = [old for old in result if not old & new]
        result.append(new.union(*overlapping))
    return result


def with_constants(graph: Any, constants: Mapping[str, np.ndarray], ends: list[str]) -> Any:
    """Turns placeholders into constants, and leaves out nodes that no end depends on."""
    import tensorflow as tf

    with quiet():
        graph = tf.compat.v1.graph_util.extract_sub_graph(graph, ends)
    by_node = {name.partition(":")[0]: value for name, value in constants.items()}
    for node in graph.node:
        if node.op == "Placeholder" and node.name in by_node:
            value = by_node[node.name]
            node.op = "Const"
            node.attr.pop("shape", None)
            node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return graph
