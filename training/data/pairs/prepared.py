"""Tokenized corpora on disk: made once, read with NumPy alone.

A folder holds `source.txt` and `target.txt` (the vocabularies, with their options beside them),
`train.npz`, `validation.npz` and `test.npz` (ids), `texts.json` (the sentences of the validation
and the test part, as they were given) and, last of all, `prepared.json`: what it was made of, and
the SHA-256 of every file.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from training.data.pairs.corpus import PARTS, Pair, ParallelCorpus
from training.errors import InputError

SIDES = ("source", "target")
INDEX = "prepared.json"
INDEXED = {"made_of", "files"}
VERSION = 1  # of the folder's layout and of the way sentences are cut into pieces
# I and ı, İ and i are the pairs of cases in these languages.
TURKIC = {"tr", "az"}


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The ids of sentences, one after the other.

    Args:
        ids: int32 `(N,)`; every sentence from `[START]` to `[END]`.
        offsets: int64 `(R + 1,)`; sentence `r` is `ids[offsets[r]:offsets[r + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """How many ids each sentence has, int64 `(R,)`."""
        return np.diff(self.offsets)


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
        folder: Where it is.
        languages: The names of the source and the target language.
        vocabulary_sizes: How many ids each of them has.
        max_length: No sentence has more ids.
        parts: The ids of `"train"`, `"validation"` and `"test"`.
        texts: The pairs of `"validation"` and `"test"` as they were given.
        digest: A SHA-256 of the corpus, the vocabularies and the options; the same whenever it
            is made anew.
        notes: What was done to the corpus, a sentence each.
    """

    folder: Path
    languages: tuple[str, str]
    vocabulary_sizes: tuple[int, int]
    max_length: int
    parts: dict[str, TokenizedPart]
    texts: dict[str, list[Pair]]
    digest: str
    notes: tuple[str, ...]

    def tokenizers(self) -> tuple[Any, Any]:
        """Returns the two tokenizers. Only this needs TensorFlow Text."""
        from keras_tnattn.text.word_pieces import WordPieceTokenizer

        source, target = (self.folder / f"{side}.txt" for side in SIDES)
        return WordPieceTokenizer.load(source), WordPieceTokenizer.load(target)


