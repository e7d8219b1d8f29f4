"""Tokenized corpora on disk. They are written once, and read with only NumPy.

A folder holds `source.txt` and `target.txt` (the vocabularies, with files of their options), ids
and offsets of each part (`train_source_ids.npy` and so on), `texts.json` (the original sentences of
the validation and the test part) and `prepared.json`, which is written last. It describes the
corpus and the options that the folder was made from, and has the SHA-256 of every file. The ids
stay on disk, and are read where they are needed.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.data.pairs.corpus import PARTS, Pair, ParallelCorpus
from keras_tnattn_train.data.pairs.tokenizing import (
    CHUNK_SIZE,
    CHUNKS,
    SIDES,
    learn,
    load_tokenizers,
    start_tensorflow,
    start_worker,
    tokenize_all,
)
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.workers import Workers
from keras_tnattn_train.system.files import reason, write_json
from keras_tnattn_train.system.locks import folder_lock

INDEX = "prepared.json"
INDEXED = {"made_of", "files"}
VERSION = 1  # of the folder's layout and of the tokenization
Progress = Callable[[str, int, int], None]
# In these languages the lower case of I is ı, and that of İ is i.
TURKIC = {"tr", "az"}
SENTENCES_AT_ONCE = 65_536  # sentences whose lengths are computed at once


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The ids of sentences, one after the other.

    Args:
        ids: int32 `(N,)`; every sentence begins with `[START]` and ends with `[END]`.
        offsets: int64 `(R + 1,)`; sentence `r` is `ids[offsets[r]:offsets[r + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of ids of some sentences."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def longest(self) -> int:
        """Returns the greatest number of ids of a sentence, without holding all of them."""
        starts = range(0, len(self), SENTENCES_AT_ONCE)
        return max(int(np.diff(self.offsets[i : i + SENTENCES_AT_ONCE + 1]).max()) for i in starts)


@dataclasses.dataclass(frozen=True)
class TokenizedPart:
    """The `R` pairs of one part."""

    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)


@dataclasses.dataclass(frozen=True)
class PreparedCorpus:
    """A tokenized corpus.

    Args:
        folder: Its folder.
        languages: The names of the source and the target language.
        vocabulary_sizes: The number of ids of each language.
        max_length: The maximum number of ids of a sentence.
        parts: The ids of `"train"`, `"validation"` and `"test"`.
        texts: The original pairs of `"validation"` and `"test"`.
        digest: A SHA-256 of the corpus, the vocabularies and the options; preparing the corpus
            again gives the same one.
        notes: Sentences that describe how the corpus was changed.
    """

    folder: Path
    languages: tuple[str, str]
    vocabulary_sizes: tuple[int, int]
    max_length: int
    parts: dict[str, TokenizedPart]
    texts: dict[str, list[Pair]]
    digest: str
    notes: tuple[str, ...]

    @functools.cached_property
    def tokenizers(self) -> tuple[Any, Any]:
        """The two tokenizers, which are read once. Only these need TensorFlow Text."""
        source, target = load_tokenizers(self.folder)
        return source, target


@dataclasses.dataclass(frozen=True)
class Preparing:
    """How a corpus is prepared.

    Args:
        vocabulary_size: The maximum number of pieces of each language. Default 8,000.
        max_length: The maximum number of ids of a sentence, including `[START]` and `[END]`. Longer
            training pairs are left out; longer validation and test sentences are cut. Default 128.
        lower_case: Whether to lower-case the text; languages named `tr` or `az` have dotted and
            dotless i. Default `False`.
        tokenizer: `"joiners"` for word pieces from which the sentence can be restored exactly;
            `"bert"` for BERT's word pieces, which with `lower_case` also remove accents. Default
            `"joiners"`.
    """

    vocabulary_size: int = 8000
    max_length: int = 128
    lower_case: bool = False
    tokenizer: str = "joiners"

    def options(self, languages: Sequence[str]) -> dict[str, Any]:
        """Returns what the tokenizers of two languages are made of."""
        cases = ["turkish" if name in TURKIC else "lower" for name in languages]
        options = {
            "vocabulary_size": self.vocabulary_size,
            "max_length": self.max_length,
            "cases": cases if self.lower_case else ["keep", "keep"],
            "keep_accents": True,
            "form": "NFC",
        }
        if self.tokenizer == "bert":
            case = "bert" if self.lower_case else "keep"
            options |= {"tokenizer": "bert", "cases": [case] * 2}
        return options


def prepare(
    corpus: ParallelCorpus,
    folder: str | Path,
    preparing: Preparing = Preparing(),
    workers: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> PreparedCorpus:
    """Learns the vocabularies, tokenizes the corpus and writes both to a folder.

    The content does not depend on the number of processes. Memory does not grow with the number of
    pairs, but for a few bytes per pair and the counts of all words; until the end, the disk holds
    the ids twice. An interrupted preparation is continued in `.partial-NAME` beside the folder.

    If another process prepares a corpus in the folder, this is an error.

    If the folder was made from the same corpus with the same options, it is used again. If one of
    its files is missing or has changed, the corpus is prepared again in another folder, which then
    replaces it. A folder with another corpus, which runs may depend on, is an error.

    Each of `workers` processes counts words and tokenizes; BERT's vocabularies are learned in one.
    `progress` is called with what was done to the pairs (`"counted"`, then `"tokenized"`), the
    number done and the number of all.
    """
    folder = Path(folder)
    corpus.part("train")  # which has to exist
    options = preparing.options(corpus.languages)
    made_of = {"version": VERSION, "fingerprint": corpus.fingerprint(), "options": options}
    if finished := _finished_corpus(folder, made_of):
        return finished
    start_tensorflow()
    partial = folder.with_name(f".partial-{folder.name}")
    replaced = _folder_replaced_by(folder)
    with folder_lock(folder) as free:
        if not free:
            raise InputError(
                f"Expected a folder in which no other process prepares a corpus. Received: {folder}"
                ". Wait until that process ends and start again, or choose another folder"
            )
        if finished := _finished_corpus(folder, made_of):  # by another process, meanwhile
            return finished
        try:
            shutil.rmtree(replaced, ignore_errors=True)
            _fill(partial, corpus, preparing, made_of, workers, progress)
            # Not deleted at once: half of a folder could neither be used nor be replaced.
            if folder.exists():
                folder.rename(replaced)
            partial.rename(folder)
            # Only now: without the chunks an interrupted preparation would begin again.
            shutil.rmtree(folder / CHUNKS, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
        except ValueError as error:  # an option, which the tokenizers check
            shutil.rmtree(partial, ignore_errors=True)
            raise InputError(str(error)) from error
        except OSError as error:
            raise InputError(
                f"Could not write the prepared corpus: {reason(error)}. Solve this, then continue "
                "with the same command"
            ) from error
    return load_prepared(folder)


def _fill(
    partial: Path,
    corpus: ParallelCorpus,
    preparing: Preparing,
    made_of: dict[str, Any],
    workers: int,
    progress: Progress,
) -> None:
    """Writes the tokenized corpus into its partial folder, from where an earlier attempt ended."""
    _start_or_continue(partial, made_of)
    number = min(workers, -(-len(corpus.part("train")) // CHUNK_SIZE))
    hint = "continue with the same command and fewer --workers"
    counted, tokenized = (functools.partial(progress, what) for what in ("counted", "tokenized"))
    with Workers(number, hint, start_worker) as processes:
        learn(corpus, partial, made_of["options"], processes, counted)
        notes = tokenize_all(corpus, partial, preparing.max_length, processes, tokenized)
    description = {
        "made_of": made_of,
        "languages": corpus.languages,
        "vocabulary_sizes": [side.vocabulary_size for side in load_tokenizers(partial)],
        "max_length": preparing.max_length,
        "notes": [*corpus.notes, *notes],
    }
    _write_index(corpus, partial, description)


def _finished_corpus(folder: Path, made_of: dict[str, Any]) -> PreparedCorpus | None:
    """Returns the corpus in the folder; `None` if there is none or it is damaged."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    index = _read_index(folder, f"Choose another folder than {folder}")
    if index["made_of"] != made_of:
        raise InputError(
            f"Expected a folder without another prepared corpus. Received: {folder}, made of "
            "another corpus or with other options. Choose another folder, or delete it if no "
            "run needs it"
        )
    try:
        finished = load_prepared(folder)
    except InputError:  # damaged: prepare it again
        return None
    for rest in (folder / CHUNKS, _folder_replaced_by(folder)):  # of an interrupt at the very end
        shutil.rmtree(rest, ignore_errors=True)
    return finished


