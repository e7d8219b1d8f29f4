"""Loads parallel corpora by name or path."""

import abc
import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from keras_tnattn_runtime.reader import visible
from keras_tnattn_train.data.opening import PACKINGS, open_lines
from keras_tnattn_train.data.pairs import cldr
from keras_tnattn_train.data.pairs.corpus import PARTS, Pair, ParallelCorpus, StoredPairs, cut_parts
from keras_tnattn_train.data.pairs.languages import is_name_of_side
from keras_tnattn_train.data.pairs.registry import PARALLEL_SETS
from keras_tnattn_train.data.reading import TFDS, refuse, unknown_source
from keras_tnattn_train.data.tables import (
    NOT_UTF_8,
    BadRows,
    Table,
    open_table,
    problem_of,
    quantity,
    undecodable,
)
from keras_tnattn_train.data.texts.libraries import load_tfds_pairs
from keras_tnattn_train.options.errors import InputError

# Other common names of the parts.
ALIASES = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}
CLDR = "cldr:"
UNDIVIDED_FILE = "data.tsv.xz"  # a corpus of a data folder that is not divided into parts


def load_pairs(
    corpus: str = "cldr:pt-en",
    data_dir: str | None = None,
    reverse: bool = False,
    seed: int = 0,
    cut: bool = True,
    skip_bad_rows: bool = False,
) -> ParallelCorpus:
    """Reads a parallel corpus.

    Args:
        corpus: One of
            `cldr:SOURCE-TARGET`, two of `en`, `pt` and `tr`: CLDR data rendered by Babel;
            a name in `keras_tnattn_train.data.pairs.registry.PARALLEL_SETS`: tables in `data_dir`;
            `tfds:NAME`: a translation set of TensorFlow Datasets;
            the path of a table, as `open_table` reads it, with the columns `source` and `target`,
            or only two columns, named after their languages;
            two paths `A,B` of text files with one sentence per line (`train.pt,train.en`);
            a folder for `tfds.TranslateFolder`: files `LANGUAGE.PART.txt` in two languages.
        data_dir: The folder of the tables; TFDS' folder for `tfds:NAME`.
        reverse: Whether to exchange source and target. Default `False`.
        seed: Seed of the content (`cldr`) and of the parts that are split off.
        cut: Whether to split missing parts off the training part; `cldr` always has all parts.
            Default `True`.
        skip_bad_rows: Whether to leave out rows and lines of files that cannot be read or have an
            empty side. Default `False`.

    Returns:
        The pairs; the same corpus and seed always give the same pairs in the same order. Parts that
        the corpus has stay as they are. With `cut` a missing validation or test part is split off
        the training part, so that none of its sentences, source or target, is trained on.
    """
    name = corpus.removeprefix(TFDS)
    table = _table_name(corpus)
    if corpus.startswith(CLDR):
        refuse("corpus", corpus, data_dir=data_dir)
        loaded = _load_cldr(corpus.removeprefix(CLDR), seed)
    elif table and data_dir and Path(data_dir, table).is_dir():
        loaded = _load_tables(
            Path(data_dir, table), PARALLEL_SETS[table].languages, seed, cut, skip_bad_rows
        )
    elif corpus in PARALLEL_SETS:
        raise InputError(
            f"Expected --data-dir with a folder that holds {corpus}. Received: data_dir={data_dir}"
        )
    elif corpus.startswith(TFDS):
        languages, parts = load_tfds_pairs(name, data_dir)
        filled: dict[str, _Pairs] = {name: _FilledPairs(pairs) for name, pairs in parts.items()}
        loaded = _corpus_of_parts(languages, _in_order_of_parts(filled), seed, cut)
    else:
        refuse("corpus", corpus, data_dir=data_dir)
        loaded = _load_path(corpus, seed, cut, skip_bad_rows)
    return loaded.swap_sides() if reverse else loaded


def check_trainable(corpus: str, data_dir: str | None = None) -> None:
    """Checks, without reading it, that a corpus exists and has a training part."""
    table = _table_name(corpus)
    folder = Path(data_dir, table) if table and data_dir else None
    if folder and folder.is_dir():
        if not any((folder / name).exists() for name in (UNDIVIDED_FILE, "train.tsv.xz")):
            raise InputError(
                f"Expected a corpus with a training part. Received: corpus={corpus!r}, but there "
                f"is no train.tsv.xz in {folder}. Train on another corpus, such as {CLDR}pt-en or "
                "multi30k_pt_en"
            )
    elif corpus in PARALLEL_SETS:
        load_pairs(corpus, data_dir)  # raises an error that says what is missing
    elif not corpus.startswith((CLDR, TFDS)):
        _paths(corpus)


def has_own_parts(corpus: str, data_dir: str | None = None) -> bool:
    """Tells whether a corpus is a table that is divided into parts: the same for all seeds."""
    table = _table_name(corpus)
    if not table or not data_dir:
        return False
    return all(Path(data_dir, table, f"{part}.tsv.xz").exists() for part in PARTS)