def prepare(
    corpus: ParallelCorpus,
    folder: str | Path,
    vocabulary_size: int = 8000,
    max_length: int = 128,
    lower_case: bool = False,
    keep_accents: bool = True,
    form: str = "NFC",
) -> PreparedCorpus:
    """Learns the vocabularies, tokenizes the corpus and writes both to a folder.

    What the folder holds is used again if it was made of the same corpus with the same options. If
    a file of it is missing or was changed since, it is made anew, beside the folder, and takes its
    place when it is complete. Another corpus in the folder, which runs may depend on, stays.

    Args:
        corpus: The corpus; the vocabularies are learned from its training part alone.
        folder: The folder; it need not exist.
        vocabulary_size: The most pieces of each language. Default 8,000.
        max_length: The most ids of a sentence, `[START]` and `[END]` included. A longer training
            pair is left out; a longer validation or test sentence is cut. Default 128.
        lower_case: Lower the case; in Turkish (languages named `tr`, `az`) with its two i's.
            Default `False`.
        keep_accents: Whether accents stay on their letters. Default `True`.
        form: The Unicode form, `"NFC"` or `"NFKC"`. Default `"NFC"`.

    Returns:
        The tokenized corpus.

    Raises:
        InputError: If the corpus has no training part or no pair of it is short enough, an option
            does not fit, or the folder holds another prepared corpus or something else, or cannot
            be written.
    """
    folder, training = Path(folder), corpus.part("train")
    cases: list[str] = ["turkish" if name in TURKIC else "lower" for name in corpus.languages]
    cases = cases if lower_case else ["keep", "keep"]
    options = {
        "vocabulary_size": vocabulary_size,
        "max_length": max_length,
        "cases": cases,
        "keep_accents": keep_accents,
        "form": form,
    }
    made_of = {"version": VERSION, "fingerprint": corpus.fingerprint(), "options": options}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        index = _read_index(folder, f"Choose another folder than {folder}")
        if index["made_of"] != made_of:
            raise InputError(
                f"Expected a folder without another prepared corpus. Received: {folder}, made of "
                "another corpus or with other options. Choose another folder, or delete it if no "
                "run needs it"
            )
        with contextlib.suppress(InputError):  # damaged: made anew
            return load_prepared(folder)

    from keras_tnattn.text.word_pieces import learn_word_pieces

    try:
        tokenizers = [
            learn_word_pieces(
                side, vocabulary_size, case=case, keep_accents=keep_accents, form=form
            )
            for side, case in zip(zip(*training, strict=True), cases, strict=True)
        ]
        parts, notes = _tokenized(corpus, tokenizers, max_length)
    except ValueError as error:  # the tokenizers check their own options
        raise InputError(str(error)) from error
    description = {
        "made_of": made_of,
        "languages": corpus.languages,
        "vocabulary_sizes": [tokenizer.vocabulary_size for tokenizer in tokenizers],
        "max_length": max_length,
        "notes": [*corpus.notes, *notes],
    }
    partial = folder.with_name(f".partial-{folder.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for side, tokenizer in zip(SIDES, tokenizers, strict=True):
            tokenizer.save(partial / f"{side}.txt")
        for name, part in parts.items():
            np.savez(
                partial / f"{name}.npz",
                **{f"{s}_{f}": getattr(getattr(part, s), f) for s in SIDES for f in _FIELDS},
            )
        texts = {name: list(getattr(corpus, name)) for name in PARTS[1:]}
        (partial / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        description["files"] = {path.name: _sha256(path) for path in sorted(partial.iterdir())}
        (partial / INDEX).write_text(json.dumps(description, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        raise InputError(f"Expected a folder that can be written. Received: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return load_prepared(folder)


def load_prepared(folder: str | Path) -> PreparedCorpus:
    """Reads what `prepare` wrote, with NumPy alone.

    Raises:
        InputError: If there is no such folder, or a file of it is missing or was changed.
    """
    folder = Path(folder)
    index = _read_index(folder, "Prepare the corpus first")
    again = f"Delete {folder} and prepare the corpus again"
    try:
        for name, digest in index["files"].items():
            if _sha256(folder / name) != digest:
                raise InputError(
                    f"Expected {folder / name} as it was written. Received: a damaged or changed "
                    f"file. {again}"
                )
        # Not of the archives, which hold the time of their making.
        decided = [index["made_of"], *(index["files"][f"{side}.txt"] for side in SIDES)]
        texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        return PreparedCorpus(
            folder,
            tuple(index["languages"]),
            tuple(index["vocabulary_sizes"]),
            index["max_length"],
            {name: _read_part(folder / f"{name}.npz") for name in PARTS},
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
        raise InputError(f"Expected a whole prepared corpus. Received: {error}. {again}") from error


_FIELDS = [field.name for field in dataclasses.fields(Sentences)]


def _tokenized(
    corpus: ParallelCorpus, tokenizers: list, max_length: int
) -> tuple[dict[str, TokenizedPart], list[str]]:
    parts, notes = {}, []
    for name in PARTS:
        pairs = getattr(corpus, name)
        whole = [
            _tokenized_side(tokenizer, [pair[i] for pair in pairs])
            for i, tokenizer in enumerate(tokenizers)
        ]
        short = np.all([side.lengths <= max_length for side in whole], axis=0)
        too_long = int(np.sum(~short))
        if name == "train":
            parts[name] = TokenizedPart(*(_kept(side, short) for side in whole))
            what = "left out"
        else:
            parts[name] = TokenizedPart(*(_cut(side, max_length) for side in whole))
            what = "cut"
        if too_long:
            notes.append(f"{too_long} {name} pairs longer than {max_length} word pieces {what}")
    if not len(parts["train"]):
        raise InputError(
            "Expected training sentences that are short enough. "
            f"Received: max_length={max_length}, and all {len(corpus.train)} pairs are longer"
        )
    return parts, notes


def _tokenized_side(tokenizer: Any, texts: list[str], rows: int = 8192) -> Sentences:
    ids, lengths = [np.zeros(0, "int32")], [np.zeros(1, "int64")]
    for start in range(0, len(texts), rows):
        ragged = tokenizer.tokenize(texts[start : start + rows])
        ids.append(ragged.flat_values.numpy())
        lengths.append(ragged.row_lengths().numpy())
    return Sentences(np.concatenate(ids), np.cumsum(np.concatenate(lengths)))


def _kept(sentences: Sentences, rows: np.ndarray) -> Sentences:
    """Keeps the sentences where the booleans `rows` `(R,)` say so."""
    lengths = sentences.lengths
    offsets = np.concatenate([np.zeros(1, "int64"), np.cumsum(lengths[rows])])
    return Sentences(sentences.ids[np.repeat(rows, lengths)], offsets)


def _cut(sentences: Sentences, max_length: int) -> Sentences:
    """Keeps the first ids of longer sentences, and their `[END]`."""
    lengths = sentences.lengths
    place = np.arange(len(sentences.ids)) - np.repeat(sentences.offsets[:-1], lengths)
    last = place == np.repeat(lengths, lengths) - 1
    offsets = np.concatenate([np.zeros(1, "int64"), np.cumsum(np.minimum(lengths, max_length))])
    return Sentences(sentences.ids[(place < max_length - 1) | last], offsets)


def _read_index(folder: Path, instead: str) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if not isinstance(index, dict) or not INDEXED.issubset(index):
            raise ValueError(f"{INDEX} is another program's, or damaged")
        if not isinstance(index["files"], dict):
            raise ValueError(f"files={index['files']!r} in {INDEX}, which is damaged")
        return index
    except (OSError, ValueError) as error:
        raise InputError(f"Expected a folder with {INDEX}. Received: {error}. {instead}") from error


def _read_part(path: Path) -> TokenizedPart:
    with np.load(path) as arrays:
        return TokenizedPart(
            *(Sentences(**{f: arrays[f"{side}_{f}"] for f in _FIELDS}) for side in SIDES)
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
