"""Exports models of ids and other numbers as SavedModels, ONNX files and LiteRT files.

Keras' own exporters write the files. Because some conversions succeed with wrong results, each
function runs the written file on example inputs and keeps it only if the outputs equal the model's.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.partial import partial_folder
from keras_tnattn.typing import Tensors

# The backends whose conversion works. Keras offers more, but their tools cannot be installed, or
# they silently fix the length.
BACKENDS = {
    "SavedModel": ("tensorflow", "jax"),
    "ONNX": ("tensorflow", "torch"),
    "LiteRT": ("tensorflow",),
}


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors,
    length: int | None = None,
) -> Path:
    """Writes a SavedModel with one signature, `serving_default`, for any batch size.

    Args:
        model: A model from numeric inputs to one tensor, for instance from ids `(B, L)` to
            probabilities `(B, C)`.
        path: The new folder.
        example: Inputs of the model as it takes them: an array, or a dict of arrays.
        length: Int, the size of the second axis of every input. Default: any length. On JAX,
            `TNAttention`, `MPSClassifier` and `TensorizedSpectralAttention` need a fixed length.

    Returns:
        The folder, for `tf.saved_model.load`. It only needs TensorFlow.

    Raises:
        FileExistsError: If the folder exists.
        RuntimeError: On the PyTorch backend, if TensorFlow is not installed, or if the model cannot
            be converted.

    Example:
        ```python notest
        ids = np.ones((2, 10), "int32")
        export_saved_model(model, "saved_models/classifier/1", ids)
        ```
    """
    _check_backend("SavedModel")
    options = {"input_signature": _specs(model, length), "verbose": False}
    if keras.backend.backend() == "jax":
        # Gradients by `keras.ops.custom_gradient` cannot be converted; no served model needs any.
        options["jax2tf_kwargs"] = {"with_gradient": False}
    with _writing(Path(path), "SavedModel") as partial:
        model.export(partial, format="tf_saved_model", **options)
        _check_outputs(model, example, _run_saved_model(partial, example))
    return Path(path)


def export_onnx(model: keras.Model, path: str | os.PathLike, example: Tensors) -> Path:
    """Writes an ONNX file for `onnxruntime` or another runtime without Keras.

    Args:
        model: A model from numeric inputs to one tensor, in float32.
        path: The new file, `.onnx`.
        example: Inputs of the model: an array, or a dict of arrays. On PyTorch the file accepts
            only inputs of these shapes; on TensorFlow it accepts any batch size and length.

    Returns:
        The path. This function needs the extra `onnx`.

    Raises:
        FileExistsError: If the file exists.
        RuntimeError: On the JAX backend, if a package is missing, or if the model cannot be
            converted.

    Example:
        ```python notest
        export_onnx(model, "classifier.onnx", np.ones((2, 10), "int32"))
        ```
    """
    _check_backend("ONNX")
    fixed = keras.backend.backend() == "torch"
    model(example)  # Keras refuses to export a model that was never called
    with _writing(Path(path), "ONNX") as partial:
        model.export(
            partial,
            format="onnx",
            verbose=False,
            input_signature=_specs(model, like=example if fixed else None),
        )
        _check_outputs(model, example, _run_onnx(partial, example))
    return Path(path)


def export_litert(model: keras.Model, path: str | os.PathLike, example: Tensors) -> Path:
    """Writes a LiteRT file, for phones and small devices.

    Args:
        model: A model from numeric inputs to one tensor.
        path: The new file, `.tflite`.
        example: Inputs of the model as it takes them: an array, or a dict of arrays.

    Returns:
        The path. To use other shapes, call the interpreter's `resize_tensor_input` first.

    Raises:
        FileExistsError: If the file exists.
        RuntimeError: On the JAX and PyTorch backends, or if the model cannot be converted.

    Example:
        ```python notest
        export_litert(model, "classifier.tflite", np.ones((2, 10), "int32"))
        ```
    """
    _check_backend("LiteRT")
    with _writing(Path(path), "LiteRT") as partial:
        model.export(partial, format="litert", verbose=False)
        _check_outputs(model, example, _run_litert(partial, example))
    return Path(path)


def _check_backend(form: str) -> None:
    backend = keras.backend.backend()
    if backend not in BACKENDS[form]:
        raise RuntimeError(
            f"Exporting to {form} works on {' and '.join(BACKENDS[form])} only: set KERAS_BACKEND="
            f"{BACKENDS[form][0]} and load the .keras file there. Received: backend={backend!r}"
        )


@contextlib.contextmanager
def _writing(path: Path, form: str) -> Iterator[str]:
    """Yields a temporary path that is renamed to `path` on success; explains failures."""
    if path.exists():
        raise FileExistsError(
            f"Expected a new path, because exports never overwrite. Received: {path}"
        )
    try:
        with partial_folder(path) as folder:
            yield str(folder / path.name)
            (folder / path.name).rename(path)
    except OSError:
        raise
    except Exception as error:  # converters raise errors of any class
        backend = keras.backend.backend()
        hint = {"jax": "Fix the length with length=, or load", "torch": "Load"}.get(backend)
        raise RuntimeError(
            f"Could not export the model as {form} from the {backend} backend: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
            + (f". {hint} the .keras file with KERAS_BACKEND=tensorflow" if hint else "")
        ) from error


def _specs(model: keras.Model, length: int | None = None, like: Tensors = None) -> list[Any]:
    """Returns the specs of the model's inputs: of any batch size and length, or like arrays."""

    def spec(tensor: keras.KerasTensor, array: Any = None) -> keras.InputSpec:
        shape = (None, *tensor.shape[1:]) if array is None else np.shape(array)
        if length is not None:
            shape = (shape[0], length, *shape[2:])
        return keras.InputSpec(dtype=tensor.dtype, shape=shape, name=tensor.name)

    # Keras knows no `input` of a Sequential model that was loaded and never called symbolically.
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    if like is None:
        return [keras.tree.map_structure(spec, inputs)]
    return [keras.tree.map_structure(spec, inputs, like)]


def _check_outputs(model: keras.Model, example: Tensors, outputs: np.ndarray) -> None:
    expected = model.predict(example, verbose=0)
    error = np.abs(outputs - expected).max(initial=0)
    if outputs.shape != expected.shape or not error <= 1e-4 * (1 + np.abs(expected).max(initial=0)):
        raise ValueError(f"the file computes something else: its outputs are off by {error:.2g}")


def _named(names: list[str], example: Tensors) -> dict[str, Any]:
    """Returns the example as a dict whose keys are the names of the exported model's inputs."""
    if isinstance(example, Mapping):
        return {name: example[name] for name in names}
    return {names[0]: example}


def _run_saved_model(path: str, example: Tensors) -> np.ndarray:
    import tensorflow as tf

    model = tf.saved_model.load(path)  # its signatures do not keep the weights alive
    return model.serve(keras.tree.map_structure(tf.constant, example)).numpy()


def _run_onnx(path: str, example: Tensors) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [tensor.name for tensor in session.get_inputs()]
    return session.run(None, _named(names, example))[0]


def _run_litert(path: str, example: Tensors) -> np.ndarray:
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(model_path=path)
    run = interpreter.get_signature_runner()
    names = list(run.get_input_details())
    (outputs,) = run(**_named(names, example)).values()
    return outputs
