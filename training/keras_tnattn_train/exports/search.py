"""Exports searches of sentences by meaning."""

import base64
import dataclasses
import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.asked.inputs import example_of
from keras_small.runtimes.exporting import write_file
from keras_tnattn.checks import check_int
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.task import Task

_SENTENCES_AT_ONCE = 32  # sentences whose vectors are computed at once
# The options of a tokenizer that a page supports, by their places in its JSON.
_SUPPORTED_OPTIONS = {
    ("model", "type"): "WordPiece",
    ("model", "continuing_subword_prefix"): "##",
    ("model", "max_input_chars_per_word"): 100,
    ("normalizer", "type"): "BertNormalizer",
    ("normalizer", "clean_text"): True,
    ("normalizer", "handle_chinese_chars"): True,
    ("pre_tokenizer", "type"): "BertPreTokenizer",
}


@dataclasses.dataclass(frozen=True)
class Search(Task):
    """A search of the sentences nearest in meaning to a text, as a page.

    The page has the vectors of the sentences, in integers of 16 bits; the tab computes that of the
    text.

    Args:
        model: A model from int32 ids `(B, L)` to float32 vectors `(B, D)`, of which those of
            similar sentences have a large cosine. Padding, 0, must not change them.
        tokenizer: A `tokenizers.Tokenizer` of BERT's word pieces. Names of special tokens in a text
            are words.
        sentences: The sentences.
        max_length: The maximum number of ids of a text, with one at each end. Defaults to 64.
        card: Entries of the model card. Default: none.
    """

    model: keras.Model
    tokenizer: Any
    sentences: Sequence[str]
    max_length: int = 64
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    kind = "a search"
    forms = ("Page",)
    scripts = ("pieces.js", "search.js")

    def content(self) -> dict[str, Any]:
        sentences = self.sentences
        check_int("max_length", self.max_length, 3)
        is_list = not isinstance(sentences, str) and {type(x) for x in sentences} == {str}
        if not is_list:
            raise ValueError(f"Expected a list of sentences. Received: {reprlib.repr(sentences)}")
        rules = _rules(self.tokenizer)
        _check_model(self.model, self._ids([""]), self.max_length)
        vectors = sentence_vectors(self.model, self.tokenizer, sentences, self.max_length)
        return {
            "format": reader.FORMAT,
            "task": "search",
            "pieces": {**rules, "max_length": self.max_length},
            "sentences": list(sentences),
            "vectors": _encode_vectors(vectors),
        }

    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        name = f"model{suffix}"
        # Products that round their inputs are not faster in the tab.
        example = self._ids(self.sentences[:_SENTENCES_AT_ONCE])
        write_file(self.model, folder / name, example, self.max_length, max_error=0.0)
        return {"model": name}

    def _ids(self, sentences: Sequence[str]) -> np.ndarray:
        return sentence_ids(self.tokenizer, sentences, self.max_length)


def sentence_vectors(
    model: keras.Model, tokenizer: Any, sentences: Sequence[str], max_length: int = 64
) -> np.ndarray:
    """Returns the vectors of sentences by a model, as `Search` takes it.

    Returns:
        Float array `(N, D)` of rows of length 1.
    """
    prepared = _prepare(tokenizer, max_length)
    order = np.argsort([len(x) for x in sentences])
    parts = []
    for start in range(0, len(order), _SENTENCES_AT_ONCE):
        ids = _ids(prepared, [sentences[n] for n in order[start : start + _SENTENCES_AT_ONCE]])
        parts.append(keras.ops.convert_to_numpy(model(ids, training=False)))
    vectors = np.concatenate(parts)[np.argsort(order)]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def sentence_ids(tokenizer: Any, sentences: Sequence[str], max_length: int) -> np.ndarray:
    """Returns the ids `(N, L)` of sentences, padded, with the arguments of `sentence_vectors`."""
    return _ids(_prepare(tokenizer, max_length), sentences)


def _prepare(tokenizer: Any, max_length: int) -> Any:
    """Returns a copy of a tokenizer that cuts off texts and pads batches."""
    prepared = type(tokenizer).from_str(tokenizer.to_str())
    prepared.encode_special_tokens = True  # as words
    prepared.enable_truncation(max_length)
    prepared.enable_padding()
    return prepared


def _ids(prepared: Any, sentences: Sequence[str]) -> np.ndarray:
    return np.array([encoding.ids for encoding in prepared.encode_batch(sentences)], "int32")


def _encode_vectors(vectors: np.ndarray) -> str:
    """Returns vectors in base64, each in integers of 16 bits."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return base64.b64encode(np.rint(32767 / largest * vectors).astype("<i2").tobytes()).decode()


def _check_model(model: keras.Model, ids: np.ndarray, max_length: int) -> None:
    """Checks that a page can run a model, by a short text and the same with padding."""
    dtype = example_of(model, ids).dtype
    padded = np.pad(ids, ((0, 0), (0, max_length - ids.size)))
    short, long = (keras.ops.convert_to_numpy(model(x, training=False)) for x in (ids, padded))
    if dtype != "int32" or short.dtype != "float32" or short.ndim != 2:
        raise ValueError(
            "Expected a model from int32 ids (B, L) to float32 vectors (B, D). Received: from "
            f"{dtype} to {short.dtype} {short.shape}"
        )
    if not np.allclose(short, long, atol=1e-3 * np.abs(long).max()):
        raise ValueError(
            "Expected a model whose vectors padding does not change: mask the id 0. Received: "
            f"vectors that change by {np.abs(short - long).max():.2g}"
        )


def _rules(tokenizer: Any) -> dict[str, Any]:
    """Returns the rules of a tokenizer, for `search.js`."""
    options = json.loads(tokenizer.to_str())
    for (part, name), expected in _SUPPORTED_OPTIONS.items():
        received = (options[part] or {}).get(name)
        if received != expected:
            raise ValueError(
                f"Expected a tokenizer of BERT's word pieces, with {name}={expected!r} of its "
                f"{part}. Received: {name}={received!r}"
            )
    ids = tokenizer.get_vocab()
    unknown = options["model"]["unk_token"]
    ends = _prepare(tokenizer, 2).encode("").ids
    are_words = any(not token["special"] for token in options["added_tokens"])
    if sorted(ids.values()) != [*range(len(ids))] or unknown not in ids or are_words:
        raise ValueError(
            "Expected a tokenizer with ids 0, 1, ..., of which one is that of unknown words, and "
            f"without added words. Received: {len(ids)} ids up to {max(ids.values())}, "
            f"unk_token={unknown!r}"
        )
    if len(ends) != 2:
        raise ValueError(f"Expected a tokenizer with one id at each end. Received: {ends}")
    lowers, strips = (options["normalizer"][name] for name in ("lowercase", "strip_accents"))
    return {
        "vocabulary": sorted(ids, key=ids.__getitem__),
        "kind": "tokenizers",
        "case": "lower" if lowers else "keep",
        "keep_accents": not (lowers if strips is None else strips),
        "unknown": ids[unknown],
        "start": ends[0],
        "end": ends[1],
    }
