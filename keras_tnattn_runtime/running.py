"""Runs models' files by their own runtimes, on one thread."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.reader import in_order

# From arrays, by name or in the order of the file's inputs, to those of its outputs.
Run = Callable[[Mapping[str, np.ndarray] | Sequence[np.ndarray]], list[np.ndarray]]


def onnx_runner(path: str | bytes) -> Run:
    """Returns a function from inputs to the outputs of a file or its content."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(path, options)
    names = [tensor.name for tensor in session.get_inputs()]
    return lambda inputs: session.run(None, _by_name(names, inputs))


def openvino_runner(path: str) -> Run:
    """Returns a function from inputs to the outputs of a file."""
    import openvino

    settings = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", settings)
    names = [port.get_any_name() for port in model.inputs]

    def run(inputs: Any) -> list[np.ndarray]:
        outputs = model(_by_name(names, inputs))
        return [outputs[port] for port in model.outputs]

    return run


def litert_runner(path: str | bytes) -> Run:
    """Returns a function from inputs to the outputs of a file or its content.

    A file that takes one row gets one row after another.
    """
    from ai_edge_litert.interpreter import Interpreter

    if isinstance(path, bytes):
        interpreter = Interpreter(model_content=path, num_threads=1)
    else:
        interpreter = Interpreter(model_path=path, num_threads=1)
    run = interpreter.get_signature_runner()
    details = run.get_input_details()
    names = in_order(details, interpreter.get_input_details())
    order = in_order(run.get_output_details(), interpreter.get_output_details())
    is_by_row = all(list(x["shape_signature"][:1]) == [1] for x in details.values())

    def call(inputs: Any) -> list[np.ndarray]:
        named = _by_name(names, inputs)
        if not is_by_row:
            outputs = run(**named)
            return [outputs[name] for name in order]
        count = len(next(iter(named.values())))
        rows = [run(**{name: x[n : n + 1] for name, x in named.items()}) for n in range(count)]
        return [np.concatenate([row[name] for row in rows]) for name in order]

    return call


def saved_model_runner(path: str) -> Callable[[Any], Any]:
    """Returns a function from inputs in the structure of the model's, to its outputs."""
    from keras_tnattn_runtime.saved_model import endpoint

    return endpoint(Path(path))


def _by_name(names: list[str], inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        if set(names) <= set(inputs):
            return {name: inputs[name] for name in names}
        inputs = inputs.values()
    return dict(zip(names, inputs, strict=True))


# By the ends of the names of files. A SavedModel is a folder, whose name ends with nothing.
RUNNERS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "": saved_model_runner,
    ".onnx": onnx_runner,
    ".tflite": litert_runner,
    ".xml": openvino_runner,
}
