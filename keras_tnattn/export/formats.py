"""Exports models of ids and other numbers as SavedModels, ONNX files and LiteRT files.

Keras' own exporters write the files. Because some conversions succeed with wrong results, each
function runs the written file on example inputs and keeps it only if the outputs equal the model's.
"""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.partial import partial_folder
from keras_tnattn.export.tracing import Traced, plain_computation, traced
from keras_tnattn.export.writing import write_archive
from keras_tnattn.typing import Tensors

# The backends whose conversion works. Keras offers more, but their tools cannot be installed, or
# they silently fix the length.
BACKENDS = {
    "SavedModel": ("tensorflow", "jax"),
    "ONNX": ("tensorflow", "torch"),
    "LiteRT": ("tensorflow",),
    "OpenVINO": ("tensorflow",),
}
# The extras of this package with the packages that a file needs, by the modules that are imported.
_EXTRAS = {
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "ai_edge_litert": "litert",
    "openvino": "openvino",
}


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    length: int | None = None,
) -> Path:
    """Writes a SavedModel with one signature, `serving_default`, for any batch size.

    Args:
        model: A model from numeric inputs to one tensor, for instance from ids `(B, L)` to
            probabilities `(B, C)`.
        path: The new folder.
        example: Inputs of the model as it takes them: an array, or a dict of arrays, with which the
            SavedModel is checked. Default: two rows of random numbers; ids are 0 and 1.
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
    example = _example(model, example)
    specs = [_specs(model, example, length)]
    # Gradients by `keras.ops.custom_gradient` cannot be converted; no served model needs any.
    jax = {"jax2tf_kwargs": {"with_gradient": False}} if keras.backend.backend() == "jax" else {}
    with _writing(Path(path), "SavedModel") as partial:
        archive = keras.export.ExportArchive()
        archive.track_and_add_endpoint("serve", model, specs, **jax)
        write_archive(archive, Path(partial))
        _check_outputs(model, [example], lambda inputs: _run_saved_model(partial, inputs))
    return Path(path)


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
) -> Path:
    """Writes an ONNX file for `onnxruntime`, `openvino`, a browser or another runtime.

    On TensorFlow the file has the weights as the model stores them: packed integers stay packed,
    and cores and factors are not multiplied. `onnxruntime` computes what depends on weights alone
    once, when it loads the file. A layer that Keras quantized to int8 does not round its inputs in
    the file.

    Args:
        model: A model from numeric inputs to one or several tensors, in float32.
        path: The new file, `.onnx`.
        example: Inputs of the model: an array, or a dict of arrays, with which the file is checked.
            On PyTorch the file accepts only inputs of these shapes; on TensorFlow it accepts any
            batch size and length. Default: two rows of random numbers; ids are 0 and 1.
        max_length: Int, the length of the longest inputs, if it is known: a spectral attention then
            takes less of the file. Default: any length.

    Returns:
        The path. This function needs the extra `onnx`.

    Raises:
        FileExistsError: If the file exists.
        ImportError: If a package is missing.
        RuntimeError: On the JAX backend, or if the model cannot be converted or the file computes
            something else than the model.

    Example:
        ```python notest
        export_onnx(model, "classifier.onnx", np.ones((2, 10), "int32"))
        ```
    """
    _check_backend("ONNX")
    _check_packages("onnx", "onnxruntime")
    example = _example(model, example)
    if keras.backend.backend() == "torch":
        model(example)  # Keras refuses to export a model that was never called
        with _writing(Path(path), "ONNX") as partial:
            signature = [_specs(model, example, fixed=True)]
            model.export(partial, format="onnx", verbose=False, input_signature=signature)
            _check_outputs(model, [example], lambda inputs: _run_onnx(partial, inputs))
        return Path(path)
    from keras_tnattn.export.onnx_file import onnx_file

    with _writing(Path(path), "ONNX") as partial, plain_computation(model, max_length):
        file = onnx_file(_traced(model, example))
        Path(partial).write_bytes(file.SerializeToString())
        _check_outputs(model, _examples(model, example), lambda x: _run_onnx(partial, x))
    return Path(path)


def export_openvino(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
) -> Path:
    """Writes an OpenVINO model: a file `.xml` and, beside it, one `.bin` with the weights.

    The weights are as the model stores them, as in `export_onnx`; OpenVINO computes what depends on
    weights alone when it compiles the model. The text takes about 250 bytes for each operation.

    Args:
        model: As in `export_onnx`.
        path: The new file, `.xml`.
        example: As in `export_onnx`.
        max_length: As in `export_onnx`.

    Returns:
        The path. This function needs the extra `openvino`.

    Raises:
        FileExistsError: If one of the files exists.
        ImportError: If a package is missing.
        RuntimeError: On other backends than TensorFlow, or if the model cannot be converted or the
            files compute something else than the model.
        ValueError: If `path` does not end with `.xml`.

    Example:
        ```python notest
        export_openvino(model, "classifier.xml", np.ones((2, 10), "int32"))
        ```
    """
    path = Path(path)
    if path.suffix != ".xml":
        raise ValueError(f"Expected a file that ends with .xml. Received: path={path}")
    _check_backend("OpenVINO")
    _check_packages("openvino", "onnx")
    binary = path.with_suffix(".bin")
    if binary.exists():
        raise FileExistsError(f"Expected a new path, because exports never overwrite: {binary}")
    from keras_tnattn.export.onnx_file import openvino_model, write_openvino

    example = _example(model, example)
    with _writing(path, "OpenVINO") as partial, plain_computation(model, max_length):
        write_openvino(openvino_model(_traced(model, example)), Path(partial))
        _check_outputs(model, _examples(model, example), lambda x: _run_openvino(partial, x))
        Path(partial).with_suffix(".bin").rename(binary)
    return path


def export_litert(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
) -> Path:
    """Writes a LiteRT file of builtin operations, for phones and small devices.

    Integers with one scale, or one for each unit, are constants of integers; everything else that
    the model computes from weights alone is computed once, before the first call. A layer that
    Keras quantized to int8 does not round its inputs in the file. A model with recurrent layers
    takes one row at a time.

    Args:
        model: A model from numeric inputs to one or several tensors, in float32.
        path: The new file, `.tflite`.
        example: As in `export_onnx`.
        max_length: As in `export_onnx`.

    Returns:
        The path. The signature `serving_default` takes inputs of any batch size and length by name.
        This function needs the extra `litert`.

    Raises:
        FileExistsError: If the file exists.
        ImportError: If a package is missing.
        RuntimeError: On the JAX and PyTorch backends, or if the model cannot be converted or the
            file computes something else than the model.

    Example:
        ```python notest
        export_litert(model, "classifier.tflite", np.ones((2, 10), "int32"))
        ```
    """
    _check_backend("LiteRT")
    _check_packages("ai_edge_litert")
    from keras_tnattn.export.litert_file import WIDENED, litert_file
    from keras_tnattn.export.narrowing import narrow_bytes

    example = _example(model, example)
    with _writing(Path(path), "LiteRT") as partial, plain_computation(model, max_length):
        graph = _traced(model, example, narrow_bytes, WIDENED)
        examples = _examples(model, example)
        if graph.has_lists:
            # LiteRT's lists, which collect the steps of a loop, have entries of one fixed size.
            graph = _traced(model, example, narrow_bytes, WIDENED, batch=1)
            examples = [keras.tree.map_structure(lambda x: x[:1], x) for x in examples]
        Path(partial).write_bytes(litert_file(graph))
        _check_outputs(model, examples, lambda x: _run_litert(partial, x))
    return Path(path)


def export_file(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
) -> Path:
    """Writes the file that the end of its name asks for, or a SavedModel if it has none.

    Args:
        model: A model from numeric inputs to tensors.
        path: The new file, `.onnx`, `.tflite` or `.xml` (OpenVINO), or the new folder of a
            SavedModel.
        example: As in `export_onnx`.
        max_length: As in `export_onnx`.

    Returns:
        The path.

    Raises:
        FileExistsError: If the file exists.
        ImportError: If a package is missing.
        RuntimeError: If the model cannot be converted, or not on this backend.
        ValueError: If the name ends with something else.

    Example:
        ```python notest
        export_file(model, "classifier.onnx")
        ```
    """
    exports = {".onnx": export_onnx, ".tflite": export_litert, ".xml": export_openvino}
    suffix = Path(path).suffix
    if suffix and suffix not in exports:
        raise ValueError(
            "Expected a file that ends with .onnx, .tflite or .xml, or a folder without a dot for "
            f"a SavedModel. Received: path={path}"
        )
    if not suffix:
        return export_saved_model(model, path, example)
    return exports[suffix](model, path, example, max_length)


def file_sizes(path: str | os.PathLike) -> dict[str, int]:
    """Returns the bytes of what an export wrote, by file: of a folder, of all files in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "model.onnx").write_bytes(b"12345")
        ...     list(file_sizes(Path(folder, "model.onnx")).values())
        [5]
    """
    path = Path(path)
    files = sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]
    if path.suffix == ".xml":
        files.append(path.with_suffix(".bin"))
    return {str(file): file.stat().st_size for file in files}


def _traced(
    model: keras.Model, example: Tensors, *options: Any, batch: int | None = None
) -> Traced:
    specs = keras.tree.map_structure(
        lambda spec: keras.InputSpec(spec.dtype, (batch, *spec.shape[1:]), name=spec.name),
        _specs(model, example),
    )
    return traced(lambda inputs: model(inputs, training=False), model.variables, specs, *options)


def _check_backend(form: str) -> None:
    backend = keras.backend.backend()
    if backend not in BACKENDS[form]:
        raise RuntimeError(
            f"Exporting to {form} works on {' and '.join(BACKENDS[form])} only: set KERAS_BACKEND="
            f"{BACKENDS[form][0]} and load the .keras file there. Received: backend={backend!r}"
        )


def _check_packages(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"Expected the package {module.replace('_', '-')}: "
                f"pip install 'keras-tnattn[{_EXTRAS[module]}]'"
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


def _inputs(model: keras.Model) -> Any:
    """Returns the symbolic inputs of a model, or `None` if it has none."""
    # Keras knows no `input` of a Sequential model that was loaded and never called symbolically.
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError, TypeError, IndexError):
        return None


def _specs(
    model: keras.Model, example: Tensors, length: int | None = None, fixed: bool = False
) -> Any:
    """Returns the specs of the model's inputs: of any batch size and length, or of the example's.

    A model without symbolic inputs takes inputs like the example, integers of any length.
    """
    inputs = _inputs(model)
    pairs = keras.tree.flatten_with_path(example)
    symbolic = [None] * len(pairs) if inputs is None else keras.tree.flatten(inputs)
    specs = []
    for (path, array), tensor in zip(pairs, symbolic, strict=True):
        shape = tuple(np.shape(array))
        name, dtype = "_".join(map(str, path)) or "inputs", np.asarray(array).dtype.name
        if tensor is not None:
            name, dtype = tensor.name, tensor.dtype
        if not fixed:
            ids = len(shape) == 2 and np.asarray(array).dtype.kind in "iu"
            free = (None,) if ids else shape[1:]
            shape = (None, *(free if tensor is None else tensor.shape[1:]))
        if length is not None:
            shape = (shape[0], length, *shape[2:])
        specs.append(keras.InputSpec(dtype=dtype, shape=shape, name=name))
    return keras.tree.pack_sequence_as(example, specs)


def _example(model: keras.Model, example: Tensors) -> Any:
    """Returns an example with the structure and the dtypes of the model's inputs."""
    inputs = _inputs(model)
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
        example = {name: example[name] for name in inputs}
    elif isinstance(example, Mapping):
        flat = keras.tree.flatten(inputs)
        by_name = [example.get(x.name) for x in flat]
        example = keras.tree.pack_sequence_as(inputs, by_name)
    return keras.tree.map_structure(lambda x, array: np.asarray(array, x.dtype), inputs, example)


