"""Runs files by their own runtimes, and compares their outputs with those of a model."""

import functools
import math
import timeit
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.tracing import flat_layers
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.running import RUNNERS

_Run = Callable[[Tensors], list[np.ndarray]]
_CALLS, _FEW = 10, 8
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class Expected:
    """The outputs that a file should have.

    Args:
        function: What the file was written from.
        examples: Its arguments.
        resolution: By which share of one more than the largest number the others may differ.
    """

    def __init__(
        self, function: Callable[[Any], Any], examples: Sequence[Any], resolution: float = 1e-4
    ) -> None:
        self._pairs, self._resolution = [], resolution
        for example in examples:
            tensors = keras.tree.flatten(function(example))
            arrays = [np.asarray(keras.ops.convert_to_numpy(tensor)) for tensor in tensors]
            self._pairs.append((example, arrays))

    def check(self, run: Callable[[Any], list[np.ndarray]]) -> None:
        """Raises a `ValueError` if the outputs of a file differ from these."""
        for example, arrays in self._pairs:
            for output, array in zip(run(example), arrays, strict=True):
                if array.dtype.kind in "OS":
                    output, array = output == array, array == array
                array, output = _without_infinities(array, output)
                error = np.abs(output - array).max(initial=0)
                bound = self._resolution * (1 + np.abs(array).max(initial=0))
                if output.shape != array.shape or not error <= bound:
                    raise ValueError(
                        f"the file computes something else: its outputs are off by {error:.2g}"
                    )

    def error(self, run: Callable[[Any], list[np.ndarray]]) -> float:
        """Returns the largest relative error of an output over all examples, `|y' - y| / |y|`."""
        outputs = [run(example) for example, _ in self._pairs]
        errors = [0.0]
        for n, _ in enumerate(self._pairs[0][1]):
            pairs = [(arrays[n], x[n]) for (_, arrays), x in zip(self._pairs, outputs, strict=True)]
            if any(x.shape != y.shape for x, y in pairs):
                return float("inf")
            sides = (np.concatenate([x.ravel() for x in side]) for side in zip(*pairs, strict=True))
            whole, other = _without_infinities(*sides)
            errors.append(np.linalg.norm(other - whole) / (np.linalg.norm(whole) or 1.0))
        return float(np.max(errors))

    def row_error(self, run: Callable[[Any], list[np.ndarray]]) -> float:
        """Returns the root mean square of the relative errors of rows, of the worst output.

        It is infinite if an output has few rows that are not 0, which would prove nothing.
        """
        errors = [0.0]
        for example, arrays in self._pairs:
            for output, array in zip(run(example), arrays, strict=True):
                rows, others = (
                    x.reshape(x.shape[0] if x.ndim else 1, math.prod(x.shape[1:]))
                    for x in _without_infinities(array, output)
                )
                sizes = np.linalg.norm(rows, axis=1)
                shares = np.linalg.norm(others - rows, axis=1)[sizes > 0] / sizes[sizes > 0]
                errors.append(np.inf if len(shares) < _FEW else np.sqrt(np.mean(shares**2)))
        return float(np.max(errors))

    def agreement(self, run: Callable[[Any], list[np.ndarray]]) -> float | None:
        """Returns the share of outputs whose largest number is where it should be.

        It is that of the first output, or `None` if that has no numbers to choose from.
        """
        if any(arrays[0].ndim < 2 or arrays[0].shape[-1] < 2 for _, arrays in self._pairs):
            return None
        same = [run(x)[0].argmax(-1) == arrays[0].argmax(-1) for x, arrays in self._pairs]
        return float(np.concatenate([x.ravel() for x in same]).mean())


def _without_infinities(array: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both in float64, with 0 for infinities that both have, as of masked classes."""
    array, output = array.astype("float64"), output.astype("float64")
    if array.shape == output.shape:
        same = np.isinf(array) & (array == output)
        array, output = np.where(same, 0, array), np.where(same, 0, output)
    return array, output


def resolution_of(model: keras.Model) -> float:
    """Returns by which share the outputs of a model may differ when it is computed otherwise."""
    dtypes = {layer.compute_dtype for layer in flat_layers(model)}
    return 8 * max(2.0**-16, *(_EPSILONS.get(dtype, 0) for dtype in dtypes))


def run_saved_model(path: str, example: Tensors) -> list[np.ndarray]:
    import tensorflow as tf

    model = tf.saved_model.load(path)  # its signatures do not keep the weights alive
    outputs = model.serve(keras.tree.map_structure(tf.constant, example))
    return [x.numpy() for x in keras.tree.flatten(outputs)]


def runner(file: str | bytes) -> _Run:
    """Returns a function from inputs, as the model takes them, to the outputs of a file.

    It runs on one thread. The content of an ONNX file can stand for the file.
    """
    run = RUNNERS[".onnx" if isinstance(file, bytes) else Path(file).suffix](file)
    return lambda example: run(keras.tree.flatten(example))


def run_file(path: str, example: Tensors) -> list[np.ndarray]:
    """Returns the outputs for inputs as the model takes them, whatever the file calls them."""
    return runner(path)(example)


def exact_names(
    names: Collection[str],
    write: Callable[[set[str]], Any],
    error_of: Callable[[], float],
    bound: float,
) -> set[str]:
    """Writes a file whose error is within a bound; returns which of its products are exact.

    As few as possible are, those with the largest errors first, and all if fewer are not enough.
    `write` gets their names.
    """
    exact: set[str] = set()
    write(exact)
    if error_of() <= bound:
        return exact
    alone = {}
    for name in names:
        write(set(names) - {name})
        alone[name] = error_of()
    for name in sorted(alone, key=alone.__getitem__, reverse=True):
        exact.add(name)
        rest = [alone[other] for other in names if other not in exact]
        if math.hypot(*rest) <= bound:  # errors of different products hardly depend on each other
            write(exact)
            if error_of() <= bound:
                break
    return exact


def is_fast(run: _Run, other: _Run, example: Tensors) -> bool:
    """Whether a function takes at most a tenth more time than another one, called in turn."""
    times: dict[_Run, list[float]] = {run: [], other: []}
    for function in (run, other) * _CALLS:
        times[function].append(timeit.timeit(functools.partial(function, example), number=1))
    return min(times[run]) <= 1.1 * min(times[other])
