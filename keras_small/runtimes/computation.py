"""The computation that a file is written from, and the outputs that the file should have."""

import contextlib
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
from keras_tnattn_runtime.trial_process import trial_process

# The outputs of a file for each example.
Outputs = Sequence[Sequence[np.ndarray]]
_MINIMUM_ERROR_ROWS = 8  # from which the errors of rows are estimated
_MAXIMUM_DIRECT_LENGTH = 1024  # for which the scores of all pairs fit in little memory
_HALF_FLOATS = ("float16", "bfloat16")
_MAXIMUM_GROUPS = 12  # of products whose errors are measured one by one
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


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


def samples_of(content: bytes, examples: Sequence[Any], suffix: str, count: int) -> list[Any]:
    """Returns some numbers of each output, and the means of its channels, for each example.

    They are `trials.samples` of a file, of which the content is given.
    """
    inputs = [_as_arrays(example, True) for example in examples]
    return trial_process.ask("samples", suffix, content, inputs, count)


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
    """Returns both in float64, with 0 for infinities that both have, such as masked classes."""
    array = array.astype("float64")
    output = output.astype("float64")
    if array.shape == output.shape:
        same = np.isinf(array) & (array == output)
        array = np.where(same, 0, array)
        output = np.where(same, 0, output)
    return array, output


@contextlib.contextmanager
def plain_computation(model: keras.Model, max_length: int | None = None) -> Iterator[None]:
    """Lets the layers of a model compute as files do, for a while.

    Layers that Keras quantized multiply floats with their integers: Keras also rounds their inputs
    to 8 bits, for which not every runtime has an operation. Layers of half floats compute in
    float32, for which every runtime has all operations. With a maximum length, a spectral
    attention has one form and not a second one for longer sequences.
    """
    changes: list[tuple[Any, str, Any]] = [
        (layer, "inputs_quantizer", None)
        for layer in flat_layers(model)
        if getattr(layer, "inputs_quantizer", None) is not None
    ]
    if max_length is not None and max_length <= _MAXIMUM_DIRECT_LENGTH:
        changes += [
            (layer, "method", "direct")
            for layer in flat_layers(model)
            if getattr(layer, "method", None) == "auto"
        ]
    changes += [
        (layer, "dtype_policy", _in_float32(layer.dtype_policy.name))
        for layer in flat_layers(model)
        if layer.compute_dtype in _HALF_FLOATS
        and not isinstance(layer.dtype_policy, keras.dtype_policies.DTypePolicyMap)
    ]
    # The constructor of a scope converts values to the dtypes of the variables.
    scope = keras.StatelessScope()
    scope.state_mapping = {
        id(v): keras.ops.cast(v, "float32") for v in model.variables if v.dtype in _HALF_FLOATS
    }
    before = [getattr(layer, name) for layer, name, _ in changes]
    try:
        for layer, name, value in changes:
            setattr(layer, name, value)
        with scope if scope.state_mapping else contextlib.nullcontext():
            yield
    finally:
        for (layer, name, _), value in zip(changes, before, strict=True):
            setattr(layer, name, value)


def _in_float32(policy: str) -> str:
    """Returns the name of a dtype policy that differs in the floats.

    Example:
        >>> _in_float32("mixed_float16"), _in_float32("int8_from_mixed_bfloat16")
        ('float32', 'int8_from_float32')
    """
    mode, mark, _ = policy.rpartition("_from_")
    return f"{mode}{mark}float32"


def resolution_of(model: keras.Model) -> float:
    """Returns the maximum share by which outputs may differ when a model is computed otherwise."""
    dtypes = {layer.compute_dtype for layer in flat_layers(model)}
    return 8 * max(2.0**-16, *(_EPSILONS.get(dtype, 0) for dtype in dtypes))


def minimum_exact(
    names: Sequence[str], error_of: Callable[[frozenset[str]], float], bound: float
) -> frozenset[str]:
    """Returns the minimum set of exact products with which the error of a file is within a bound.

    Those with the largest errors become exact first, and all if fewer are not enough. Of more than
    12 products neighbours are tried, and become exact, together, as each trial writes a file.

    Args:
        names: The names of all products that can be inexact.
        error_of: Function from the names of exact ones to the error of the file.
        bound: The largest error.
    """
    if not names or error_of(frozenset()) <= bound:
        return frozenset()
    size = -(-len(names) // _MAXIMUM_GROUPS)
    groups = [frozenset(names[n : n + size]) for n in range(0, len(names), size)]
    alone = {group: error_of(frozenset(names) - group) for group in groups}
    by_error = sorted(alone, key=alone.__getitem__, reverse=True)
    for count in range(1, len(by_error)):
        remaining_errors = [alone[group] for group in by_error[count:]]
        exact = frozenset().union(*by_error[:count])
        # Errors of different products hardly depend on each other.
        if math.hypot(*remaining_errors) <= bound and error_of(exact) <= bound:
            return exact
    return frozenset(names)