def _random(rng: np.random.Generator, tensor: keras.KerasTensor) -> np.ndarray:
    shape = (2, *(size or 8 for size in tensor.shape[1:]))
    if keras.backend.is_float_dtype(tensor.dtype):
        return rng.normal(size=shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


def _examples(model: keras.Model, example: Tensors) -> list[Any]:
    """Returns the example, and one of other sizes where the sizes are free."""
    specs = keras.tree.flatten(_specs(model, example))
    arrays = keras.tree.flatten(example)
    other = []
    for spec, array in zip(specs, arrays, strict=True):
        array = np.concatenate([array, array[:1]])
        if len(spec.shape) > 1 and spec.shape[1] is None:
            array = np.concatenate([array, array[:, -1:]], axis=1)
        other.append(array)
    second = keras.tree.pack_sequence_as(example, other)
    try:
        model(second, training=False)
    except Exception:  # a model of one size, which raises errors of any class
        return [example]
    return [example, second]


def _check_outputs(
    model: keras.Model, examples: list[Any], run: Callable[[Any], list[np.ndarray]]
) -> None:
    """Compares a file's outputs with those of the model.

    Raises:
        ValueError: If they differ.
    """
    for example in examples:
        expected = keras.tree.flatten(model(example, training=False))
        outputs = run(example)
        for output, tensor in zip(outputs, expected, strict=True):
            array = keras.ops.convert_to_numpy(tensor)
            error = np.abs(output.astype("float64") - array).max(initial=0)
            bound = 1e-4 * (1 + np.abs(array).max(initial=0))
            if output.shape != array.shape or not error <= bound:
                raise ValueError(
                    f"the file computes something else: its outputs are off by {error:.2g}"
                )


def _named(names: list[str], example: Tensors) -> dict[str, Any]:
    """Returns the example as a dict whose keys are the names of the file's inputs."""
    return dict(zip(names, keras.tree.flatten(example), strict=True))


def _run_saved_model(path: str, example: Tensors) -> list[np.ndarray]:
    import tensorflow as tf

    model = tf.saved_model.load(path)  # its signatures do not keep the weights alive
    outputs = model.serve(keras.tree.map_structure(tf.constant, example))
    return [x.numpy() for x in keras.tree.flatten(outputs)]


def _run_onnx(path: str, example: Tensors) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options)
    names = [tensor.name for tensor in session.get_inputs()]
    return session.run(None, _named(names, example))


def _run_openvino(path: str, example: Tensors) -> list[np.ndarray]:
    import openvino

    model = openvino.Core().compile_model(path, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    names = [port.get_any_name() for port in model.inputs]
    outputs = model(_named(names, example))
    return [outputs[port] for port in model.outputs]


def _run_litert(path: str, example: Tensors) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_path=path).get_signature_runner()
    names = list(run.get_input_details())
    outputs = run(**_named(names, example))
    return [outputs[name] for name in sorted(outputs)]
