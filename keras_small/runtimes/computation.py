"""The computation that a file is written from: of which inputs, and the outputs it should have."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.tracing import Traced, trace
from keras_small.storage.stand_ins import StoredMatrix
from keras_small.survey.graph_names import flat_layers
from keras_small.survey.inventory import places
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.trial_process import trial_process

# The outputs of a file for each example.
Outputs = Sequence[Sequence[np.ndarray]]
_MINIMUM_ERROR_ROWS = 8  # from which the errors of rows are estimated
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}

_WORD_LAYERS = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.TextVectorization,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
)


def symbolic_inputs(model: keras.Model) -> Any:
    """Returns the symbolic inputs of a model, or `None` if it has none."""
    # Keras knows no `input` of a Sequential model that was loaded and never called symbolically.
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError, TypeError, IndexError):
        return None


def specs_of(
    model: keras.Model, example: Tensors, length: int | None = None, fixed: bool = False
) -> Any:
    """Returns the specs of the model's inputs: of any batch size and length, or of the example's.

    A model without symbolic inputs takes inputs like the example, integers of any length.
    """
    inputs = symbolic_inputs(model)
    pairs = keras.tree.flatten_with_path(example)
    symbolic = [None] * len(pairs) if inputs is None else keras.tree.flatten(inputs)
    specs = []
    for (path, array), tensor in zip(pairs, symbolic, strict=True):
        shape = tuple(np.shape(array))
        name = "_".join(map(str, path)) or "inputs"
        dtype = np.asarray(array).dtype.name
        if tensor is not None:
            name = tensor.name
            dtype = tensor.dtype
        if not fixed:
            are_ids = len(shape) == 2 and np.asarray(array).dtype.kind in "iu"
            sizes = (None,) if are_ids else shape[1:]
            if tensor is not None:
                sizes = tensor.shape[1:]
            shape = (None, *sizes)
        if length is not None:
            shape = (shape[0], length, *shape[2:])
        specs.append(keras.InputSpec(dtype=dtype, shape=shape, name=name))
    return keras.tree.pack_sequence_as(example, specs)


def example_of(model: keras.Model, example: Tensors) -> Any:
    """Returns an example with the structure and the dtypes of the model's inputs."""
    inputs = symbolic_inputs(model)
    if example is None and inputs is None:
        raise ValueError(
            f"Expected an example of the inputs of {model.name}, which does not say what they are. "
            "Received: example=None"
        )
    if inputs is None:
        return keras.tree.map_structure(np.asarray, example)
    if example is None:
        rng = np.random.default_rng(0)
        return keras.tree.map_structure(lambda x: _random(rng, x), inputs)
    if isinstance(example, Mapping) and isinstance(inputs, Mapping):
        if set(inputs) - set(example):
            raise ValueError(f"Expected inputs {list(inputs)}. Received: inputs {list(example)}")
        example = {name: example[name] for name in inputs}
    elif isinstance(example, Mapping):
        names = [x.name for x in keras.tree.flatten(inputs)]
        if set(names) - set(example):
            raise ValueError(f"Expected inputs {names}. Received: inputs {list(example)}")
        example = keras.tree.pack_sequence_as(inputs, [example[name] for name in names])
    return keras.tree.map_structure(_as_array, inputs, example)


def _as_array(tensor: keras.KerasTensor, array: Any) -> np.ndarray:
    return np.asarray(array, None if tensor.dtype == "string" else tensor.dtype)


