"""Exports models of ids and other numbers as SavedModels, ONNX files and LiteRT files.

Keras' own exporters write the files. Because some conversions succeed with wrong results, each
function runs the written file on example inputs and keeps it only if the outputs equal the model's,
those of products with integers up to a bound of their error.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import keyword
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.examples import check_numeric, example_of, examples_of, specs_of
from keras_small.runtimes.recurrent import fused_loops, loops_without_lists
from keras_small.runtimes.running import (
    Expected,
    exact_names,
    resolution_of,
    run_file,
    run_saved_model,
)
from keras_small.runtimes.tracing import (
    Traced,
    flat_layers,
    plain_computation,
    rename_for_graphs,
    trace,
)
from keras_small.storage.stand_ins import StoredMatrix
from keras_tnattn.errors import cause_of
from keras_tnattn.export.partial import partial_folder
from keras_tnattn.export.signatures import check_one_of, write_archive
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.extras import installation

# The backends whose conversion works. Keras offers more, but their tools cannot be installed, or
# they silently fix the length.
BACKENDS = {
    "SavedModel": ("tensorflow", "jax"),
    "ONNX": ("tensorflow", "torch"),
    "LiteRT": ("tensorflow",),
    "OpenVINO": ("tensorflow",),
}
# The forms of files, by the ends of their names, and the packages that they need.
_FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("SavedModel", ()),
    ".onnx": ("ONNX", ("onnx", "onnxruntime")),
    ".tflite": ("LiteRT", ("ai_edge_litert",)),
    ".xml": ("OpenVINO", ("openvino", "onnx")),
}
# The relative error of outputs that products with integers may cause.
MAX_ERROR = 0.012
LITERT_ERROR = 0.02
_MAX_ERRORS = {".onnx": MAX_ERROR, ".tflite": LITERT_ERROR}


def export_saved_model(
    model: keras.Model, path: str | os.PathLike, example: Tensors = None, length: int | None = None
) -> Path:
    """Writes a SavedModel with one signature, `serving_default`, for any batch size.

    Args:
        model: A model to one or several tensors, for instance from ids `(B, L)` to
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
    check_one_of("to SavedModel", *BACKENDS["SavedModel"])
    example = example_of(model, example)
    specs = [_with_argument_names(specs_of(model, example, length))]
    # Gradients by `keras.ops.custom_gradient` cannot be converted; no served model needs any.
    jax = {"jax2tf_kwargs": {"with_gradient": False}} if keras.backend.backend() == "jax" else {}
    with rename_for_graphs(model), _writing(Path(path), "SavedModel") as partial:
        archive = keras.export.ExportArchive()
        archive.track_and_add_endpoint("serve", model, specs, **jax)
        write_archive(archive, Path(partial), ["serve"])
        expected = Expected(_of(model), [example], resolution_of(model))
        expected.check(lambda inputs: run_saved_model(partial, inputs))
    return Path(path)


