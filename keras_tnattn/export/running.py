"""Runs files by their own runtimes, and compares their outputs with those of a model."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.tracing import flat_layers
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.reader import in_order

_Run = Callable[[Tensors], list[np.ndarray]]
_CALLS = 10
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
                output, array = output.astype("float64"), array.astype("float64")
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
            whole, other = (
                np.concatenate([x.ravel() for x in side]).astype("float64")
                for side in zip(*pairs, strict=True)
            )
            errors.append(np.linalg.norm(other - whole) / (np.linalg.norm(whole) or 1.0))
        return float(np.max(errors))

    def agreement(self, run: Callable[[Any], list[np.ndarray]]) -> float | None:
        """Returns the share of outputs whose largest number is where it should be.

        It is that of the first output, or `None` if that has no numbers to choose from.
        """
        if any(arrays[0].ndim < 2 or arrays[0].shape[-1] < 2 for _, arrays in self._pairs):
            return None
        same = [run(x)[0].argmax(-1) == arrays[0].argmax(-1) for x, arrays in self._pairs]
        return float(np.concatenate([x.ravel() for x in same]).mean())


def resolution_of(model: keras.Model) -> float:
    """Returns by which share the outputs of a model may differ when it is computed otherwise."""
    dtypes = {layer.compute_dtype for layer in flat_layers(model)}
    return 8 * max(2.0**-16, *(_EPSILONS.get(dtype, 0) for dtype in dtypes))


def _by_name(names: list[str], example: Tensors) -> dict[str, Any]:
    """Returns the example as a dict of the names of the file's inputs, which keep its order."""
    return dict(zip(names, keras.tree.flatten(example), strict=True))


def run_saved_model(path: str, example: Tensors) -> list[np.ndarray]:
    import tensorflow as tf

    model = tf.saved_model.load(path)  # its signatures do not keep the weights alive
    outputs = model.serve(keras.tree.map_structure(tf.constant, example))
    return [x.numpy() for x in keras.tree.flatten(outputs)]


def run_onnx(path: str, example: Tensors) -> list[np.ndarray]:
    """Returns the outputs for inputs as the model takes them, whatever the file calls them."""
    return onnx_runner(path)(keras.tree.flatten(example))


def run_openvino(path: str, example: Tensors) -> list[np.ndarray]:
    return openvino_runner(path)(keras.tree.flatten(example))


def run_litert(path: str, example: Tensors) -> list[np.ndarray]:
    return litert_runner(path)(keras.tree.flatten(example))


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
    times: dict[_Run, float] = {}
    for function in (run, other) * _CALLS:
        start = time.perf_counter()
        function(example)
        duration = time.perf_counter() - start
        times[function] = min(duration, times.get(function, duration))
    return times[run] <= 1.1 * times[other]


def onnx_runner(path: str | bytes) -> _Run:
    """Returns a function from inputs to the outputs of a file or its content, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(path, options)
    names = [tensor.name for tensor in session.get_inputs()]
    return lambda example: session.run(None, _by_name(names, example))


def openvino_runner(path: str) -> _Run:
    """Returns a function from inputs to the outputs of a file, run on one thread."""
    import openvino

    settings = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", settings)
    names = [port.get_any_name() for port in model.inputs]

    def run(example: Tensors) -> list[np.ndarray]:
        outputs = model(_by_name(names, example))
        return [outputs[port] for port in model.outputs]

    return run


def litert_runner(path: str) -> _Run:
    """Returns a function from inputs to the outputs of a file, run on one thread.

    A file that takes one row gets one row after another.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path, num_threads=1)
    run = interpreter.get_signature_runner()
    details = run.get_input_details()
    inputs = in_order(details, interpreter.get_input_details())
    order = in_order(run.get_output_details(), interpreter.get_output_details())
    is_by_row = all(list(x["shape_signature"][:1]) == [1] for x in details.values())

    def call(example: Tensors) -> list[np.ndarray]:
        named = _by_name(inputs, example)
        if not is_by_row:
            outputs = run(**named)
            return [outputs[name] for name in order]
        count = len(next(iter(named.values())))
        rows = [run(**{name: x[n : n + 1] for name, x in named.items()}) for n in range(count)]
        return [np.concatenate([row[name] for row in rows]) for name in order]

    return call


# By the ends of the names of files.
RUNNERS = {".onnx": onnx_runner, ".tflite": litert_runner, ".xml": openvino_runner}
