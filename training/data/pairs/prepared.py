"""Tokenized corpora on disk. They are written once, and read with only NumPy.

A folder holds `source.txt` and `target.txt` (the vocabularies, with files of their options), ids
and offsets of each part (`train_source_ids.npy` and so on), `texts.json` (the original sentences of
the validation and the test part) and `prepared.json`, which is written last. It describes the
corpus and the options that the folder was made from, and has the SHA-256 of every file. The ids
stay on disk, and are read where they are needed.
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

from training.base.errors import InputError
from training.data.pairs.corpus import PARTS, Pair, ParallelCorpus

SIDES = ("source", "target")
INDEX = "prepared.json"
INDEXED = {"made_of", "files"}
VERSION = 1  # of the folder's layout and of the tokenization
# In these languages the lower case of I is ı, and that of İ is i.
TURKIC = {"tr", "az"}


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

    @property
    def lengths(self) -> np.ndarray:
        """The number of ids of each sentence, int64 `(R,)`."""
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

    def tokenizers(self) -> tuple[Any, Any]:
        """Returns the two tokenizers. Only this method needs TensorFlow Text."""
        from keras_tnattn.text.bert_pieces import load_tokenizer

        source, target = (load_tokenizer(self.folder / f"{side}.txt") for side in SIDES)
        return source, target


def prepare(
    corpus: ParallelCorpus,
    folder: str | Path,
    vocabulary_size: int = 8000,
    max_length: int = 128,
    lower_case: bool = False,
    keep_accents: bool = True,
    form: str = "NFC",
    tokenizer: str = "joiners",
) -> PreparedCorpus:
    """Learns the vocabularies, tokenizes the corpus and writes both to a folder.

    If the folder was made from the same corpus with the same options, it is used again. If one of
    its files is missing or has changed, the corpus is prepared again in another folder, which then
    replaces it. A folder with another corpus, which runs may depend on, is an error.

    Args:
        corpus: The corpus; the vocabularies are learned from its training part.
        folder: The folder; it need not exist.
        vocabulary_size: The maximum number of pieces of each language. Default 8,000.
        max_length: The maximum number of ids of a sentence, including `[START]` and `[END]`. Longer
            training pairs are left out; longer validation and test sentences are cut. Default 128.
        lower_case: Whether to lower-case the text; languages named `tr` or `az` have dotted and
            dotless i. Default `False`.
        keep_accents: Whether letters keep their accents. Default `True`.
        form: The Unicode form, `"NFC"` or `"NFKC"`. Default `"NFC"`.
        tokenizer: `"joiners"` for word pieces from which the sentence can be restored exactly;
            `"bert"` for BERT's word pieces, which ignore `keep_accents` and `form`, and with
            `lower_case` also remove accents. Default `"joiners"`.

    Returns:
        The tokenized corpus.

    Raises:
        InputError: If the corpus has no training part or none of its pairs is short enough, if an
            option is invalid, or if the folder holds something else or cannot be written.
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
    if tokenizer == "bert":
        options |= {"tokenizer": "bert", "cases": ["bert" if lower_case else "keep"] * 2}
    made_of = {"version": VERSION, "fingerprint": corpus.fingerprint(), "options": options}
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        index = _read_index(folder, f"Choose another folder than {folder}")
        if index["made_of"] != made_of:
            raise InputError(
                f"Expected a folder without another prepared corpus. Received: {folder}, made of "
                "another corpus or with other options. Choose another folder, or delete it if no "
                "run needs it"
            )
        with contextlib.suppress(InputError):  # damaged: prepare it again
            return load_prepared(folder)

    from keras_tnattn.text.bert_pieces import learn_bert_pieces
    from keras_tnattn.text.word_pieces import learn_word_pieces

    try:
        tokenizers = [
            learn_bert_pieces(side, vocabulary_size, lower_case)
            if tokenizer == "bert"
            else learn_word_pieces(
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
        for side, learned in zip(SIDES, tokenizers, strict=True):
            learned.save(partial / f"{side}.txt")
        for name, part in parts.items():
            for side in SIDES:
                for field in _FIELDS:
                    array = getattr(getattr(part, side), field)
                    np.save(partial / f"{name}_{side}_{field}.npy", array)
        texts = {name: list(getattr(corpus, name)) for name in PARTS[1:]}
        (partial / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        description["files"] = {path.name: _sha256(path) for path in sorted(partial.iterdir())}
        (partial / INDEX).write_text(json.dumps(description, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        raise InputError(f"Could not write the prepared corpus: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return load_prepared(folder)


def load_prepared(folder: str | Path) -> PreparedCorpus:
    """Reads what `prepare` wrote, with only NumPy.

    Raises:
        InputError: If there is no such folder, or one of its files is missing or has changed.
    """
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
            "Expected training pairs of at most max_length word pieces. "
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
    """Keeps the sentences where the booleans `rows`, of shape `(R,)`, are `True`."""
    lengths = sentences.lengths
    offsets = np.concatenate([np.zeros(1, "int64"), np.cumsum(lengths[rows])])
    return Sentences(sentences.ids[np.repeat(rows, lengths)], offsets)


def _cut(sentences: Sentences, max_length: int) -> Sentences:
    """Cuts longer sentences to their first ids, and keeps their `[END]`."""
    lengths = sentences.lengths
    place = np.arange(len(sentences.ids)) - np.repeat(sentences.offsets[:-1], lengths)
    last = place == np.repeat(lengths, lengths) - 1
    offsets = np.concatenate([np.zeros(1, "int64"), np.cumsum(np.minimum(lengths, max_length))])
    return Sentences(sentences.ids[(place < max_length - 1) | last], offsets)


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
    archive = folder / f"{name}.npz"  # as earlier versions wrote it
    if archive.exists():
        with np.load(archive) as arrays:
            return TokenizedPart(
                *(Sentences(**{f: arrays[f"{side}_{f}"] for f in _FIELDS}) for side in SIDES)
            )

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