def _with_argument_names(specs: Any) -> Any:
    """Returns specs with names that TensorFlow takes: distinct identifiers, no words of Python."""
    names: list[str] = []
    for spec in keras.tree.flatten(specs):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII).lstrip("_") or "inputs"
        while name in names or keyword.iskeyword(name) or name == "self":
            name += "_"
        names.append(name)
    rest = iter(names)
    return keras.tree.map_structure(
        lambda spec: keras.InputSpec(dtype=spec.dtype, shape=spec.shape, name=next(rest)), specs
    )


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
    max_error: float = MAX_ERROR,
    data: Tensors = None,
) -> Path:
    """Writes an ONNX file for `onnxruntime`, `openvino`, a browser or another runtime.

    On TensorFlow the file has the weights as the model stores them: integers stay integers, and
    cores and factors are not multiplied. `onnxruntime` multiplies with the integers of large
    kernels and looks up those of tables (`keras_small.runtimes.onnx_kernels` has the forms); what
    else depends on weights alone it computes once, when it loads the file. A layer that Keras
    quantized to int8 does not round its inputs in the file.

    Args:
        model: A model from numeric inputs to one or several tensors, in float32.
        path: The new file, `.onnx`.
        example: Inputs of the model: an array, or a dict of arrays, with which the file is checked.
            On PyTorch the file accepts only inputs of these shapes; on TensorFlow it accepts any
            batch size and length. Default: two rows of random numbers; ids are 0 and 1.
        max_length: Int, the length of the longest inputs, if it is known: a spectral attention then
            takes less of the file. Default: any length.
        max_error: Float, the largest relative error of the outputs for the example that products
            with integers may cause, which round their inputs to 8 bits. Where it is exceeded,
            products become exact, those with the largest errors first; with 0 all are. Defaults
            to 0.012.
        data: Inputs like those that the file will get, as in `example`; up to 128 rows are used.
            Convolutions then compute with integers of 8 bits, in ranges that suit these rows, if
            they are about as fast as with floats or faster; they take less memory. Products round
            all rows of a call with one scale, which takes less time, where these rows have an
            error within the bound, too; one much larger row then spoils the others of its call.
            On TensorFlow only. Default: convolutions compute with floats, and products round each
            row with a scale of its own.

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
    batches = [] if data is None else [data]
    write_file(model, _ending_with(".onnx", path), example, max_length, max_error, batches)
    return Path(path)


def export_openvino(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
) -> Path:
    """Writes an OpenVINO model: a file `.xml` and, beside it, one `.bin` with the weights.

    The weights are as the model stores them, as in `export_onnx`; OpenVINO multiplies with the
    integers of kernels and looks up those of tables, and computes what else depends on weights
    alone when it compiles the model. The text takes about 250 bytes for each operation.

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
    write_file(model, _ending_with(".xml", path), example, max_length)
    return Path(path)


def export_litert(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
    max_error: float = LITERT_ERROR,
) -> Path:
    """Writes a LiteRT file of builtin operations, for phones and small devices.

    LiteRT multiplies with the integers of kernels (`keras_small.runtimes.litert_kernels` has the
    forms); everything else that the model computes from weights alone is computed once, before the
    first call. A layer that Keras quantized to int8 does not round its inputs in the file. A model
    with loops that collect in TensorFlow's lists, other than those of recurrent layers, takes one
    row at a time.

    Args:
        model: A model from numeric inputs to one or several tensors, in float32.
        path: The new file, `.tflite`.
        example: As in `export_onnx`.
        max_length: As in `export_onnx`.
        max_error: As in `export_onnx`; of all products, which round their inputs. Defaults to 0.02.

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
    write_file(model, _ending_with(".tflite", path), example, max_length, max_error)
    return Path(path)


def export_file(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
    max_error: float | None = None,
    data: Tensors = None,
) -> Path:
    """Writes the file that the end of its name asks for, or a SavedModel if it has none.

    Args:
        model: A model from numeric inputs to tensors.
        path: The new file, `.onnx`, `.tflite` or `.xml` (OpenVINO), or the new folder of a
            SavedModel.
        example: As in `export_onnx`.
        max_length: As in `export_onnx`.
        max_error: As in `export_onnx` and `export_litert`; other files are exact.
        data: As in `export_onnx`; other files need none.

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
    batches = [] if data is None else [data]
    write_file(model, path, example, max_length, max_error, batches)
    return Path(path)


def write_file(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    max_length: int | None = None,
    max_error: float | None = None,
    data: Sequence[Any] = (),
) -> dict[str, str]:
    """Writes a file as `export_file` does, with batches of data.

    Returns:
        The names of the matrices of integers that the file does not have as the model stores them,
        with what it has in their place, and why.
    """
    path = Path(path)
    if path.suffix not in _FORMS:
        raise ValueError(
            "Expected a file that ends with .onnx, .tflite or .xml, or a folder without a dot for "
            f"a SavedModel. Received: path={path}"
        )
    if not path.suffix:
        export_saved_model(model, path, example)
        return {}
    form = check_form(path)
    example = example_of(model, example)
    if keras.backend.backend() == "torch":
        model(example)  # Keras refuses to export a model that was never called
        with _writing(path, form) as partial:
            signature = [specs_of(model, example, fixed=True)]
            model.export(partial, format="onnx", verbose=False, input_signature=signature)
            Expected(_of(model), [example]).check(lambda inputs: run_file(partial, inputs))
        return {}
    check_numeric(model, example)
    specs, examples = specs_of(model, example), examples_of(model, example)
    batches = [example_of(model, batch) for batch in data]
    wanted = Computation(model, _of(model), specs, examples, batches)
    bound = _MAX_ERRORS.get(path.suffix, 0.0) if max_error is None else max_error
    with rename_for_graphs(model):
        return write_computation(wanted, path, max_length, bound)


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


