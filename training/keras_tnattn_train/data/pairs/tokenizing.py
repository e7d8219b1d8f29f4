"""Counts words and tokenizes pairs chunk by chunk, in one process or several.

The result of each chunk is a file, so that interrupted work goes on where it stopped, and what is
in memory does not grow with the corpus.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.extras import installation
from keras_tnattn_train.data.pairs.corpus import PARTS, Pair, ParallelCorpus, Side
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import without_noise
from keras_tnattn_train.processes.workers import Workers
from keras_tnattn_train.system.files import replacing

SIDES = ("source", "target")
CHUNK_SIZE = 8192  # of a chunk
CHUNKS = "chunks"  # the folder of what an unfinished preparation has computed

Work = Callable[..., int]
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`CHUNK_SIZE` pairs of a part, or the rest of it, and the file of its result."""

    part: str
    start: int
    path: Path


def chunks_of(corpus: ParallelCorpus, parts: Sequence[str], folder: Path, kind: str) -> list[Chunk]:
    """Returns the chunks of some parts, in order; `kind` begins the names of their files."""
    return [
        Chunk(part, start, folder / f"{kind}-{part}-{start:010}")
        for part in parts
        for start in range(0, len(getattr(corpus, part)), CHUNK_SIZE)
    ]


def _size(corpus: ParallelCorpus, chunk: Chunk) -> int:
    return min(CHUNK_SIZE, len(getattr(corpus, chunk.part)) - chunk.start)


def compute(
    workers: Workers,
    work: Work,
    corpus: ParallelCorpus,
    chunks: Sequence[Chunk],
    progress: Progress,
    *arguments: Any,
) -> None:
    """Computes the chunks whose files are missing.

    `work` is a function of a module: of a chunk, its pairs and `arguments`; it writes the file.
    `progress` is not called if the pairs that remain fit into one chunk, which takes a moment.
    """
    missing = [chunk for chunk in chunks if not chunk.path.exists()]
    total, remaining = (sum(_size(corpus, c) for c in several) for several in (chunks, missing))
    silent = remaining <= CHUNK_SIZE
    done = total - remaining
    if not silent:
        progress(done, total)
    jobs = (
        (c, getattr(corpus, c.part)[c.start : c.start + CHUNK_SIZE], *arguments) for c in missing
    )
    for pairs in workers.results(work, jobs):
        done += pairs
        if not silent:
            progress(done, total)


def learn(
    corpus: ParallelCorpus,
    folder: Path,
    options: dict[str, Any],
    workers: Workers,
    progress: Progress,
) -> None:
    """Writes the two tokenizers, unless an interrupted preparation has."""
    learned = folder / CHUNKS / "learned"
    if learned.exists():
        return
    size = options["vocabulary_size"]
    cases = options["cases"]
    if "tokenizer" in options:
        from keras_tnattn.text.bert_pieces import learn_bert_pieces

        sides = (Side(corpus.train, i) for i in (0, 1))
        tokenizers: list[Any] = [
            learn_bert_pieces(side, size, case != "keep")
            for side, case in zip(sides, cases, strict=True)
        ]
    else:
        from keras_tnattn.text.word_pieces import learn_from_counts

        both = [
            {"case": case, **{n: options[n] for n in ("keep_accents", "form")}} for case in cases
        ]
        chunks = chunks_of(corpus, ["train"], folder / CHUNKS, "words")
        compute(workers, count_words, corpus, chunks, progress, both)
        tokenizers = [
            learn_from_counts(counts, size, **side)
            for counts, side in zip(all_counts(chunks), both, strict=True)
        ]
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        tokenizer.save(folder / f"{side}.txt")
    learned.touch()


def tokenize_all(
    corpus: ParallelCorpus, folder: Path, max_length: int, workers: Workers, progress: Progress
) -> list[str]:
    """Writes the ids of all parts; returns sentences about longer pairs."""
    chunks = chunks_of(corpus, PARTS, folder / CHUNKS, "ids")
    _tokenizers.cache_clear()  # the folder now holds others
    compute(workers, tokenize, corpus, chunks, progress, folder, max_length)
    too_long = assemble(chunks, folder)
    if too_long["train"] == len(corpus.train):
        raise ValueError(
            "Expected training pairs of at most max_length word pieces. "
            f"Received: max_length={max_length}, and all {len(corpus.train)} pairs are longer"
        )
    return [
        f"{number} {part} pairs longer than {max_length} word pieces "
        + ("left out" if part == "train" else "cut")
        for part, number in too_long.items()
        if number
    ]