def _folder_replaced_by(folder: Path) -> Path:
    return folder.with_name(f".replaced-{folder.name}")


def _start_or_continue(partial: Path, made_of: dict[str, Any]) -> None:
    """Creates the folder to fill, unless an interrupted preparation of the same corpus has."""
    manifest = partial / CHUNKS / "made_of.json"
    chunked = {**made_of, "pairs_per_chunk": CHUNK_SIZE}
    with contextlib.suppress(OSError, ValueError):
        if json.loads(manifest.read_text(encoding="utf-8")) == chunked:
            return
    shutil.rmtree(partial, ignore_errors=True)
    manifest.parent.mkdir(parents=True)
    write_json(manifest, chunked)


def _write_index(corpus: ParallelCorpus, partial: Path, description: dict[str, Any]) -> None:
    texts = {part: list(getattr(corpus, part)) for part in PARTS[1:]}
    (partial / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    names = (path.name for path in partial.iterdir() if path.is_file() and path.name != INDEX)
    files = {name: _sha256(partial / name) for name in sorted(names)}
    text = json.dumps({**description, "files": files}, indent=1)
    (partial / INDEX).write_text(text, encoding="utf-8")


def load_prepared(folder: str | Path) -> PreparedCorpus:
    """Reads what `prepare` wrote, with only NumPy."""
    folder = Path(folder)
    index = _read_index(folder, "Prepare the corpus first")
    again = f"Delete {folder} and prepare the corpus again"
    try:
        for name, digest in index["files"].items():
            if _sha256(folder / name) != digest:
                raise InputError(
                    f"{folder / name} is damaged or was changed after it was written. {again}"
                )
        # Leave out the archives, which contain the time when they were written.
        decided = [index["made_of"], *(index["files"][f"{side}.txt"] for side in SIDES)]
        texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        return PreparedCorpus(
            folder,
            tuple(index["languages"]),
            tuple(index["vocabulary_sizes"]),
            index["max_length"],
            {name: _read_part(folder, name) for name in PARTS},
            {name: [tuple(pair) for pair in pairs] for name, pairs in texts.items()},
            hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest(),
            tuple(index["notes"]),
        )
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(f"Could not read the prepared corpus: {error}. {again}") from error


_FIELDS = [field.name for field in dataclasses.fields(Sentences)]


def _read_index(folder: Path, hint: str) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if not isinstance(index, dict) or not INDEXED.issubset(index):
            raise ValueError(f"{INDEX} is damaged or from another program")
        if not isinstance(index["files"], dict):
            raise ValueError(f"files={index['files']!r} in {INDEX}, which is damaged")
        return index
    except (OSError, ValueError) as error:
        raise InputError(f"Expected a folder with {INDEX}. Received: {error}. {hint}") from error


def _read_part(folder: Path, name: str) -> TokenizedPart:
    def mapped(field: str) -> np.ndarray:
        # A plain view of the mapped file: indexing it gives plain arrays.
        return np.asarray(np.load(folder / f"{name}_{field}.npy", mmap_mode="r"))

    return TokenizedPart(
        *(Sentences(**{f: mapped(f"{side}_{f}") for f in _FIELDS}) for side in SIDES)
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