@dataclasses.dataclass(frozen=True)
class Computation:
    """What a file computes.

    Attributes:
        model: The model whose variables and layers the function uses.
        function: A function of one structure of tensors, to tensors.
        specs: The `keras.InputSpec`s of its argument.
        examples: Arguments with which a file is checked.
        data: Arguments of which ranges of numbers are chosen.
    """

    model: keras.Model
    function: Callable[[Any], Any]
    specs: Any
    examples: Sequence[Any]
    data: Sequence[Any] = ()

    def expected_outputs(self) -> Expected:
        """Returns the outputs for the examples."""
        return Expected(self.function, self.examples)

    def trace(self, *options: Any, batch: int | None = None, **more: Any) -> Traced:
        """Traces the function; with `batch`, for inputs of so many rows."""
        specs = self.specs
        if batch is not None:
            specs = keras.tree.map_structure(
                lambda x: keras.InputSpec(x.dtype, (batch, *x.shape[1:]), name=x.name), specs
            )
        return trace(self.function, self.model, specs, *options, **more)


def write_computation(
    wanted: Computation, path: Path, max_length: int | None = None, max_error: float = 0.0
) -> dict[str, str]:
    """Writes the file that the end of its name asks for, and checks it; returns as `write_file`.

    With a `max_error` products may round their inputs to integers.
    """
    form = check_form(path)
    write = {"ONNX": _write_onnx, "LiteRT": _write_litert, "OpenVINO": _write_openvino}[form]
    try:
        with _writing(path, form) as partial, plain_computation(wanted.model, max_length):
            return write(wanted, partial, max_error)
    except RuntimeError as error:
        wide = [x.name for x in flat_layers(wanted.model) if x.compute_dtype == "float64"]
        if not wide:
            raise
        raise RuntimeError(
            f"Expected float32, as runtimes lack operations of float64: build the model anew with "
            f"dtype='float32', and set its weights. Received: {wide[-1]} of float64 ({error})"
        ) from error


def _write_onnx(wanted: Computation, path: str, max_error: float) -> dict[str, str]:
    from keras_small.runtimes.onnx_file import OnnxFile, few_rows
    from keras_small.runtimes.onnx_kernels import why_not_held

    with fused_loops(wanted.model):
        graph = wanted.trace(why_not_held=why_not_held)
    expected = wanted.expected_outputs()
    file = OnnxFile(graph)
    rounding = file.write(path)
    if rounding:
        file.write(path, rounding)
    expected.check(lambda x: run_file(path, x))
    if max_error > 0 and (rounding or wanted.data):
        kernels, write = file.calibrate(wanted.data), functools.partial(file.write, path)
        run = functools.partial(run_file, path)

        def share_scales(fine: set[str]) -> None:
            file.coarse = rounding - fine
            write()

        # Rows from all of the data in one call, if all have one shape.
        parts = list(zip(*few_rows(wanted.data), strict=True))
        if rounding and parts and all(len({x.shape[1:] for x in part}) == 1 for part in parts):
            arrays = [np.concatenate(part) for part in parts]
            rows = keras.tree.pack_sequence_as(wanted.data[0], arrays)
            error = functools.partial(Expected(wanted.function, [rows]).row_error, run)
            exact_names(rounding, share_scales, error, max_error)
        error = functools.partial(expected.error, run)
        if file.coarse and not error() <= max_error:
            file.coarse = set()
        exact = exact_names(rounding | kernels, write, error, max_error)
        # With some of them in floats, convolutions with integers can be slow.
        if exact & kernels and not file.keeps_fast(exact):
            exact_names(rounding, write, error, max_error)
    return graph.restored | file.restored


def _write_openvino(wanted: Computation, path: str, max_error: float) -> dict[str, str]:
    from keras_small.runtimes.onnx_file import openvino_model, write_openvino
    from keras_small.runtimes.onnx_kernels import why_not_held

    # The operations of OpenVINO take kernels that it does not compute from integers.
    with fused_loops(wanted.model, with_products=False):
        graph = wanted.trace(why_not_held=why_not_held)
    write_openvino(openvino_model(graph), Path(path))
    wanted.expected_outputs().check(lambda x: run_file(path, x))
    return graph.restored


