"""Loads exported models that read text."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn.export.signatures import CLASS_NAMES, versions_in
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import saved_model
from keras_tnattn_runtime.layout import portable_folder


class _Exported:
    """An exported model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model = saved_model.load(path)

    def _run(self, signature: str, **inputs: Tensor) -> dict[str, np.ndarray]:
        outputs = self._model.signatures[signature](**inputs)
        return {name: _decode(output.numpy()) for name, output in outputs.items()}


class LoadedClassifier(_Exported):
    """An exported classifier.

    ```python notest
    classifier = load("saved_models/news")
    classifier(["a text", "another"])["label"]
    ```

    Attributes:
        path: The folder of the version that was loaded.
        class_names: The names of the classes, in the order of the probabilities.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.class_names = json.loads((path / CLASS_NAMES).read_text("utf-8"))

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Classifies a list of `B` texts.

        Returns:
            A dict of `label`, an array of `str` `(B,)`, and `probabilities`, floats `(B, C)`.

        Raises:
            TypeError: If `texts` is a single string.
        """
        return self._run("serving_default", text=_strings(texts))

    def from_ids(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Classifies texts given as integer ids `(B, L)`, padded with 0; returns the same dict."""
        return self._run("ids", ids=_tensor(ids, "int32"))


class LoadedTranslator(_Exported):
    """An exported translator.

    ```python notest
    translator = load("saved_models/pt_en")
    translator(["uma frase", "outra"])  # a list of two translations
    ```

    Attributes:
        path: The folder of the version that was loaded.
    """

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Translates a list of sentences.

        Raises:
            TypeError: If `texts` is a single string.
        """
        return self.with_scores(texts)["translation"].tolist()

    def with_scores(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Translates a list of `B` sentences.

        Returns:
            A dict of `translation`, an array of `str` `(B,)`, and `score`, floats `(B,)`; lower
            scores are better.

        Raises:
            TypeError: If `texts` is a single string.
        """
        return self._run("serving_default", text=_strings(texts))

    def from_ids(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Translates sentences given as integer ids `(B, S)`, padded with 0.

        Returns:
            A dict of `ids`, integers `(B, K, L)`, and `scores`, floats `(B, K)`.
        """
        return self._run("ids", ids=_tensor(ids, "int32"))


def load(path: str | os.PathLike) -> LoadedClassifier | LoadedTranslator:
    """Loads an exported classifier or translator.

    Args:
        path: The folder of a version, or the folder of a model to load its newest version.

    Returns:
        A function of a list of texts. That of a classifier returns a dict of `label`, an array of
        `str` `(B,)`, and `probabilities`, floats `(B, C)`, and has the attribute `class_names`;
        that of a translator returns a list of translations, and its method `with_scores` a dict of
        `translation` and `score`. Their method `from_ids` takes integer ids, padded with 0.

    Raises:
        FileNotFoundError: If there is no exported model.
        ImportError: If it is a translator and TensorFlow Text is not installed.
        ValueError: If it is neither a classifier nor a translator of text, or is damaged.

    Example:
        ```python notest
        classifier = load("saved_models/news")
        classifier(["a text", "another"])["label"]
        ```
    """
    path = Path(path)
    versions = versions_in(path)
    if versions:
        path = path / str(max(versions))
    if not (path / "saved_model.pb").is_file():
        raise FileNotFoundError(
            f"Expected the folder of an exported model or of one version. Received: path={path}"
            f"{_what_loads(path)}"
        )
    saved_model.read_description(path)  # checks the files
    signature = saved_model.read_metadata(path).get("serving_default", {})
    takes = set(signature.get("inputs", ()))
    gives = set(signature.get("outputs", ()))
    if takes == {"text"}:
        if gives == {"label", "probabilities"} and (path / CLASS_NAMES).is_file():
            return LoadedClassifier(path)
        if gives == {"translation", "score"}:
            return LoadedTranslator(path)
    raise ValueError(
        "Expected an exported model from text to label and probabilities, with "
        f"{CLASS_NAMES}, or from text to translation and score. Received: {path}, from "
        f"{', '.join(sorted(takes)) or 'nothing'} to {', '.join(sorted(gives)) or 'nothing'}. "
        "Use tf.saved_model.load for other models"
    )


def _what_loads(path: Path) -> str:
    """Says what loads another file or folder, as the end of an error."""
    if path.suffix == ".keras":
        return f". Use keras.models.load_model({str(path)!r})"
    if (portable := portable_folder(path)) is not None:
        return f", an exported folder. Use keras_tnattn_runtime.reader.load({str(portable)!r})"
    return ""


def _strings(texts: Sequence[str]) -> Tensor:
    if isinstance(texts, str | bytes):
        raise TypeError(f"Expected a list of texts. Received: texts={texts!r}. Pass [text]")
    return _tensor(list(texts), "string")


def _tensor(values: Any, dtype: str) -> Tensor:
    import tensorflow as tf

    return tf.constant(values, dtype)


def _decode(array: np.ndarray) -> np.ndarray:
    """Decodes arrays of bytes to arrays of `str`; returns others unchanged."""
    return np.array([text.decode() for text in array], "U") if array.dtype == object else array
