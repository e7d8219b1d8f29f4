"""Documents of a language model's corpus, split into parts and packed into rows."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn_train.language.config import DOCSTRINGS, LanguageConfig
from keras_tnattn_train.language.tokens import END, Tokens
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

JSON_ENDINGS = (".jsonl", ".ndjson")
PARTS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a corpus as one stream of ids, each document followed by `END`.

    Args:
        ids: Integers `(N,)`.
        num_bytes: UTF-8 bytes of its documents.
        num_documents: Number of documents.
    """

    ids: np.ndarray
    num_bytes: int
    num_documents: int


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The tokens and the parts of a corpus."""

    tokens: Tokens
    parts: dict[str, Part]

    def description(self) -> dict[str, Any]:
        """Returns what `data.json` says: a run can only be resumed with the same."""
        digest = hashlib.sha256()
        for name in PARTS:
            digest.update(np.ascontiguousarray(self.parts[name].ids, "<i4").tobytes())
        return {
            **self.tokens.to_dict(),
            "documents": {name: part.num_documents for name, part in self.parts.items()},
            "bytes": {name: part.num_bytes for name, part in self.parts.items()},
            "sha256": digest.hexdigest(),
        }

    def openings(self, length: int, count: int = 4) -> list[str]:
        """Returns how some documents of the test part begin."""
        ids = self.parts["test"].ids
        ends = np.flatnonzero(ids == END)
        starts = np.append(0, ends[:-1] + 1)
        chosen = range(0, len(starts), max(1, len(starts) // count))[:count]
        return [
            self.tokens.decode(ids[starts[i] : min(starts[i] + length, ends[i])]) for i in chosen
        ]


def read_corpus(config: LanguageConfig) -> Corpus:
    """Reads, splits and encodes the corpus of a run."""
    documents = list(_documents(config))
    split = _split_by_position if len(documents) < len(PARTS) else _split_documents
    texts = split(documents, config)
    tokens = Tokens.learn(config.tokens, texts["train"], config.vocabulary_size)
    parts = {name: _part(tokens, texts[name]) for name in PARTS}
    if len(parts["train"].ids) <= config.length:
        raise InputError(
            f"Expected more than length={config.length} tokens to train on. Received: "
            f"{len(parts['train'].ids)}. Give more text or a shorter --length"
        )
    return Corpus(tokens, parts)


def _split_documents(documents: Sequence[str], config: LanguageConfig) -> dict[str, list[str]]:
    """Returns the documents of each part, chosen at random."""
    order = np.random.default_rng((config.seed, len(documents))).permutation(len(documents))
    held_out = max(1, round(config.held_out * len(documents)))
    numbers = {
        "validation": order[:held_out],
        "test": order[held_out : 2 * held_out],
        "train": order[2 * held_out :],
    }
    # In the order of the corpus, so that neighbors stay neighbors.
    return {name: [documents[i] for i in sorted(numbers[name])] for name in PARTS}


def _split_by_position(documents: Sequence[str], config: LanguageConfig) -> dict[str, list[str]]:
    """Cuts one or two documents, as a book without empty lines, into the three parts."""
    texts: dict[str, list[str]] = {name: [] for name in PARTS}
    for text in documents:
        size = round(config.held_out * len(text))
        ends = (len(text) - 2 * size, len(text) - size, len(text))
        for name, start, end in zip(PARTS, (0, *ends[:2]), ends, strict=True):
            texts[name] += [text[start:end]] if text[start:end].strip() else []
    if not all(texts.values()):
        raise InputError(
            "Expected text for each of training, validation and test part. Received: "
            f"{sum(map(len, documents))} characters, corpus={' '.join(config.corpus)}. Give more "
            "text or a larger --held-out"
        )
    print(
        f"  the corpus has {len(documents)} document(s), so each is split by position: its last "
        f"{config.held_out:.0%} are test part, the {config.held_out:.0%} before validation part"
    )
    return texts


def _part(tokens: Tokens, texts: Sequence[str]) -> Part:
    pieces = [np.append(tokens.encode(text), END) for text in texts]
    ids = np.concatenate(pieces).astype("int32")
    return Part(ids, sum(len(text.encode()) for text in texts), len(texts))


def _documents(config: LanguageConfig) -> Iterator[str]:
    if config.corpus == (DOCSTRINGS,):
        from keras_tnattn_train.data.texts.docstrings import load_docstrings

        yield from load_docstrings().texts
        return
    for name in config.corpus:
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"Expected UTF-8 text. Received: {path}: {error}") from error
        except OSError as error:
            raise InputError(f"Could not read {path}: {reason(error)}") from error
        if path.suffix.lower() in JSON_ENDINGS:
            yield from _json_lines(path, text, config.text_column)
        elif config.documents == "files":
            yield text
        else:
            yield from (part for part in re.split(r"\n\s*\n", text) if part.strip())


def _json_lines(path: Path, text: str, column: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)[column]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Expected objects with a {column!r} on each line, which --text-column names. "
                f"Received: line {number} of {path}"
            ) from error
        if not isinstance(value, str):
            raise InputError(f"Expected a text. Received: line {number} of {path}, {value!r}")
        if value.strip():
            yield value


class PackedBatches(keras.utils.PyDataset):
    """Batches of rows cut from a stream of ids: each id but the first is predicted once.

    Rows are `(inputs, labels)`, the labels one id further. With a seed the stream is cut at another
    place in each epoch, and the rows are shuffled; what is left over at either end, less than a
    row, is not used. Without, the last row is filled up with 0, which losses ignore.
    """

    def __init__(
        self,
        part: Part,
        length: int,
        batch_size: int,
        seed: int | None = None,
        batches_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.ids = part.ids
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.num_rows = -(-(len(part.ids) - 1) // length)
        if seed is not None:
            self.num_rows = max(1, (len(part.ids) - 1) // length - 1)
        count = -(-self.num_rows // batch_size)
        self.count = count if batches_per_epoch is None else min(count, batches_per_epoch)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Selects the rows and their order in an epoch, counted from 0."""
        self.order = np.arange(self.num_rows)
        self.first = 0
        if self.seed is not None:
            rng = np.random.default_rng((self.seed, epoch))
            free = len(self.ids) - 1 - self.num_rows * self.length
            self.first = int(rng.integers(0, free + 1))
            self.order = rng.permutation(self.order)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        places = self.first + rows[:, None] * self.length + np.arange(self.length + 1)
        ids = np.where(places < len(self.ids), self.ids[np.minimum(places, len(self.ids) - 1)], 0)
        return ids[:, :-1], ids[:, 1:]
