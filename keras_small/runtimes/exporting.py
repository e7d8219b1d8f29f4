"""Writes Keras models as files for other runtimes, and tries each file before it gets its name."""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.asked.inputs import example_of, examples_of, specs_of
from keras_small.runtimes.computation import Computation, plain_computation
from keras_small.storage.sizes import byte_count
from keras_small.storage.stand_ins import stored_matrices
from keras_small.survey.graph_names import flat_layers, rename_for_graphs
from keras_tnattn.checks import check_backend_among
from keras_tnattn.errors import cause_of
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.folders import partial_folder
from keras_tnattn_runtime.layout import file_sizes

# A file counts as larger than its model beyond this factor of the bytes of the weights, plus the
# bytes of operations and names.
_SIZE_FACTOR = 1.25
_GRAPH_BYTES = 20_000

_WORD_LAYERS = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.TextVectorization,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
)


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of files.

    Attributes:
        name: The name that users know.
        runtime: The runtime of `compress(for_runtime=...)` that has its formats.
        packages: The packages that writing and trying a file needs.
        writers: The modules of `keras_small.runtimes` with a function `write`, by backend. Keras
            offers more, but their tools cannot be installed, or they silently fix the length.
        max_error: The default maximum relative error that products with integers may cause.
    """

    name: str
    runtime: str
    packages: tuple[str, ...]
    writers: Mapping[str, str]
    max_error: float = 0.0

    def writer(self) -> Callable[[Any, Path, float], dict[str, str]]:
        """Returns the function that writes the file of a computation on this backend."""
        module = self.writers[keras.backend.backend()]
        return importlib.import_module(f"keras_small.runtimes.{module}").write


FORMS = {
    "": Form(
        "SavedModel",
        runtime="onnxruntime",
        packages=("tensorflow",),
        writers={"tensorflow": "keras_file", "jax": "keras_file"},
    ),
    ".onnx": Form(
        "ONNX",
        runtime="onnxruntime",
        packages=("onnx", "onnxruntime"),
        writers={"tensorflow": "onnx_file", "torch": "keras_file"},
        max_error=0.012,
    ),
    ".tflite": Form(
        "LiteRT",
        runtime="litert",
        packages=("ai_edge_litert",),
        writers={"tensorflow": "litert_file"},
        max_error=0.02,
    ),
    ".xml": Form(
        "OpenVINO",
        runtime="openvino",
        packages=("openvino", "onnx"),
        writers={"tensorflow": "openvino_file"},
    ),
}


def form_of(path: Path) -> Form:
    """Returns the form of a new file, which this backend and the installed packages can write.

    Raises:
        ImportError: If a package is missing.
        RuntimeError: On another backend.
        ValueError: If the file's name ends with something else.
    """
    if path.suffix not in FORMS:
        raise ValueError(
            "Expected a file that ends with .onnx, .tflite or .xml, or a folder without a dot for "
            f"a SavedModel. Received: path={path}"
        )
    form = FORMS[path.suffix]
    check_backend_among(f"to {form.name}", *form.writers)
    for module in form.packages:
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"Expected the package {module.replace('_', '-')}. {installation(module)}"
            )
    return form


def export(
    model: Any,
    path: str | os.PathLike,
    example: Tensors = None,
    length: int | None = None,
    max_error: float | None = None,
) -> Path:
    """Writes a Keras model as a file for another runtime, or as a SavedModel.

    The end of the name says which: `.onnx` (ONNX Runtime, OpenVINO, browsers), `.tflite` (LiteRT,
    of builtin operations only), `.xml` (OpenVINO, with a `.bin` file beside it), or none (the
    folder of a SavedModel with one signature, `serving_default`, which needs only TensorFlow).

    On TensorFlow the files have the weights as the model stores them: integers stay integers, and
    cores and factors are not multiplied. Runtimes multiply with the integers of large kernels and
    look up those of tables; what else depends on weights alone they compute once, when they load
    the file. A layer that Keras quantized to int8 does not round its inputs in the file.

    Each file is run by its runtime, in a process of its own, and gets its name only if the outputs
    equal the model's, those of products with integers up to `max_error`.

    Args:
        model: A Keras model, or the `CompressionResult` of `compress`, whose costs in the runtime
            are then measured and printed, as `CompressionResult.export` says. Strings and tables of
            words can only be in a SavedModel.
        path: The new file, `.onnx`, `.tflite` or `.xml`, or the new folder of a SavedModel.
        example: Inputs of the model: an array, or a dict of arrays, with which the file is checked.
            On PyTorch the file accepts only inputs of these shapes; on TensorFlow it accepts any
            batch size and length, but for loops that LiteRT can only run row by row. Default: two
            rows of random numbers; ids are 0 and 1.
        length: Int, the length of the inputs, their second axis: the only one of a SavedModel, and
            the longest of other files, whose spectral attentions then take less space. Default: any
            length. On JAX, `TNAttention`, `MPSClassifier` and `TensorizedSpectralAttention` need
            one.
        max_error: Float, the largest relative error of the outputs for the example that products
            with integers may cause, which round their inputs to 8 bits. Where it is exceeded,
            products become exact, those with the largest errors first; with 0 all are. Default:
            0.012 in `.onnx` and 0.02 in `.tflite` files; others are exact.

    Returns:
        The path.

    Raises:
        FileExistsError: If the file exists.
        ImportError: If a package of the extras `onnx`, `litert` or `openvino` is missing.
        RuntimeError: If the model cannot be converted, or not on this backend, or the file computes
            something else than the model or crashes its runtime.
        TypeError: If `model` is something else.
        ValueError: If the name ends with something else, or the model reads strings.

    Example:
        ```python notest
        keras_small.export(model, "classifier.onnx", np.ones((2, 10), "int32"))
        ```
    """
    if isinstance(model, keras.Model):
        write_file(model, path, example, length, max_error)
        note = size_note(model, path)
        if note:
            print(f"note: {note}")
        return Path(path)
    if not callable(getattr(model, "export", None)) or isinstance(model, keras.layers.Layer):
        raise TypeError(
            "Expected a Keras model or the result of compress; keras.models.load_model and "
            f"keras_small.load load files. Received: model={model!r}"
        )
    return model.export(path, example=example, length=length, max_error=max_error)


def write_file(
    model: keras.Model,
    path: str | os.PathLike,
    example: Tensors = None,
    length: int | None = None,
    max_error: float | None = None,
    data: Sequence[Any] = (),
) -> dict[str, str]:
    """Writes a file as `export` does, with batches of data.

    Args:
        model: As in `export`.
        path: As in `export`.
        example: As in `export`.
        length: As in `export`.
        max_error: As in `export`.
        data: Batches of inputs like those that the file will get, for ONNX files on TensorFlow; up
            to 128 rows are used. Convolutions then compute with integers of 8 bits, in ranges that
            suit these rows, if they are about as fast as with floats or faster. Products round all
            rows of a call with one scale, which takes less time, where these rows have an error
            within the bound, too; one much larger row then spoils the others of its call. Default:
            convolutions compute with floats, and products round each row with its own scale.

    Returns:
        The changed forms of matrices of integers in the file, and why, by the paths of their
        layers.
    """
    path = Path(path)
    form = form_of(path)
    example = example_of(model, example)
    if form is not FORMS[""]:
        _check_numeric(model, example)
    on_torch = keras.backend.backend() == "torch"
    if on_torch:
        model(example)  # Keras refuses to export a model that was never called
    only_length = length if form is FORMS[""] else None
    wanted = Computation(
        model,
        lambda inputs: model(inputs, training=False),
        specs_of(model, example, only_length, fixed=on_torch),
        [example] if on_torch or form is FORMS[""] else examples_of(model, example),
        [example_of(model, batch) for batch in data],
    )
    return write_computation(wanted, path, length, max_error)


def _check_numeric(model: keras.Model, example: Any) -> None:
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


def write_computation(
    wanted: Computation,
    path: Path,
    length: int | None = None,
    max_error: float | None = None,
) -> dict[str, str]:
    """Writes the file that the end of its name asks for, and checks it; returns as `write_file`."""
    form = form_of(path)
    bound = form.max_error if max_error is None else max_error
    write = form.writer()
    with rename_for_graphs(wanted.model), _new_files(path, form) as partial:
        # SavedModels have all operations of a model.
        if form is FORMS[""] or keras.backend.backend() == "torch":
            return write(wanted, partial, bound)
        with plain_computation(wanted.model, length), _explained(wanted.model):
            return write(wanted, partial, bound)


def size_note(model: keras.Model, path: str | os.PathLike) -> str:
    """Says that a file is larger than its small model, and the way out; empty if it is not."""
    is_small = any(stored_matrices(layer) for layer in flat_layers(model))
    stored = byte_count(model)
    written = sum(file_sizes(path).values())
    if not is_small or written <= _SIZE_FACTOR * stored + _GRAPH_BYTES:
        return ""
    runtime = form_of(Path(path)).runtime
    return (
        f"{Path(path).name} takes {written:,} bytes, {written / stored:.1f} times the {stored:,} "
        "of the model's weights, because this runtime has no such integers for some of them: "
        f"compress(..., for_runtime={runtime!r}) chooses those that it has"
    )


@contextlib.contextmanager
def _explained(model: keras.Model) -> Iterator[None]:
    """Adds to an error that runtimes lack operations of float64, if a layer computes in it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        in_float64 = [x.name for x in flat_layers(model) if x.compute_dtype == "float64"]
        if not in_float64:
            raise
        raise ValueError(
            f"Expected float32, as runtimes lack operations of float64: build the model anew with "
            f"dtype='float32', and set its weights. Received: {in_float64[-1]} of float64 "
            f"({cause_of(error)})"
        ) from error


