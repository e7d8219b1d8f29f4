"""Runs files by their own runtimes, and compares their outputs with those of a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.typing import Tensors


def check_outputs(
    function: Callable[[Any], Any], examples: Sequence[Any], run: Callable[[Any], list[np.ndarray]]
) -> None:
    """Compares a file's outputs with those of what it was written from.

    Raises:
        ValueError: If they differ.
    """
    for example in examples:
        expected = keras.tree.flatten(function(example))
        outputs = run(example)
        for output, tensor in zip(outputs, expected, strict=True):
            array = np.asarray(keras.ops.convert_to_numpy(tensor))
            error = np.abs(output.astype("float64") - array.astype("float64")).max(initial=0)
            bound = 1e-4 * (1 + np.abs(array).max(initial=0))
            if output.shape != array.shape or not error <= bound:
                raise ValueError(
                    f"the file computes something else: its outputs are off by {error:.2g}"
                )


def _named(names: list[str], example: Tensors) -> dict[str, Any]:
    """Returns the example as a dict whose keys are the names of the file's inputs."""
    if isinstance(example, Mapping) and set(names) <= set(example):
        return {name: example[name] for name in names}
    return dict(zip(names, keras.tree.flatten(example), strict=True))


def run_saved_model(path: str, example: Tensors) -> list[np.ndarray]:
    import tensorflow as tf

    model = tf.saved_model.load(path)  # its signatures do not keep the weights alive
    outputs = model.serve(keras.tree.map_structure(tf.constant, example))
    return [x.numpy() for x in keras.tree.flatten(outputs)]


def run_onnx(path: str, example: Tensors) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options)
    names = [tensor.name for tensor in session.get_inputs()]
    return session.run(None, _named(names, example))


def run_openvino(path: str, example: Tensors) -> list[np.ndarray]:
    import openvino

    model = openvino.Core().compile_model(path, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    names = [port.get_any_name() for port in model.inputs]
    outputs = model(_named(names, example))
    return [outputs[port] for port in model.outputs]


def run_litert(path: str, example: Tensors) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_path=path).get_signature_runner()
    names = list(run.get_input_details())
    outputs = run(**_named(names, example))
    return [outputs[name] for name in sorted(outputs)]
