"""Counts words and tokenizes pairs chunk by chunk, in one process or several.

The result of each chunk is a file, so that interrupted work goes on where it stopped, and what is
in memory does not grow with the corpus.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from keras_tnattn_train.data.pairs.corpus import PARTS, Pair, ParallelCorpus
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.children import end_with_parent
from keras_tnattn_train.system.files import replacing
from keras_tnattn_train.system.noise import without_noise

SIDES = ("source", "target")
PAIRS = 8192  # of a chunk

Work = Callable[..., int]
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """`PAIRS` pairs of a part, or the rest of it, and the file of its result."""

    part: str
    start: int
    path: Path


class Workers:
    """Processes that compute chunks. Use it in a `with` statement.

    Args:
        number: The number of processes. With one, this process computes the chunks itself.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._pool = None
        if number > 1:
            # Each starts with its first chunk. A fork could not use TensorFlow.
            self._pool = concurrent.futures.ProcessPoolExecutor(
                number, multiprocessing.get_context("spawn"), _start_worker
            )

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def compute(
        self,
        work: Work,
        corpus: ParallelCorpus,
        chunks: Sequence[Chunk],
        progress: Progress,
        *arguments: Any,
    ) -> None:
        """Computes the chunks whose files are missing.

        Args:
            work: A function of a module, from a chunk, its pairs and `arguments` to the number of
                pairs; it writes the file.
            corpus: The corpus.
            chunks: All chunks.
            progress: Called with the number of finished pairs and the number of all; not called
                if the pairs that are left fit into one chunk.
            *arguments: More arguments of `work`.

        Raises:
            InputError: If a process was killed, or a file cannot be written.
        """
        missing = [chunk for chunk in chunks if not chunk.path.exists()]
        total, left = (sum(_size(corpus, c) for c in some) for some in (chunks, missing))
        done = total - left
        if left <= PAIRS:  # which takes a moment
            progress = _silent
        progress(done, total)
        jobs = (
            (c, getattr(corpus, c.part)[c.start : c.start + PAIRS], *arguments) for c in missing
        )
        for pairs in self._results(work, jobs):
            done += pairs
            progress(done, total)

    def _results(self, work: Work, jobs: Iterable[tuple[Any, ...]]) -> Iterator[int]:
        """Yields the results in the order in which they are finished."""
        if self._pool is None:
            yield from (work(*job) for job in jobs)
            return
        running: set[concurrent.futures.Future[int]] = set()
        try:
            for job in jobs:
                if len(running) == 2 * self._number:  # so that few chunks are in memory
                    finished, running = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    yield from (future.result() for future in finished)
                running.add(self._pool.submit(work, *job))
            for future in concurrent.futures.as_completed(running):
                yield future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "A process that prepares the corpus was killed, perhaps for lack of memory. "
                "Continue with the same command and fewer --workers"
            ) from error


def chunks_of(corpus: ParallelCorpus, parts: Sequence[str], folder: Path, kind: str) -> list[Chunk]:
    """Returns the chunks of some parts, in order; `kind` begins the names of their files."""
    return [
        Chunk(part, start, folder / f"{kind}-{part}-{start:010}")
        for part in parts
        for start in range(0, len(getattr(corpus, part)), PAIRS)
    ]


def _silent(done: int, total: int) -> None:
    """Shows nothing."""


def _size(corpus: ParallelCorpus, chunk: Chunk) -> int:
    return min(PAIRS, len(getattr(corpus, chunk.part)) - chunk.start)


def count_words(chunk: Chunk, pairs: Sequence[Pair], options: Sequence[dict[str, Any]]) -> int:
    """Counts the words of a chunk with `keras_tnattn.text.word_pieces.count_words`.

    Args:
        chunk: The chunk.
        pairs: Its pairs.
        options: The options of the source and of the target tokenizer.
    """
    start_tensorflow()
    from keras_tnattn.text import word_pieces

    counts = [
        word_pieces.count_words(texts, **some)
        for texts, some in zip(zip(*pairs, strict=True), options, strict=True)
    ]
    with replacing(chunk.path) as path:
        path.write_text(json.dumps(counts), encoding="utf-8")
    return len(pairs)


def all_counts(chunks: Sequence[Chunk]) -> tuple[collections.Counter[str], ...]:
    """Returns how often each source and each target word occurs, from what `count_words` wrote.

    Raises:
        InputError: If a file is damaged.
    """
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
    """Tokenizes a chunk.

    Args:
        chunk: The chunk. Its file holds `source_ids`, `source_lengths`, `target_ids`,
            `target_lengths` and `too_long`, the number of longer pairs.
        pairs: Its pairs.
        folder: The folder with the tokenizers, `source.txt` and `target.txt`.
        max_length: The maximum number of ids of a sentence. Longer training pairs are left out,
            other sentences are cut.
    """
    sides = []
    for tokenizer, texts in zip(_tokenizers(folder), zip(*pairs, strict=True), strict=True):
        ragged = tokenizer.tokenize(list(texts))
        sides.append((ragged.flat_values.numpy(), ragged.row_lengths().numpy()))
    short = np.all([lengths <= max_length for _, lengths in sides], axis=0)
    arrays: dict[str, Any] = {"too_long": np.sum(~short)}
    for name, (ids, lengths) in zip(SIDES, sides, strict=True):
        if chunk.part == "train":
            kept = ids[np.repeat(short, lengths)], lengths[short]
        else:
            kept = _cut(ids, lengths, max_length)
        arrays |= {f"{name}_ids": kept[0], f"{name}_lengths": kept[1]}
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
    """Joins tokenized chunks to the arrays of each part, chunk by chunk.

    Returns:
        For each part, the number of pairs that were longer than the maximum.

    Raises:
        InputError: If a file is damaged.
    """
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
    """Returns the source and the target tokenizer in a folder.

    Raises:
        InputError: If TensorFlow Text is not installed.
    """
    start_tensorflow()
    from keras_tnattn.text.bert_pieces import load_tokenizer

    return [load_tokenizer(folder / f"{side}.txt") for side in SIDES]


_tokenizers = functools.lru_cache(maxsize=1)(load_tokenizers)


def forget_tokenizers() -> None:
    """Makes this process load the tokenizers again, because the folder now holds others."""
    _tokenizers.cache_clear()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the others
    end_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # text needs no GPU, whose memory would be taken


@functools.cache
def start_tensorflow() -> None:
    """Imports TensorFlow Text, which converts sentences to ids, without TensorFlow's messages.

    Raises:
        InputError: If it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with without_noise():
            import tensorflow as tf
            import tensorflow_text  # noqa: F401

            tf.config.list_physical_devices()
    except ImportError as error:
        raise InputError(
            "Expected tensorflow-text, which converts sentences to ids and back, whatever the "
            f"backend. Received: {error}. Install it with: pip install 'keras-tnattn[text]'"
        ) from error
