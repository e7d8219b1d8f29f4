"""Reads a folder that `keras_tnattn.export.export_portable` wrote: a model and its text.

Needs NumPy and one runtime, `onnxruntime` or `ai-edge-litert`; neither Keras nor TensorFlow. This
file is in the folder, too, and can be copied into any project:

    from reader import load

    classify = load("news")
    classify("a text")  # "science"
    classify(["a text", "another"])  # ["science", "sports"]
"""

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1


class Model:
    """A file of a runtime, as a function from named arrays to a list of arrays.

    Attributes:
        inputs: The names of the inputs.
        fixed_batch: Whether it takes one row at a time.
    """

    def __init__(self, path: str | os.PathLike, threads: int | None = None) -> None:
        self.path = Path(path)
        self.fixed_batch = False
        if self.path.suffix == ".onnx":
            self._run, self.inputs = self._onnx(threads)
        else:
            self._run, self.inputs = self._litert(threads)

    def __call__(self, **arrays: np.ndarray) -> list[np.ndarray]:
        return self._run({name: arrays[name] for name in self.inputs})

    def _onnx(self, threads: int | None) -> tuple[Callable[[dict], list], list[str]]:
        runtime = _imported("onnxruntime", "onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        try:
            session = runtime.InferenceSession(str(self.path), options)
        except Exception as error:  # the runtime has errors of several classes
            raise _unreadable(self.path, error) from error
        return lambda arrays: session.run(None, arrays), [x.name for x in session.get_inputs()]

    def _litert(self, threads: int | None) -> tuple[Callable[[dict], list], list[str]]:
        interpreters = _imported("ai_edge_litert.interpreter", "ai-edge-litert")
        try:
            interpreter = interpreters.Interpreter(str(self.path), num_threads=threads or 1)
            signature = interpreter.get_signature_runner("serving_default")
        except (ValueError, RuntimeError) as error:
            raise _unreadable(self.path, error) from error
        details = signature.get_input_details()
        outputs = sorted(signature.get_output_details())
        self.fixed_batch = any(x["shape_signature"][0] == 1 for x in details.values())
        lock = threading.Lock()  # an interpreter runs one call at a time

        def run(arrays: dict) -> list[np.ndarray]:
            with lock:
                result = signature(**arrays)
            return [result[name] for name in outputs]

        return run, list(details)


class Words:
    """Turns texts into ids of words: lower case, split at white space and punctuation.

    Args:
        vocabulary: The words of the ids 2, 3, ...; 0 is padding and 1 an unknown word.
        between: A regular expression for what is between words.
        max_words: How many words of a text are read.
    """

    def __init__(self, vocabulary: Sequence[str], between: str, max_words: int) -> None:
        self._ids = {word: n for n, word in enumerate(vocabulary, start=2)}
        self._between = re.compile(between)
        self.max_words = max_words

    def split(self, text: str) -> list[str]:
        """Returns the words of a text."""
        return [word for word in self._between.split(text.lower()) if word]

    def __call__(self, text: str) -> list[int]:
        return [self._ids.get(word, 1) for word in self.split(text)[: self.max_words]]


class Classifier:
    """A function from texts to the names of their classes.

    Attributes:
        class_names: The names, in the order of the probabilities.
        words: The `Words` that turn texts into ids.
        card: The model card.
    """

    def __init__(self, folder: Path, content: dict[str, Any], threads: int | None) -> None:
        self.class_names: list[str] = content["class_names"]
        self.words = Words(**content["words"])
        self.card = content["card"]
        self._by_length = content["by_length"]
        self._model = Model(folder / content["files"]["model"]["name"], threads)

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Returns the class of a text, or the list of the classes of several."""
        labels = [self.class_names[n] for n in self.probabilities(texts).argmax(axis=1)]
        return labels[0] if isinstance(texts, str) else labels

    def probabilities(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns floats `(B, C)`, also for a single text."""
        return self.from_ids(self.ids([texts] if isinstance(texts, str) else texts))

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """Returns int32 ids `(B, L)`, padded with 0."""
        rows = [self.words(text) for text in texts]
        longest = max((len(row) for row in rows), default=1)
        ids = np.zeros(
            (len(rows), max(longest, 1) if self._by_length else self.words.max_words), "int32"
        )
        for row, values in zip(ids, rows, strict=True):
            row[: len(values)] = values
        return ids

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns floats `(B, C)` for ids `(B, L)`."""
        if not len(ids):
            return np.zeros((0, len(self.class_names)), "float32")
        name = self._model.inputs[0]
        if self._model.fixed_batch:
            return np.concatenate(
                [self._model(**{name: ids[n : n + 1]})[0] for n in range(len(ids))]
            )
        return self._model(**{name: ids})[0]


def load(folder: str | os.PathLike, threads: int | None = None) -> Classifier:
    """Loads a classifier.

    Args:
        folder: What `export_portable` wrote.
        threads: How many threads a call may use. Default: the runtime's own choice.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        ImportError: If the runtime is not installed.
        ValueError: If a file is of another version, incomplete, or cannot be read.
    """
    folder = Path(folder)
    path = folder / "text.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected the folder of a portable export, with text.json. Received: {folder}"
        )
    try:
        content = json.loads(path.read_text("utf-8"))
        version = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    if version != FORMAT:
        raise ValueError(
            f"Expected {path} of version {FORMAT}. Received: version {version}. Use the reader.py "
            "that is in the folder, or export the model again"
        )
    for file in content["files"].values():
        size = (folder / file["name"]).stat().st_size
        if size != file["bytes"]:
            raise ValueError(
                f"Expected {folder / file['name']} of {file['bytes']:,} bytes. Received: {size:,} "
                "bytes. Copy the file again"
            )
    return {"classify": Classifier}[content["task"]](folder, content, threads)


def _imported(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The model needs the package {package}: pip install {package}"
        ) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"Could not read {path}, which may be damaged: {reason}. Copy it again")