@contextlib.contextmanager
def _new_files(path: Path, form: Form) -> Iterator[Path]:
    """Yields a temporary path that is renamed to `path` on success; explains failures.

    With it goes the `.bin` file of OpenVINO.
    """
    paths = [path.with_suffix(".bin"), path] if path.suffix == ".xml" else [path]
    for existing in paths:
        if existing.exists():
            raise FileExistsError(
                f"Expected a new path, because exports never overwrite. Received: {existing}"
            )
    try:
        with partial_folder(path) as folder:
            yield folder / path.name
            for written in paths:
                (folder / written.name).rename(written)
    except OSError:
        raise
    except Exception as error:  # converters raise errors of any class
        backend = keras.backend.backend()
        cause = cause_of(error) or type(error).__name__
        raise RuntimeError(
            f"Could not export the model as {form.name} from the {backend} backend: {cause}"
            f"{_way_out(cause, form)}"
        ) from error


def _way_out(cause: str, form: Form) -> str:
    """Returns the advice after an export failed, as the end of an error."""
    if "valid root scope name" in cause:  # of a variable, which has its name for good
        return (
            ". Name layers by letters, digits and underscores, a letter first, or write another "
            "kind of file"
        )
    if "crashed" in cause:
        kinds = [suffix or "a SavedModel" for suffix, x in FORMS.items() if x is not form]
        return (
            f". Write another kind of file ({', '.join(kinds)}), or export "
            "keras.Model(model.inputs, model.get_layer(NAME).output) to find the layer"
        )
    hints = {"jax": "Fix the length with length=, or load", "torch": "Load"}
    hint = hints.get(keras.backend.backend())
    return f". {hint} the .keras file with KERAS_BACKEND=tensorflow" if hint else ""