def _table_name(corpus: str) -> str | None:
    """Returns the name of the folder that may hold the corpus."""
    if not corpus.startswith(TFDS):
        return corpus if corpus in PARALLEL_SETS else None
    name = corpus.removeprefix(TFDS)
    return next((table for table, entry in PARALLEL_SETS.items() if entry.tfds == name), None)


def _load_cldr(languages: str, seed: int) -> ParallelCorpus:
    source, _, target = languages.partition("-")
    pairs = cldr.render_pairs(source, target, seed)
    held = cldr.HELD_OUT
    parts = (pairs[2 * held :], pairs[:held], pairs[held : 2 * held])
    return ParallelCorpus((source, target), *parts)


def _load_tables(
    folder: Path, languages: tuple[str, str], seed: int, cut: bool, skip: bool
) -> ParallelCorpus:
    paths = {name: folder / f"{name}.tsv.xz" for name in PARTS}
    if (folder / UNDIVIDED_FILE).exists():
        paths = {"train": folder / UNDIVIDED_FILE}
    parts = {
        name: _TablePairs(path, skip)
        for name, path in paths.items()
        if name != "train" or path.exists()
    }
    return _corpus_of_parts(languages, parts, seed, cut)


def _paths(corpus: str) -> list[Path]:
    """Returns the path of a corpus, or the two paths of its source and target file."""
    both = [name.strip() for name in corpus.split(",")]
    if Path(corpus).exists():
        return [Path(corpus)]
    if len(both) == 2 and all(both):
        for name in both:
            if not Path(name).is_file():
                raise InputError(f"There is no file {name!r} (corpus={corpus!r})")
        return [Path(name) for name in both]
    raise unknown_source("corpus", corpus, [f"{CLDR}pt-en", *PARALLEL_SETS, f"{TFDS}NAME"])


def _load_path(corpus: str, seed: int, cut: bool, skip: bool) -> ParallelCorpus:
    path, *others = _paths(corpus)
    if path.is_dir():
        return _load_translate_folder(path, seed, cut, skip)
    pairs: _Pairs
    if others:
        languages = (_language(path), _language(others[0]))
        pairs = _LinePairs(path, others[0], skip)
    else:
        pairs = _TablePairs(path, skip)
        languages = pairs.languages
    if len(set(languages)) < 2:
        languages = ("source", "target")
    return _corpus_of_parts(languages, {"train": pairs}, seed, cut)


def _load_translate_folder(folder: Path, seed: int, cut: bool, skip: bool) -> ParallelCorpus:
    files: dict[str, dict[str, Path]] = collections.defaultdict(dict)
    for path in sorted(folder.glob("*.*.txt")):
        language, part = path.name.split(".")[:2]
        files[language][part] = path
    if len(files) != 2:
        raise InputError(
            "Expected a folder with LANGUAGE.PART.txt files of two languages. "
            f"Received: {folder}, with languages={list(files)}"
        )
    (source, sources), (target, targets) = files.items()
    if set(sources) != set(targets):
        raise InputError(
            f"Expected the same parts in both languages. Received: {folder}: "
            f"{source}={list(sources)}, {target}={list(targets)}"
        )
    parts = _in_order_of_parts(
        {part: _LinePairs(path, targets[part], skip) for part, path in sources.items()}
    )
    return _corpus_of_parts((source, target), parts, seed, cut)


def _in_order_of_parts(parts: Mapping[str, "_Pairs"]) -> dict[str, "_Pairs"]:
    renamed = {ALIASES.get(name, name): pairs for name, pairs in parts.items()}
    return {name: renamed[name] for name in PARTS if name in renamed}


def _corpus_of_parts(
    languages: Iterable[str], parts: Mapping[str, "_Pairs"], seed: int, cut: bool
) -> ParallelCorpus:
    """Stores the pairs, perhaps splits off missing parts, and notes what the user should know."""
    notes = []
    stored: dict[str, Sequence[Pair]] = {}
    for name, pairs in parts.items():
        stored[name] = StoredPairs(pairs)
        notes += [note if len(parts) == 1 else f"{name}: {note}" for note in pairs.notes()]
    if not any(stored.values()):
        raise InputError("Expected pairs of sentences. Received: none")
    if stored.get("train"):
        held_out = {name: stored[name] for name in PARTS[1:] if stored.get(name)}
        for name, met in _met_in_training(stored["train"], held_out).items():
            if met:
                notes.append(f"{met} {name} pairs share a sentence with the training part")
        missing = [name for name in PARTS[1:] if name not in held_out]
        if cut and missing:
            stored |= cut_parts(stored["train"], seed, missing)
            notes += [
                f"{len(stored[name])} {name} pairs split off the training part" for name in missing
            ]
    train, validation, test = (stored.get(name, []) for name in PARTS)
    source, target = languages
    return ParallelCorpus((source, target), train, validation, test, tuple(notes))


