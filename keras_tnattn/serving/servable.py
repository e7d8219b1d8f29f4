"""A loaded version of an exported model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_tnattn.export.cards import MODEL_CARD
from keras_tnattn.serving.engines import load_engine
from keras_tnattn.serving.errors import RequestError

_MAX_CARD = 1024 * 1024  # bytes
DATATYPES = {
    tf.bool: "BOOL",
    tf.float16: "FP16",
    tf.bfloat16: "BF16",
    tf.float32: "FP32",
    tf.float64: "FP64",
    tf.string: "BYTES",
    **{
        getattr(tf, f"{sign}int{bits}"): f"{sign.upper()}INT{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
"""The names of the Open Inference Protocol. JSON has no other numbers."""


class Signature:
    """A function of a SavedModel from named tensors to named tensors.

    Args:
        name: Its name in the SavedModel.
        function: The loaded function.
        hints: What the model card says about each input.
        compute: What computes it in place of the function. Default: nothing does.

    Attributes:
        inputs: The `tf.TensorSpec` of each input.
        outputs: The `tf.TensorSpec` of each output.
        batches: Whether the rows of several requests can be computed together, that is, whether
            the first axis of every input and output has an unknown size.
    """

    def __init__(
        self,
        name: str,
        function: Any,
        hints: dict[str, Any],
        compute: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    ) -> None:
        self.name, self._function, self._compute = name, function, compute
        self.inputs = dict(sorted(function.structured_input_signature[1].items()))
        self.outputs = dict(sorted(function.structured_outputs.items()))
        specs = [*self.inputs.values(), *self.outputs.values()]
        self.batches = all(spec.shape.rank and spec.shape[0] is None for spec in specs)
        self._hints = {name: hints.get(name) for name in self.inputs}

    def hint(self, name: str, key: str) -> int | bool | None:
        """Returns the model card's hint about an input: an int or a bool.

        Keys: `padding`, the id to pad with; `by_length`, whether texts of similar length should
        share a batch; `max_ratio`, how many times as long as the shortest one the longest text of a
        batch may be; `max_length`.
        """
        hints = self._hints[name]
        value = hints.get(key) if isinstance(hints, dict) else None
        return value if type(value) in (int, bool) else None

    def check_dtypes(self) -> None:
        """Raises `RequestError` with 400 for tensors that JSON cannot hold, as complex ones."""
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            for name, spec in specs.items():
                if spec.dtype not in DATATYPES:
                    raise RequestError(
                        400,
                        f"Expected tensors of {', '.join(DATATYPES.values())}. Received: the "
                        f"{kind} {name} of {self.name} is {spec.dtype.name}, for which JSON has no "
                        "form. Export a signature that splits it into such tensors",
                    )

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of one batch."""
        if self._compute is not None:
            return self._compute(arrays)
        inputs = {
            name: tf.constant(array, self.inputs[name].dtype) for name, array in arrays.items()
        }
        return {name: output.numpy() for name, output in self._function(**inputs).items()}

    def examples(self, rows: int) -> dict[str, np.ndarray]:
        """Returns example inputs to warm the function up with."""
        examples = {}
        for name, spec in self.inputs.items():
            shape = [rows, *(size or 4 for size in spec.shape[1:])] if spec.shape.rank else []
            if spec.dtype == tf.string:
                examples[name] = np.full(shape, b"one two", object)
            else:
                examples[name] = np.ones(shape, spec.dtype.as_numpy_dtype)
        return examples


class Servable:
    """A loaded version of a model.

    Args:
        path: The version's folder.
        engine: One of `keras_tnattn.serving.settings.ENGINES`. Defaults to `"tensorflow"`.

    Attributes:
        engine: The engine that computes; TensorFlow computes the signatures that it cannot.
        signatures: The signatures by name.
        card: The model card, empty if there is none.
        metadata: The signatures as TensorFlow Serving's REST form shows them.

    Raises:
        ImportError: If the engine is not installed.
        ValueError: If the SavedModel cannot be loaded, no signature can be called, or the version
            does not have the engine.
    """

    def __init__(self, path: Path, engine: str = "tensorflow") -> None:
        self.path = path
        self.card = _read_card(path / MODEL_CARD)
        self.metadata = _metadata(path)
        # Keep the whole model: its signatures alone would not keep the weights alive.
        self._model = _load(path)
        self.engine, computing = load_engine(path, engine)
        hints = self.card.get("inputs")
        self.signatures = {
            name: Signature(
                name, function, hints if isinstance(hints, dict) else {}, computing.get(name)
            )
            for name, function in self._model.signatures.items()
        }

    def warm_up(self, max_batch: int) -> None:
        """Calls every signature once, so that no request has to wait for the compilation.

        Raises:
            ValueError: If every signature fails.
        """
        failures = []
        for signature in self.signatures.values():
            try:
                for rows in {1, max_batch} if signature.batches else {1}:
                    signature(signature.examples(rows))
            except Exception as error:
                failures.append(f"{signature.name}: {error}")
        if len(failures) == len(self.signatures):
            raise ValueError("No signature can be called. " + "; ".join(failures))


def _load(path: Path) -> Any:
    try:
        return tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises errors of any class
        if "Op type not registered" not in str(error):
            raise _unloadable(path, error) from error
    # The graph contains operations of TensorFlow Text, which its import registers.
    try:
        import tensorflow_text  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"The graph of {path} needs TensorFlow Text: pip install 'keras-tnattn[text]'"
        ) from error
    try:
        return tf.saved_model.load(str(path))
    except Exception as error:
        raise _unloadable(path, error) from error


def _unloadable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
    return ValueError(
        f"Could not load {path}, which may be damaged, or of a version of Keras or TensorFlow that "
        f"{tf.__version__} cannot read: {reason}. Export the model again"
    )


def _read_card(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CARD:
            return {}
        # Other numbers than finite ones would make the card no JSON for most readers.
        card = json.loads(path.read_text("utf-8"), parse_constant=str)
    except (OSError, ValueError, RecursionError):
        return {}
    return card if isinstance(card, dict) else {}


def _metadata(path: Path) -> dict[str, Any]:
    proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    return {
        name: json_format.MessageToDict(
            signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, signature in sorted(proto.meta_graphs[0].signature_def.items())
        if not name.startswith("__")
    }