def _write_litert(wanted: Computation, path: str, max_error: float) -> dict[str, str]:
    """Writes a LiteRT file whose error is within a bound, once its exact form computes the same.

    Layers restore their matrices, those with the largest errors first, until it is.
    """
    from keras_small.runtimes.litert_file import WIDENED, LitertFile, stored_bytes
    from keras_small.runtimes.litert_kernels import change_of, content_key, filter_of

    reasons: dict[int, str] = {}

    def why_not_held(matrix: StoredMatrix) -> str:
        if max_error == 0:
            return "floats: no error is allowed"
        if filter_of(matrix) is None:
            return "floats: a table, of which each call restores rows"
        return reasons.get(content_key(matrix), "")

    def run(inputs: Any) -> list[Any]:
        return run_file(path, inputs)

    trace = functools.partial(wanted.trace, stored_bytes, WIDENED, why_not_held=why_not_held)
    while True:
        examples = wanted.examples
        with loops_without_lists(wanted.model):
            graph = trace()
        if graph.has_lists:
            # LiteRT's lists, in which other loops collect, have entries of one fixed size.
            graph = trace(batch=1)
            examples = [keras.tree.map_structure(lambda x: x[:1], x) for x in examples]
        file = LitertFile(graph)
        if unread := file.write(path):
            keys = {content_key(graph.matrices[name]) for name in unread}
            reasons |= dict.fromkeys(keys, "floats: what reads it multiplies with floats only")
            continue
        expected = Expected(wanted.function, examples)
        file.write(path, graph.matrices)
        expected.check(run)
        write, error = functools.partial(file.write, path), functools.partial(expected.error, run)
        spoiling = exact_names(graph.matrices, write, error, max_error)
        if not spoiling:
            return graph.restored | change_of(graph.matrices)
        keys = {content_key(graph.matrices[name]) for name in spoiling}
        reasons |= dict.fromkeys(keys, "floats: the error would exceed its bound")


def _of(model: keras.Model) -> Callable[[Any], Any]:
    return lambda inputs: model(inputs, training=False)


def _ending_with(suffix: str, path: str | os.PathLike) -> Path:
    if Path(path).suffix != suffix:
        raise ValueError(f"Expected a file that ends with {suffix}. Received: path={path}")
    return Path(path)


def check_form(path: Path) -> str:
    """Returns the form of a file that this backend can write with the packages that are installed.

    Raises:
        ImportError: If a package is missing.
        RuntimeError: On another backend.
    """
    form, modules = _FORMS[path.suffix]
    check_one_of(f"to {form}", *BACKENDS[form])
    _check_packages(*modules)
    return form


def _check_packages(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"Expected the package {module.replace('_', '-')}. {installation(module)}"
            )


@contextlib.contextmanager
def _writing(path: Path, form: str) -> Iterator[str]:
    """Yields a temporary path that is renamed to `path` on success; explains failures.

    With it goes the `.bin` file of OpenVINO.
    """
    paths = [path.with_suffix(".bin"), path] if form == "OpenVINO" else [path]
    for existing in paths:
        if existing.exists():
            raise FileExistsError(
                f"Expected a new path, because exports never overwrite. Received: {existing}"
            )
    try:
        with partial_folder(path) as folder:
            yield str(folder / path.name)
            for written in paths:
                (folder / written.name).rename(written)
    except OSError:
        raise
    except Exception as error:  # converters raise errors of any class
        backend = keras.backend.backend()
        cause = cause_of(error) or type(error).__name__
        hint = {"jax": "Fix the length with length=, or load", "torch": "Load"}.get(backend)
        hint = f". {hint} the .keras file with KERAS_BACKEND=tensorflow" if hint else ""
        if "valid root scope name" in cause:  # of a variable, which has its name for good
            hint = (
                ". Name layers by letters, digits and underscores, a letter first, or write "
                "another kind of file"
            )
        raise RuntimeError(
            f"Could not export the model as {form} from the {backend} backend: {cause}{hint}"
        ) from error
