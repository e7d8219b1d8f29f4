"""Reads labeled texts from files: a table, or a folder per class."""

import ast
import collections
import dataclasses
import hashlib
import html
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

from keras_tnattn_runtime.reader import visible
from keras_tnattn_train.data.names import InvisibleCharacters, Labels, number_of
from keras_tnattn_train.data.rows import TableRow
from keras_tnattn_train.data.tables import (
    MAX_LISTED_ROWS,
    NOT_UTF_8,
    BadRows,
    EmptyFolders,
    Table,
    open_table,
    problem_of,
    quantity,
)
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.data.values import LIST
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

Fields = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The layout of a table: how to get text and label of a row. Recognized by its columns."""

    columns: Set[str]
    text: Callable[[Fields], str]
    label: Callable[[Fields], str | None]  # None: the row belongs to no class
    label_column: str | None = None  # if a label is the content of one column
    drop_repeats: bool = False


# Drugs.com reviews, CSV or TSV with quotes. Reviews appear twice, under the brand name and the
# generic name; a repeated review could be in the training and in the test part.
DRUG_REVIEWS = _Layout(
    {"review", "rating"},
    lambda row: html.unescape(row["review"]).strip().strip('"'),
    lambda row: row["rating"].removesuffix(".0"),
    drop_repeats=True,
)
# Research articles: if an article has several topics set to 1, its class is the first of them.
TOPICS = (
    *("Computer Science", "Physics", "Mathematics", "Statistics"),
    *("Quantitative Biology", "Quantitative Finance"),
)
RESEARCH_ARTICLES = _Layout(
    {"TITLE", "ABSTRACT", *TOPICS},
    lambda row: f"{row['TITLE']} {row['ABSTRACT']}",
    lambda row: next((topic for topic in TOPICS if row[topic].strip() == "1"), None),
)
SPOOKY_AUTHORS = _Layout({"text", "author"}, lambda row: row["text"], lambda row: row["author"])
PLAIN_TABLE = _Layout(
    {"text", "label"}, lambda row: row["text"], lambda row: row["label"], label_column="label"
)
# Warn about a table with more classes than this and more than one class per three rows.
MANY_CLASSES = 10
# How programs write that a value is missing.
MISSING_VALUES = {"nan", "none", "null", "na", "n/a", "<na>", "nat", "undefined", "?", "-"}
LAYOUTS = (DRUG_REVIEWS, RESEARCH_ARTICLES, SPOOKY_AUTHORS, PLAIN_TABLE)


def load_table(
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    drop_repeats: bool = False,
    keep_empty: bool = False,
    skip_bad_rows: bool = False,
) -> LabeledTexts:
    """Reads a table, as `open_table` does.

    A CSV file may quote its fields. A TSV file, except for that of Drugs.com, has no quoting: a
    line is a row, a tab ends a field. The headers of the papers' data sets are recognized. White
    space around a label is no part of it. Rows without text are left out, as in predictions.
    """
    with open_table(path, quoted_columns=DRUG_REVIEWS.columns) as table:
        layout = _layout(table, text_column, label_column)
        reader = _LabeledRows(
            table,
            layout,
            drop_repeats or layout.drop_repeats,
            keep_empty,
            BadRows(path, skip_bad_rows),
        )
        return LabeledTexts.from_rows(reader.rows(), reader.notes())


class _LabeledRows:
    """Reads texts and labels of a table row by row, and counts what it leaves out."""

    def __init__(
        self, table: Table, layout: _Layout, distinct: bool, keep_empty: bool, bad: BadRows
    ) -> None:
        self.table, self.layout, self.distinct, self.bad = table, layout, distinct, bad
        self.keep_empty = keep_empty
        self.unlabeled = self.repeated = self.headers = self.empty = 0
        self.classes: collections.Counter[str] = collections.Counter()
        self.labels, self.invisible = Labels(), InvisibleCharacters("text")

    def rows(self) -> Iterator[tuple[str, str]]:
        digests: set[bytes] = set()  # of texts and labels, which take more memory
        places = {
            name: place
            for name in self.layout.columns
            if (place := self.table.place(name)) is not None
        }
        for row in self.table:
            if row.problem is not None:
                self.bad.add(row, row.problem)
                continue
            if self.table.repeats_header(row):
                self.headers += 1
                continue
            self._check_single_label(row, places)
            problem = problem_of(row, places.values())
            if problem is not None:
                self.bad.add(row, problem)
                continue
            fields = {name: row.fields[place] for name, place in places.items()}
            text, name = self.layout.text(fields), self.layout.label(fields)
            if name is None:
                self.unlabeled += 1
                continue
            name = self.labels(name)
            if not name:
                self.bad.add(row, "an empty label")
                continue
            if not visible(text).strip():
                self.empty += 1
                if not self.keep_empty:
                    continue
            self.invisible.add(text)
            if self.distinct:
                digest = hashlib.blake2b(repr((text, name)).encode(), digest_size=16).digest()
                if digest in digests:
                    self.repeated += 1
                    continue
                digests.add(digest)
            self.classes[name] += 1
            yield text, name
        self.bad_notes = self.bad.notes()

    def _check_single_label(self, row: TableRow, places: Mapping[str, int]) -> None:
        """Raises an `InputError` for the first row whose label is a list of several."""
        column = self.layout.label_column
        if column is None:
            return
        label = row.fields[places[column]]
        if row.problems.get(places[column], "").startswith(LIST) or _is_list(label):
            raise InputError(
                f"Expected one label for each text. Received: {self.table.path}, whose {row} has a "
                f"list in the column {column!r}: {label[:40]}. Texts with several labels need a "
                "model that gives each label a probability of its own (sigmoid outputs with a "
                "binary cross-entropy), which this command does not train. Train one classifier "
                "for each label, on a table that says yes or no, or keep one label for each text"
            )

    def notes(self) -> Iterator[str]:
        """Describes the rows, after they were read."""
        yield from self.table.notes()
        yield from self.bad_notes
        yield from self.labels.notes()
        yield from self.invisible.notes()
        if self.headers:
            yield f"{quantity(self.headers, 'row')} equal to the header left out"
        if self.unlabeled:
            yield f"{quantity(self.unlabeled, 'row')} of no class left out"
        if self.empty:
            what = "kept, as in the published results" if self.keep_empty else "left out"
            yield f"{quantity(self.empty, 'row')} without text {what}"
        if self.distinct:
            yield f"{quantity(self.repeated, 'row')} equal to an earlier text and label left out"
        rows = sum(self.classes.values())
        if len(self.classes) > max(MANY_CLASSES, rows / 3):
            yield (
                f"warning: {len(self.classes)} classes in {rows} rows. Is this the column of the "
                "labels? Name another with --label-column"
            )
        else:
            yield from doubtful_labels(self.classes)


def doubtful_labels(classes: Mapping[str, int]) -> Iterator[str]:
    """Yields warnings about names of classes that may be mistakes."""
    for what, key in (("except for case", _fold), ("as numbers", number_of)):
        alike = collections.defaultdict(list)
        for name in classes:
            alike[key(name)].append(name)
        for _, names in sorted((k, v) for k, v in alike.items() if k is not None and len(v) > 1):
            listed = ", ".join(f"{name!r} ({quantity(classes[name], 'row')})" for name in names)
            yield f"warning: classes whose names are equal {what}: {listed}"
    for name in classes:
        if name.casefold() in MISSING_VALUES:
            yield (
                f"warning: {quantity(classes[name], 'row')} of the class {name!r}, which often "
                "stands for a missing label"
            )
    single = [name for name, count in classes.items() if count == 1]
    if single:
        more = f" and {len(single) - MAX_LISTED_ROWS} more" if len(single) > MAX_LISTED_ROWS else ""
        yield (
            f"warning: classes of a single row, which cannot be tested: "
            f"{', '.join(map(repr, single[:MAX_LISTED_ROWS]))}{more}"
        )


def _fold(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _is_list(label: str) -> bool:
    """Returns whether a label is written as a list, as programs write those of several labels."""
    if not (label.startswith("[") and label.endswith("]")):
        return False
    try:
        return isinstance(ast.literal_eval(label), list)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def load_folders(path: Path, skip_bad_rows: bool = False) -> LabeledTexts:
    """Reads the `.txt` files (UTF-8) in a folder's subfolders, one subfolder per class.

    Empty files are left out, and files of other kinds are counted.
    """
    bad, counts = BadRows(path, skip_bad_rows), collections.Counter[str]()
    labels, invisible, empty = Labels(), InvisibleCharacters("text"), EmptyFolders("texts")

    def rows() -> Iterator[tuple[str, str]]:
        for folder in sorted(p for p in path.iterdir() if p.is_dir()):
            name, found = labels(folder.name), 0
            for file in sorted(p for p in folder.iterdir() if p.is_file()):
                if file.suffix.lower() != ".txt":
                    counts["file that is not named .txt"] += 1
                    continue
                try:
                    text = file.read_text(encoding="utf-8-sig")
                except UnicodeDecodeError:
                    bad.add(file.relative_to(path), NOT_UTF_8)
                except OSError as error:
                    bad.add(file.relative_to(path), reason(error))
                else:
                    if visible(text).strip():
                        invisible.add(text)
                        found += 1
                        yield text, name
                    else:
                        counts["file without text"] += 1
            if not found:
                empty.add(folder)

    def notes() -> Iterator[str]:
        yield from bad.notes()
        yield from empty.notes()
        yield from labels.notes()
        yield from invisible.notes()
        for what, count in sorted(counts.items()):
            noun, _, rest = what.partition(" ")
            yield f"{quantity(count, noun)} {rest} left out"

    return LabeledTexts.from_rows(rows(), notes())


def _layout(table: Table, text_column: str | None, label_column: str | None) -> _Layout:
    if text_column is None and label_column is None:
        for layout in LAYOUTS:
            if layout.columns <= set(table.columns):
                return layout
    text, label = text_column or "text", label_column or "label"
    if text == label:
        raise InputError(
            f"Expected a column with texts and another with labels. Received: {text!r} as both. "
            "Name the former with --text-column and the latter with --label-column"
        )
    for option, column in (("--text-column", text), ("--label-column", label)):
        if table.place(column) is None:
            raise InputError(
                f"Expected {table.path} to have a column {column!r}. "
                f"Received: columns={table.columns}. Name one with {option}; if these are not "
                "names of columns, add a first line with the names"
            )
    return _Layout({text, label}, lambda row: row[text], lambda row: row[label], label)