def count_words(chunk: Chunk, pairs: Sequence[Pair], options: Sequence[dict[str, Any]]) -> int:
    """Counts the words of a chunk with `keras_tnattn.text.word_pieces.count_words`."""
    start_tensorflow()
    from keras_tnattn.text import word_pieces

    counts = [
        word_pieces.count_words(texts, **side)
        for texts, side in zip(zip(*pairs, strict=True), options, strict=True)
    ]
    with replacing(chunk.path) as path:
        path.write_text(json.dumps(counts), encoding="utf-8")
    return len(pairs)


def all_counts(chunks: Sequence[Chunk]) -> tuple[collections.Counter[str], ...]:
    """Returns how often each source and each target word occurs, from what `count_words` wrote."""
    totals: tuple[collections.Counter[str], ...] = (collections.Counter(), collections.Counter())
    for chunk in chunks:
        with _reading(chunk.path):
            for total, counts in zip(totals, json.loads(chunk.path.read_bytes()), strict=True):
                total.update(counts)
    return totals


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Reports the damaged file of a chunk."""
    try:
        yield
    except (ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"Expected a file that an interrupted preparation wrote. Received: {path}, which is "
            f"damaged ({error}). Delete it, then continue with the same command"
        ) from error


def tokenize(chunk: Chunk, pairs: Sequence[Pair], folder: Path, max_length: int) -> int:
    """Tokenizes a chunk: longer training pairs are left out, other sentences are cut."""
    sides = []
    for tokenizer, texts in zip(_tokenizers(folder), zip(*pairs, strict=True), strict=True):
        ragged = tokenizer.tokenize(list(texts))
        sides.append((ragged.flat_values.numpy(), ragged.row_lengths().numpy()))
    short = np.all([lengths <= max_length for _, lengths in sides], axis=0)
    arrays: dict[str, Any] = {"too_long": np.sum(~short)}
    for name, (ids, lengths) in zip(SIDES, sides, strict=True):
        if chunk.part == "train":
            ids = ids[np.repeat(short, lengths)]
            lengths = lengths[short]
        else:
            ids, lengths = _cut(ids, lengths, max_length)
        arrays |= {f"{name}_ids": ids, f"{name}_lengths": lengths}
    with replacing(chunk.path) as path, path.open("wb") as file:
        np.savez(file, **arrays)
    return len(pairs)


def _cut(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts longer sentences to their first ids, and keeps their `[END]`."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(ids)) - np.repeat(starts, lengths)
    last = place == np.repeat(lengths, lengths) - 1
    return ids[(place < max_length - 1) | last], np.minimum(lengths, max_length)


def assemble(chunks: Sequence[Chunk], folder: Path) -> dict[str, int]:
    """Joins tokenized chunks to the arrays of each part, chunk by chunk."""
    too_long = dict.fromkeys(PARTS, 0)
    for chunk in chunks:
        with _reading(chunk.path), np.load(chunk.path) as arrays:
            too_long[chunk.part] += int(arrays["too_long"])
    for part in PARTS:
        paths = [chunk.path for chunk in chunks if chunk.part == part]
        for side in SIDES:
            lengths = [np.zeros(1, "int64"), *_read(paths, f"{side}_lengths")]
            offsets = np.cumsum(np.concatenate(lengths))
            np.save(folder / f"{part}_{side}_offsets.npy", offsets)
            with (folder / f"{part}_{side}_ids.npy").open("wb") as file:
                header = {"descr": "<i4", "fortran_order": False, "shape": (int(offsets[-1]),)}
                np.lib.format.write_array_header_1_0(file, header)
                for ids in _read(paths, f"{side}_ids"):
                    file.write(ids.astype("<i4").tobytes())
    return too_long


def _read(paths: Iterable[Path], name: str) -> Iterator[np.ndarray]:
    for path in paths:
        with _reading(path), np.load(path) as arrays:
            array = arrays[name]
        yield array


def load_tokenizers(folder: Path) -> list[Any]:
    """Returns the source and the target tokenizer in a folder."""
    start_tensorflow()
    from keras_tnattn.text.bert_pieces import load_tokenizer

    return [load_tokenizer(folder / f"{side}.txt") for side in SIDES]


_tokenizers = functools.lru_cache(maxsize=1)(load_tokenizers)


def start_worker() -> None:
    """Prepares a process that tokenizes."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # text needs no GPU, whose memory would be taken


@functools.cache
def start_tensorflow() -> None:
    """Imports TensorFlow Text, which converts sentences to ids, without TensorFlow's messages."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with without_noise():
            import tensorflow as tf
            import tensorflow_text  # noqa: F401

            tf.config.list_physical_devices()
    except ImportError as error:
        raise InputError(
            "Expected tensorflow-text, which converts sentences to ids and back, whatever the "
            f"backend. Received: {error}. {installation('tensorflow_text')}"
        ) from error
