"""Writes static pages that search sentences by meaning in the browser."""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.formats import export_file
from keras_tnattn.export.portable import new_folder, write_text
from keras_tnattn.export.signatures import check_backend
from keras_tnattn.export.web import write_page
from keras_tnattn_runtime import reader

_ROWS = 32  # sentences whose vectors are computed at once


def export_web_search(
    model: keras.Model,
    tokenizer: Any,
    sentences: Sequence[str],
    folder: str | os.PathLike,
    runtime: str | os.PathLike | None = None,
    max_length: int = 64,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a folder with a page that finds the sentences nearest in meaning to a text.

    As `export_web`: nothing leaves the visitor's device, and no network is needed. The folder has
    the vectors of the sentences, in integers of 16 bits; the tab computes that of the text.

    Args:
        model: A model from ids `(B, L)` to vectors `(B, D)`, of which those of similar sentences
            have a large cosine. Padding, 0, must not change them.
        tokenizer: A `tokenizers.Tokenizer` of BERT's word pieces.
        sentences: The sentences.
        folder: The new folder.
        runtime: As in `export_web`.
        max_length: The most ids of a text. Defaults to 64.
        card: As in `export_web`.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder exists.
        FileNotFoundError: As `export_web`.
        ImportError: As `export_web`.
        RuntimeError: If `npm` fails; or as `export_file`.
        ValueError: If there are no sentences, or the tokenizer is of another kind.

    Example:
        ```python notest
        tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
        export_web_search(encoder, tokenizer, ["a red fish", "a blue bird"], "page")
        ```
    """
    check_backend()
    if not sentences:
        raise ValueError("Expected sentences to search. Received: none")
    content = {
        "format": reader.FORMAT,
        "task": "search",
        "pieces": {**_rules(tokenizer), "max_length": max_length},
        "sentences": list(sentences),
    }

    def write(target: Path) -> Path:
        vectors = sentence_vectors(model, tokenizer, sentences, max_length)
        with new_folder(target) as whole:
            example = sentence_ids(tokenizer, sentences[:_ROWS], max_length)
            # Products that round their inputs are not faster in the tab.
            export_file(model, whole / "model.onnx", example, max_length, max_error=0.0)
            coded = {**content, "vectors": _encode_vectors(vectors)}
            write_text(whole, coded, {"model": "model.onnx"}, card)
        return target

    return write_page(folder, runtime, write, ("pieces.js", "search.js"))


def sentence_vectors(
    model: keras.Model, tokenizer: Any, sentences: Sequence[str], max_length: int = 64
) -> np.ndarray:
    """Returns the vectors of sentences by a model, as `export_web_search` takes it.

    Returns:
        Float array `(N, D)` of rows of length 1.
    """
    prepared, order = _prepare(tokenizer, max_length), np.argsort([len(x) for x in sentences])
    parts = []
    for start in range(0, len(order), _ROWS):
        ids = _ids(prepared, [sentences[n] for n in order[start : start + _ROWS]])
        parts.append(keras.ops.convert_to_numpy(model(ids, training=False)))
    vectors = np.concatenate(parts)[np.argsort(order)]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def sentence_ids(tokenizer: Any, sentences: Sequence[str], max_length: int) -> np.ndarray:
    """Returns the ids `(N, L)` of sentences, padded, with the arguments of `sentence_vectors`."""
    return _ids(_prepare(tokenizer, max_length), sentences)


def _prepare(tokenizer: Any, max_length: int) -> Any:
    """Returns a copy of a tokenizer that cuts off texts and pads batches."""
    prepared = type(tokenizer).from_str(tokenizer.to_str())
    prepared.enable_truncation(max_length)
    prepared.enable_padding()
    return prepared


def _ids(prepared: Any, sentences: Sequence[str]) -> np.ndarray:
    return np.array([encoding.ids for encoding in prepared.encode_batch(sentences)], "int32")


def _encode_vectors(vectors: np.ndarray) -> str:
    """Returns vectors in base64, each in integers of 16 bits."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return base64.b64encode(np.rint(32767 / largest * vectors).astype("<i2").tobytes()).decode()


def _rules(tokenizer: Any) -> dict[str, Any]:
    """Returns what `search.js` needs to know of a tokenizer."""
    options = json.loads(tokenizer.to_str())
    kinds = [(options[key] or {}).get("type") for key in ("model", "normalizer", "pre_tokenizer")]
    if kinds != ["WordPiece", "BertNormalizer", "BertPreTokenizer"]:
        raise ValueError(f"Expected a tokenizer of BERT's word pieces. Received: one of {kinds}")
    ids = tokenizer.get_vocab()
    start, end = _prepare(tokenizer, 2).encode("").ids
    return {
        "vocabulary": sorted(ids, key=ids.__getitem__),
        "kind": "bert",
        "case": "lower" if options["normalizer"]["lowercase"] else "keep",
        "unknown": ids[options["model"]["unk_token"]],
        "start": start,
        "end": end,
    }