def _random(rng: np.random.Generator, tensor: keras.KerasTensor) -> np.ndarray:
    shape = (2, *(size or 8 for size in tensor.shape[1:]))
    if tensor.dtype == "string":
        return np.full(shape, "a text")
    if keras.backend.is_float_dtype(tensor.dtype):
        return rng.normal(size=shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


def check_numeric(model: keras.Model, example: Any) -> None:
    """Raises a `ValueError` that says where to cut a model of strings or of tables of words."""
    operations = (
        model.layers if isinstance(model, keras.Sequential) else getattr(model, "operations", ())
    )
    texts = [x for x in operations if _needs_words(x)]
    names = [x.name for x in texts] or [
        x.name for x in flat_layers(model) if isinstance(x, _WORD_LAYERS)
    ]
    kinds = {np.asarray(x).dtype.kind for x in keras.tree.flatten(example)}
    if not names and not kinds & set("OSU"):
        return
    writing = [x for x in texts if getattr(x, "invert", False) or _has_strings(x, "output")]
    starts = [x for x in texts if x not in writing]
    read = {id(tensor) for x in starts for tensor in _tensors(x, "input")}
    starts += [x for x in operations if _is_input(x) and id(x.output) not in read]
    starts = [x for x in starts if not _has_strings(x, "output")]
    way = "the model from its first numbers on"
    if all(_tensors(x, "output") for x in texts) and starts:
        inputs = ", ".join(f"model.get_layer({x.name!r}).output" for x in starts)
        outputs = ", ".join(f"model.get_layer({x.name!r}).input" for x in writing)
        way = f"keras.Model([{inputs}], {f'[{outputs}]' if outputs else 'model.outputs'})"
    raise ValueError(
        "Expected numbers only, because only a SavedModel has strings and tables of words: export "
        f"{way}. Received: {' and '.join(names) or 'inputs of strings'} in {model.name}"
    )


def _needs_words(operation: Any) -> bool:
    """Whether an operation reads or makes strings, or looks something up in a table of words."""
    layers = flat_layers(operation) if isinstance(operation, keras.layers.Layer) else ()
    if any(isinstance(x, _WORD_LAYERS) for x in layers):
        return True
    kinds = ("input", "output")
    return not _is_input(operation) and any(_has_strings(operation, kind) for kind in kinds)


def _is_input(operation: Any) -> bool:
    return isinstance(operation, keras.layers.InputLayer)


def _has_strings(operation: Any, kind: str) -> bool:
    return any(tensor.dtype == "string" for tensor in _tensors(operation, kind))


def _tensors(operation: Any, kind: str) -> list[keras.KerasTensor]:
    """Returns the inputs or outputs of an operation, or none if it has several calls."""
    try:
        return keras.tree.flatten(getattr(operation, kind))
    except (AttributeError, ValueError):
        return []


def examples_of(model: keras.Model, example: Tensors) -> list[Any]:
    """Returns the example, and one of other sizes where the sizes are free."""
    specs = keras.tree.flatten(specs_of(model, example))
    arrays = keras.tree.flatten(example)
    larger = []
    for spec, array in zip(specs, arrays, strict=True):
        array = np.concatenate([array, array[:1]])
        if len(spec.shape) > 1 and spec.shape[1] is None:
            array = np.concatenate([array, array[:, -1:]], axis=1)
        larger.append(array)
    second = keras.tree.pack_sequence_as(example, larger)
    try:
        model(second, training=False)
    except Exception:  # a model of one size, which raises errors of any class
        return [example]
    return [example, second]


def common_specs(examples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, keras.InputSpec]:
    """Returns specs whose sizes are free where they differ in two examples."""
    specs = {}
    for name, array in examples[0].items():
        sizes = zip(array.shape, examples[1][name].shape, strict=True)
        shape = tuple(a if a == b else None for a, b in sizes)
        specs[name] = keras.InputSpec(array.dtype.name, shape, name=name)
    return specs


class Expected:
    """The outputs that a file should have.

    Args:
        function: The function that the file was written from.
        examples: Its arguments.
        resolution: Maximum difference of a number, as a share of one more than the largest number.
            Defaults to 1e-4.

    Attributes:
        examples: The arguments.
    """

    def __init__(
        self, function: Callable[[Any], Any], examples: Sequence[Any], resolution: float = 1e-4
    ) -> None:
        self.examples = list(examples)
        self._resolution = resolution
        self._arrays = [
            [np.asarray(keras.ops.convert_to_numpy(x)) for x in keras.tree.flatten(function(each))]
            for each in self.examples
        ]

    def outputs_of_file(
        self, file: str | os.PathLike | bytes, suffix: str | None = None
    ) -> list[list[np.ndarray]]:
        """Returns the outputs of a file for each example, as `outputs_of` does."""
        return outputs_of(file, self.examples, suffix)

    def check(self, outputs: Outputs) -> None:
        """Raises a `ValueError` if the outputs of a file differ from these."""
        for array, output in self._pairs(outputs):
            if array.dtype.kind in "OS":
                output = output == array
                array = np.ones(array.shape, bool)
            array, output = _without_infinities(array, output)
            if output.shape != array.shape:
                raise ValueError(
                    f"the file computes something else: an output of shape {output.shape} "
                    f"instead of {array.shape}"
                )
            error = np.abs(output - array).max(initial=0)
            if not error <= self._resolution * (1 + np.abs(array).max(initial=0)):
                raise ValueError(
                    f"the file computes something else: its outputs are off by {error:.2g}"
                )

    def error(self, outputs: Outputs) -> float:
        """Returns the largest relative error of an output over all examples, `|y' - y| / |y|`."""
        errors = [0.0]
        for n, _ in enumerate(self._arrays[0]):
            pairs = [(x[n], y[n]) for x, y in zip(self._arrays, outputs, strict=True)]
            if any(x.shape != y.shape for x, y in pairs):
                return float("inf")
            sides = (np.concatenate([x.ravel() for x in side]) for side in zip(*pairs, strict=True))
            expected, actual = _without_infinities(*sides)
            errors.append(np.linalg.norm(actual - expected) / (np.linalg.norm(expected) or 1.0))
        return float(np.max(errors))

    def row_error(self, outputs: Outputs) -> float:
        """Returns the root mean square of the relative errors of rows, of the worst output.

        It is infinite if an output has fewer than 8 rows that are not 0, too few for an estimate.
        """
        errors = [0.0]
        for array, output in self._pairs(outputs):
            expected, actual = (_rows(x) for x in _without_infinities(array, output))
            sizes = np.linalg.norm(expected, axis=1)
            counts = sizes > 0
            if np.count_nonzero(counts) < _MINIMUM_ERROR_ROWS:
                return float("inf")
            shares = np.linalg.norm(actual - expected, axis=1)[counts] / sizes[counts]
            errors.append(np.sqrt(np.mean(shares**2)))
        return float(np.max(errors))

    def agreement(self, outputs: Outputs) -> float | None:
        """Returns the share of outputs whose largest number is where it should be.

        It is that of the first output, or `None` if that has no numbers to choose from.
        """
        firsts = [(x[0], y[0]) for x, y in zip(self._arrays, outputs, strict=True)]
        if any(array.ndim < 2 or array.shape[-1] < 2 for array, _ in firsts):
            return None
        same = [output.argmax(-1) == array.argmax(-1) for array, output in firsts]
        return float(np.concatenate([x.ravel() for x in same]).mean())

    def _pairs(self, outputs: Outputs) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields each expected array with that of the file."""
        for arrays, of_file in zip(self._arrays, outputs, strict=True):
            yield from zip(arrays, of_file, strict=True)


def outputs_of(
    file: str | os.PathLike | bytes, examples: Sequence[Any], suffix: str | None = None
) -> list[list[np.ndarray]]:
    """Returns the outputs of a file for each example, run in a process of its own.

    Args:
        file: The file, the folder of a SavedModel, or the content of a file.
        examples: Inputs as the model takes them, whatever the file calls them.
        suffix: The end of the file's name, which a content needs. Default: that of `file`.
    """
    if not isinstance(file, bytes):
        suffix = Path(file).suffix if suffix is None else suffix
        file = str(file)
    inputs = [_as_arrays(example, bool(suffix)) for example in examples]
    answers = trial_process.ask("outputs", suffix, file, inputs)
    return [keras.tree.flatten(answer) for answer in answers]


def is_fast(content: bytes, baseline: bytes, example: Any, suffix: str) -> bool:
    """Whether a file takes at most a tenth more time than a baseline, both given as contents."""
    return trial_process.ask("is_fast", suffix, content, baseline, _as_arrays(example, True))


def _as_arrays(example: Any, is_flat: bool) -> Any:
    """Returns arrays in the structure of an example, or, for runtimes but TensorFlow, in a list."""
    if is_flat:
        return [np.asarray(x) for x in keras.tree.flatten(example)]
    return keras.tree.map_structure(np.asarray, example)


@dataclasses.dataclass(frozen=True)
class Computation:
    """The computation of a file.

    Attributes:
        model: The model whose variables and layers the function uses.
        function: A function of one structure of tensors, to tensors.
        specs: The `keras.InputSpec`s of its argument.
        examples: Arguments with which a file is checked.
        data: Arguments of which ranges of numbers are chosen.
        layer_names: The names in reports of the layers of the model, by their `id`.
    """

    model: keras.Model
    function: Callable[[Any], Any]
    specs: Any
    examples: Sequence[Any]
    data: Sequence[Any] = ()
    layer_names: Mapping[int, str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        names = {id(place.layer): place.path for place in places(self.model)}
        object.__setattr__(self, "layer_names", names)

    def expected_outputs(self) -> Expected:
        """Returns the outputs for the examples."""
        return Expected(self.function, self.examples)

    def trace(
        self,
        why_not_held: Callable[[StoredMatrix], str],
        stored_bytes: Callable[[np.ndarray], int] = lambda array: array.nbytes,
        widened: Mapping[str, str] | None = None,
        batch: int | None = None,
    ) -> Traced:
        """Traces the function as `tracing.trace` does; with `batch`, for that number of rows."""
        specs = self.specs
        if batch is not None:
            specs = keras.tree.map_structure(
                lambda x: keras.InputSpec(x.dtype, (batch, *x.shape[1:]), name=x.name), specs
            )
        return trace(
            self.function, self.model, specs, stored_bytes, widened, why_not_held, self.layer_names
        )


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0] if array.ndim else 1, math.prod(array.shape[1:]))


def _without_infinities(array: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both in float64, with 0 for infinities that both have, as of masked classes."""
    array = array.astype("float64")
    output = output.astype("float64")
    if array.shape == output.shape:
        same = np.isinf(array) & (array == output)
        array = np.where(same, 0, array)
        output = np.where(same, 0, output)
    return array, output


def resolution_of(model: keras.Model) -> float:
    """Returns the maximum share by which outputs may differ when a model is computed otherwise."""
    dtypes = {layer.compute_dtype for layer in flat_layers(model)}
    return 8 * max(2.0**-16, *(_EPSILONS.get(dtype, 0) for dtype in dtypes))


def minimum_exact(
    names: Sequence[str], error_of: Callable[[frozenset[str]], float], bound: float
) -> frozenset[str]:
    """Returns the minimum set of exact products with which the error of a file is within a bound.

    Those with the largest errors become exact first, and all if fewer are not enough.

    Args:
        names: The names of all products that can be inexact.
        error_of: Function from the names of exact ones to the error of the file.
        bound: The largest error.
    """
    if error_of(frozenset()) <= bound:
        return frozenset()
    alone = {name: error_of(frozenset(names) - {name}) for name in names}
    by_error = sorted(alone, key=alone.__getitem__, reverse=True)
    for count in range(1, len(by_error)):
        remaining_errors = [alone[name] for name in by_error[count:]]
        exact = frozenset(by_error[:count])
        # Errors of different products hardly depend on each other.
        if math.hypot(*remaining_errors) <= bound and error_of(exact) <= bound:
            return exact
    return frozenset(names)
