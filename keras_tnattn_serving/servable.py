"""A loaded version of an exported model."""

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_runtime.layout import ENGINES, MODEL_CARD
from keras_tnattn_serving.engines import load_engine
from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.specs import DATATYPES, described_signatures, specs

if TYPE_CHECKING:  # it imports TensorFlow
    from keras_tnattn_serving.saved_model import SavedModel

_MAX_CARD = 1024 * 1024  # bytes


class LazyModel:
    """The SavedModel of a version, loaded by TensorFlow once it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._loading: Future[SavedModel] | None = None

    def start_loading(self) -> "Future[SavedModel]":
        """Returns the model as a future; the first call starts to load it."""
        with self._lock:
            if self._loading is None:
                self._loading = Future()
                # A daemon, so that what never loads does not delay the process's exit.
                threading.Thread(target=self._load, args=(self._loading,), daemon=True).start()
            return self._loading

    def _load(self, loading: "Future[SavedModel]") -> None:
        try:
            from keras_tnattn_serving.saved_model import SavedModel

            loading.set_result(SavedModel(self._path))
        except Exception as error:
            loading.set_exception(error)


class Signature:
    """A function of an exported model from named tensors to named tensors.

    Attributes:
        inputs: The `Spec` of each input.
        outputs: The `Spec` of each output.
        batches: Whether the rows of several requests can be computed together, that is, whether
            the first axis of every input and output has an unknown size.
    """

    def __init__(
        self,
        name: str,
        metadata: dict[str, Any],
        hints: dict[str, Any],
        model: LazyModel,
        compute: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    ) -> None:
        self.name, self._model, self._compute = name, model, compute
        self.inputs, self.outputs = specs(metadata["inputs"]), specs(metadata["outputs"])
        shapes = [spec.shape for spec in (*self.inputs.values(), *self.outputs.values())]
        self.batches = all(shape and shape[0] is None for shape in shapes)
        self._hints = {name: hints.get(name) for name in self.inputs}

    def model_to_load(self) -> "Future[SavedModel] | None":
        """Returns what has to be loaded before the signature can be called, or `None`."""
        if self._compute is not None:
            return None
        loading = self._model.start_loading()
        return None if loading.done() and not loading.exception() else loading

    @property
    def by_engine(self) -> bool:
        """Whether an engine computes it, and not the SavedModel."""
        return self._compute is not None

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
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            for name, spec in tensors.items():
                if spec.datatype is None:
                    raise RequestError(
                        f"Expected tensors of {', '.join(DATATYPES)}. Received: the "
                        f"{kind} {name} of {self.name} is {spec.name}, for which JSON has no "
                        "form. Export a signature that splits it into such tensors",
                    )

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of one batch."""
        if self._compute is not None:
            return self._compute(arrays)
        return self._model.start_loading().result()(self.name, arrays)

    def examples(self, rows: int) -> dict[str, np.ndarray]:
        """Returns example inputs to warm the function up with."""
        examples = {}
        for name, spec in self.inputs.items():
            shape = [rows, *(size or 4 for size in spec.shape[1:])] if spec.shape else []
            one: Any = b"one two" if spec.array_dtype.kind == "O" else 1
            examples[name] = np.full(shape, one, spec.array_dtype)
        return examples


class Servable:
    """A loaded version of a model.

    Attributes:
        engine: The engine that computes. TensorFlow computes the signatures that it cannot, and
            loads the SavedModel when one of them is called first.
        language_model: What continues texts, if the version is a language model.
        signatures: The signatures by name; none of a language model.
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
        described = described_signatures(path)  # checks the files of the SavedModel
        loaded = load_engine(path, engine)
        self.engine, self.language_model = loaded.name, loaded.language_model
        model = LazyModel(path)
        metadata = None if self.engine == "tensorflow" else described
        if self.engine == "tensorflow" and not (path / "saved_model.pb").exists():
            raise ValueError(_without_saved_model(path))
        self.metadata = model.start_loading().result().metadata if metadata is None else metadata
        hints = self.card.get("inputs")
        self.signatures = {
            name: Signature(
                name,
                signature,
                hints if isinstance(hints, dict) else {},
                model,
                loaded.signatures.get(name),
            )
            for name, signature in self.metadata.items()
        }

    def warm_up(self, max_batch: int) -> None:
        """Calls every signature once, so that no request has to wait for the compilation.

        With an engine only those that it computes.

        Raises:
            ValueError: If every signature fails.
        """
        if self.language_model is not None:
            list(itertools.islice(self.language_model.stream(""), 2))  # both files
            return
        signatures = list(self.signatures.values())
        called = [x for x in signatures if x.by_engine] or signatures
        failures = []
        for signature in called:
            try:
                for rows in {1, max_batch} if signature.batches else {1}:
                    signature(signature.examples(rows))
            except Exception as error:
                failures.append(f"{signature.name}: {error}")
        if len(failures) == len(called):
            raise ValueError("No signature can be called. " + "; ".join(failures))


def _without_saved_model(path: Path) -> str:
    engines = sorted(folder.name for folder in (path / ENGINES).glob("*"))
    if engines:
        return (
            f"Expected saved_model.pb in {path}, for the engine tensorflow. The version has "
            f"{' and '.join(engines)} alone: serve it with --engine auto, where that is installed"
        )
    return f"Expected saved_model.pb in {path}, the folder of an exported version"


def _read_card(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CARD:
            return {}
        # Other numbers than finite ones would make the card no JSON for most readers.
        card = json.loads(path.read_text("utf-8"), parse_constant=str)
    except (OSError, ValueError, RecursionError):
        return {}
    return card if isinstance(card, dict) else {}
