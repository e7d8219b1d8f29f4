"""Writes files with Keras' exporters: SavedModels, and ONNX files from PyTorch."""

import keyword
import re
from pathlib import Path
from typing import Any

import keras

from keras_small.runtimes.computation import Computation, Expected, resolution_of
from keras_small.runtimes.tracing import steps_as_rows
from keras_tnattn.export.signatures import write_archive


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a model, which is exact, and checks it; returns no changes.

    An ONNX file has the sizes of the specs.
    """
    if path.suffix == ".onnx":
        signature = [wanted.specs]
        wanted.model.export(path, format="onnx", verbose=False, input_signature=signature)
    else:
        _write_saved_model(wanted, path)
    expected = Expected(wanted.function, wanted.examples, resolution_of(wanted.model))
    expected.check(expected.outputs_of_file(path))
    return {}


def _write_saved_model(wanted: Computation, path: Path) -> None:
    # Gradients by `keras.ops.custom_gradient` cannot be converted; no served model needs any.
    is_jax = keras.backend.backend() == "jax"
    options = {"jax2tf_kwargs": {"with_gradient": False}} if is_jax else {}
    archive = keras.export.ExportArchive()
    with steps_as_rows(wanted.model):
        specs = [_with_argument_names(wanted.specs)]
        archive.track_and_add_endpoint("serve", wanted.model, specs, **options)
        write_archive(archive, path, ["serve"])


def _with_argument_names(specs: Any) -> Any:
    """Returns specs with names that TensorFlow takes: distinct identifiers, no words of Python."""
    names: list[str] = []
    for spec in keras.tree.flatten(specs):
        name = re.sub(r"\W", "_", spec.name, flags=re.ASCII).lstrip("_") or "inputs"
        while name in names or keyword.iskeyword(name) or name == "self":
            name += "_"
        names.append(name)
    remaining_names = iter(names)
    return keras.tree.map_structure(
        lambda spec: keras.InputSpec(
            dtype=spec.dtype, shape=spec.shape, name=next(remaining_names)
        ),
        specs,
    )