def _met_in_training(
    train: Sequence[Pair], held_out: Mapping[str, Sequence[Pair]]
) -> dict[str, int]:
    """Returns how many pairs of each part share a source or a target with the training part."""
    known: list[set[str]] = []
    for side in (0, 1):
        sentences = {pair[side] for pairs in held_out.values() for pair in pairs}
        known.append({pair[side] for pair in train if pair[side] in sentences})
    return {
        name: sum(pair[0] in known[0] or pair[1] in known[1] for pair in pairs)
        for name, pairs in held_out.items()
    }


class _Pairs(abc.ABC):
    """Pairs that are read once, and then what is to be said about them."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Pair]: ...

    @abc.abstractmethod
    def notes(self) -> list[str]:
        """Returns sentences about the pairs, after they were read."""


class _FilledPairs(_Pairs):
    """The pairs with two sentences of a corpus that users cannot correct."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = pairs
        self._dropped = 0

    def __iter__(self) -> Iterator[Pair]:
        for pair in self._pairs:
            if all(map(str.strip, pair)):
                yield pair
            else:
                self._dropped += 1

    def notes(self) -> list[str]:
        if not self._dropped:
            return []
        return [f"{quantity(self._dropped, 'pair')} with an empty side left out"]


class _TablePairs(_Pairs):
    """The pairs of a table with columns `source` and `target`, or with two columns."""

    def __init__(self, path: Path, skip: bool) -> None:
        self._path = path
        self._bad = BadRows(path, skip)
        self._notes = list[str]()
        with open_table(path) as table:
            source, target = self._places(table)
            self.languages = (table.columns[source], table.columns[target])

    @staticmethod
    def _places(table: Table) -> tuple[int, int]:
        named = table.place("source"), table.place("target")
        if named[0] is not None and named[1] is not None:
            return named[0], named[1]
        if len(table.columns) != 2:
            raise InputError(
                f"Expected {table.path} to have the columns source and target, or two columns. "
                f"Received: columns={table.columns}"
            )
        if not all(map(is_name_of_side, table.columns)):
            raise InputError(
                f"Expected {table.path} to start with the names of its columns: source and target, "
                f"or two languages such as pt and en. Received: columns={table.columns}, which "
                "look like a pair of sentences. Add a line with names"
            )
        return 0, 1

    def __iter__(self) -> Iterator[Pair]:
        headers = 0
        with open_table(self._path) as table:
            source, target = self._places(table)
            for row in table:
                if row.problem is not None:
                    self._bad.add(row, row.problem)
                elif table.repeats_header(row):
                    headers += 1
                else:
                    pair = row.fields[source], row.fields[target]
                    if problem := problem_of(row, (source, target)) or _problem(pair):
                        self._bad.add(row, problem)
                    else:
                        yield pair
            self._notes += [*table.notes(), *self._bad.notes()]
        if headers:
            self._notes.append(f"{quantity(headers, 'row')} equal to the header left out")

    def notes(self) -> list[str]:
        return self._notes


class _LinePairs(_Pairs):
    """The lines of two files, the one the translation of the other."""

    def __init__(self, source: Path, target: Path, skip: bool) -> None:
        if source.exists() and target.exists() and source.samefile(target):
            raise InputError(
                f"Expected a source file and another target file. Received: {source} as both"
            )
        self._paths = source, target
        self._bad = BadRows(f"{source} and {target}", skip)

    def __iter__(self) -> Iterator[Pair]:
        source, target = self._paths
        with open_lines(source, "text file") as sources, open_lines(target, "text file") as targets:
            for number, lines in enumerate(itertools.zip_longest(sources, targets)):
                if None in lines:
                    more = number + 1 + sum(1 for _ in itertools.chain(sources, targets))
                    counts = (number, more) if lines[0] is None else (more, number)
                    raise InputError(
                        "Expected the same number of lines in both files. Received: "
                        f"{counts[0]} in {source}, {counts[1]} in {target}"
                    )
                pair = lines[0].rstrip("\r\n"), lines[1].rstrip("\r\n")
                if problem := _problem(pair):
                    self._bad.add(f"line {number + 1}", problem)
                else:
                    yield pair
        self._bad_notes = self._bad.notes()

    def notes(self) -> list[str]:
        return list(self._bad_notes)


def _problem(pair: Pair) -> str | None:
    """Returns what is wrong with a pair; `None` if nothing is."""
    for side, sentence in zip(("source", "target"), pair, strict=True):
        if undecodable(sentence):
            return NOT_UTF_8
        if not visible(sentence).strip():
            return f"an empty {side}"
    return None


def _language(path: Path) -> str:
    """Returns the language in a file name such as `train.pt`, `train.pt.gz` or `pt.txt`."""
    name = path.name
    while (suffix := Path(name).suffix).lower() in (*PACKINGS, ".txt"):
        name = name.removesuffix(suffix)
    return re.split(r"[._-]", name)[-1]
