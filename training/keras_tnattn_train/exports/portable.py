"""Writes folders that hold all that turns a text into a label.

`reader.py`, which is in each folder, needs NumPy and one runtime. It is a file and not a package:
this package brings Keras along, and a reader that comes with its model always fits it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.exporting import write_file
from keras_tnattn.export.cards import extend_card, technical
from keras_tnattn.export.partial import partial_folder
from keras_tnattn.export.signatures import check_backend
from keras_tnattn.text.reserved import PAD, UNK
from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_runtime import reader

SUFFIXES = {"onnxruntime": ".onnx", "litert": ".tflite"}
# Texts with which a written folder is tried, besides the caller's.
_TEXTS = ("", "a text", "Words, and more words.")


def export_portable(
    model: keras.Model,
    vectorizer: WordVectorizer,
    class_names: Sequence[str],
    folder: str | os.PathLike,
    runtime: str = "onnxruntime",
    texts: Sequence[str] = (),
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a classifier of texts as a folder for a runtime; completely or not at all.

    The folder has `model.onnx` or `model.tflite`, `text.json` with the vocabulary, the rules that
    split texts, the names of the classes and the model card, and `reader.py`:

    ```python notest
    from reader import load  # or: from keras_tnattn_runtime.reader import load

    load("news")("a text")  # the name of a class
    ```

    Args:
        model: A model from ids `(B, L)` to class probabilities `(B, C)`.
        vectorizer: What turns texts into ids, e.g. from `keras_tnattn.text.words.learn_words`.
        class_names: The `C` names.
        folder: The new folder.
        runtime: `"onnxruntime"` (default) or `"litert"`.
        texts: Texts with which the folder is tried.
        card: Further entries of the model card.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder exists.
        ImportError: If the runtime or a converter is not installed.
        RuntimeError: If Keras does not run on TensorFlow, or the file that was written computes
            something else than the model.
        ValueError: If the runtime is unknown or the model does not have `C` outputs.

    Example:
        ```python notest
        export_portable(model, vectorizer, ["sports", "science"], "portable/news")
        ```
    """
    check_backend()
    check_runtime(runtime)
    if model.output_shape[-1] != len(class_names):
        raise ValueError(
            "Expected a name for each output of the model. "
            f"Received: output_shape={model.output_shape}, {len(class_names)} class_names"
        )
    texts = [*_TEXTS, *texts]
    ids = vectorizer(texts)
    content = {
        "format": reader.FORMAT,
        "task": "classify",
        "class_names": list(class_names),
        "by_length": ignores_padding(model, vectorizer.vocabulary_size()),
        "words": {
            "vocabulary": vectorizer.get_vocabulary()[2:],
            "between": vectorizer.between,
            "max_words": vectorizer.max_words,
        },
    }
    with new_folder(folder) as whole:
        name = f"model{SUFFIXES[runtime]}"
        write_file(model, whole / name, ids, vectorizer.max_words)
        write_text(whole, content, {"model": name}, card)
        expected = keras.ops.convert_to_numpy(model(ids, training=False))
        outputs = reader.load(whole).probabilities(texts)
        error = np.abs(outputs - expected).max()
        if not error <= 0.02:  # of a model that Keras quantized, which rounds its inputs
            raise RuntimeError(
                f"The folder for {runtime} computes something else than the model: probabilities "
                f"are off by {error:.2g}"
            )
    return Path(folder)


@contextlib.contextmanager
def new_folder(folder: str | os.PathLike) -> Iterator[Path]:
    """Yields a folder that gets its name at the end of the block, if nothing was raised."""
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(
            f"Expected a new folder, because exports never overwrite. Received: {folder}"
        )
    with partial_folder(folder) as partial:
        (partial / "whole").mkdir()
        yield partial / "whole"
        (partial / "whole").rename(folder)


def check_runtime(runtime: str) -> None:
    """Raises a `ValueError` for the name of an unknown runtime."""
    if runtime not in SUFFIXES:
        raise ValueError(f"Expected one of {tuple(SUFFIXES)}. Received: runtime={runtime!r}")


def write_text(
    folder: Path,
    content: Mapping[str, Any],
    files: Mapping[str, str],
    card: Mapping[str, Any] | None,
) -> None:
    """Writes `text.json` with what the reader needs to know, and `reader.py`, beside other files.

    `files` are those of the model, by the names that the reader gives them.
    """
    sizes = {
        key: {"name": name, "bytes": (folder / name).stat().st_size} for key, name in files.items()
    }
    whole = {**content, "files": sizes, "card": extend_card(technical(), card)}
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    (folder / "text.json").write_text(text, encoding="utf-8")
    shutil.copyfile(reader.__file__, folder / "reader.py")


def ignores_padding(model: keras.Model, vocabulary_size: int) -> bool:
    """Whether a classifier computes the same without the padding at the end of texts.

    Compares the inputs of the last layer, because probabilities near 0 and 1 hardly change. Returns
    `False` for a model whose outputs are not those of one last layer, or whose last layer averages
    the tokens.
    """
    import tensorflow as tf

    inputs = getattr(model, "inputs", None)
    if inputs is None or len(inputs) != 1 or model.layers[-1].output is not model.outputs[0]:
        return False
    ids = np.random.default_rng(0).integers(UNK, max(vocabulary_size, UNK + 1), (8, 6), "int32")
    padded = np.pad(ids, ((0, 0), (0, 30)), constant_values=PAD)
    try:
        features = keras.Model(inputs[0], model.layers[-1].input)
        alone, longer = (
            keras.ops.convert_to_numpy(features(x, training=False)) for x in (ids, padded)
        )
    except (ValueError, tf.errors.InvalidArgumentError):  # a model of texts of one length
        return False
    if alone.shape != longer.shape:  # with an axis for the tokens
        return False
    return bool(np.allclose(alone, longer, rtol=1e-4, atol=1e-6))
