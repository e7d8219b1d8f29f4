"""The forms of files for other runtimes, by the ends of their names."""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.checks import check_backend_among
from keras_tnattn_runtime.extras import installation


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
