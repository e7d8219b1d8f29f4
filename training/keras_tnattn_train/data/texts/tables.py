"""Reads labeled texts from files: a table (CSV or TSV), or a folder per class."""

import dataclasses
import hashlib
import html
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from keras_tnattn_train.data.reading import Row, open_table
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.options.errors import InputError


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The layout of a table: how to get text and label of a row. Recognized by its columns."""

    columns: Set[str]
    text: Callable[[Row], str]
    label: Callable[[Row], str | None]  # None: the row belongs to no class
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
    "Computer Science",
    "Physics",
    "Mathematics",
    "Statistics",
    "Quantitative Biology",
    "Quantitative Finance",
)
RESEARCH_ARTICLES = _Layout(
    {"TITLE", "ABSTRACT", *TOPICS},
    lambda row: f"{row['TITLE']} {row['ABSTRACT']}",
    lambda row: next((topic for topic in TOPICS if row[topic].strip() == "1"), None),
)
SPOOKY_AUTHORS = _Layout({"text", "author"}, lambda row: row["text"], lambda row: row["author"])
PLAIN = _Layout({"text", "label"}, lambda row: row["text"], lambda row: row["label"])
# Warn about a table with more classes than this and more than one class per three rows.
MANY_CLASSES = 10
LAYOUTS = (DRUG_REVIEWS, RESEARCH_ARTICLES, SPOOKY_AUTHORS, PLAIN)


def load_table(
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    drop_repeats: bool = False,
) -> LabeledTexts:
    """Reads a table with a header line: `.csv` or `.tsv`, also compressed (`.gz`, `.xz`).

    A CSV file may quote its fields. A TSV file, except for that of Drugs.com, has no quoting: a
    line is a row, a tab ends a field. The headers of the papers' data sets are recognized.

    Args:
        path: The file, in UTF-8.
        text_column: The column with the texts. Default: recognized from the header, else `text`.
        label_column: The column with the labels. Default: recognized from the header, else `label`.
        drop_repeats: Whether to drop rows that repeat an earlier text and label even if the layout
            does not require it. Default `False`.

    Returns:
        The rows in the order of the file.

    Raises:
        InputError: If the file cannot be read, has no rows, lacks a column, or has a row without a
            label.
    """
    with open_table(path, quoted_columns=DRUG_REVIEWS.columns) as (header, rows):
        layout = _layout(path, header, text_column, label_column)
        reader = _LabeledRows(path, layout, rows, drop_repeats or layout.drop_repeats)
        return LabeledTexts.from_rows(reader.rows(), reader.notes())


class _LabeledRows:
    """Reads texts and labels of a table row by row, and counts what it leaves out."""

    def __init__(self, path: Path, layout: _Layout, rows: Iterator[Row], distinct: bool) -> None:
        self.path, self.layout, self.table, self.distinct = path, layout, rows, distinct
        self.unlabeled = self.repeated = self.read = 0
        self.classes: set[str] = set()

    def rows(self) -> Iterator[tuple[str, str]]:
        seen: set[bytes] = set()  # digests of texts and labels, which take less memory than these
        for number, row in enumerate(self.table, start=2):  # the header is row 1
            text, name = self.layout.text(row), self.layout.label(row)
            if name is None:
                self.unlabeled += 1
                continue
            if not name:
                raise InputError(
                    f"Expected a label in every row. Received: {self.path}: an empty label in row "
                    f"{number}, counted without empty lines. Label or remove such rows"
                )
            if self.distinct:
                digest = hashlib.blake2b(repr((text, name)).encode(), digest_size=16).digest()
                if digest in seen:
                    self.repeated += 1
                    continue
                seen.add(digest)
            self.read += 1
            self.classes.add(name)
            yield text, name

    def notes(self) -> Iterator[str]:
        """Describes the rows, after they were read."""
        if self.unlabeled:
            yield f"{self.unlabeled} rows of no class left out"
        if self.distinct:
            yield f"{self.repeated} rows that repeat an earlier text and label dropped"
        classes = len(self.classes)
        if classes > max(MANY_CLASSES, self.read / 3):
            yield (
                f"warning: {classes} classes in {self.read} rows. Is this the column of the "
                "labels? Name another with --label-column"
            )


def load_folders(path: Path) -> LabeledTexts:
    """Reads the `.txt` files (UTF-8) in a folder's subfolders, one subfolder per class."""
    from sklearn.datasets import load_files

    try:
        files = load_files(path, encoding="utf-8", shuffle=False, allowed_extensions=[".txt"])
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Expected readable UTF-8 files. Received: {path}: {error}") from error
    names = (files.target_names[i] for i in files.target)
    return LabeledTexts.from_rows(zip(files.data, names, strict=True))


def _layout(
    path: Path, header: list[str], text_column: str | None, label_column: str | None
) -> _Layout:
    if text_column is None and label_column is None:
        for layout in LAYOUTS:
            if layout.columns <= set(header):
                return layout
    text, label = text_column or "text", label_column or "label"
    if text == label:
        raise InputError(
            f"Expected a column with texts and another with labels. Received: {text!r} as both. "
            "Name the former with --text-column and the latter with --label-column"
        )
    for option, column in (("--text-column", text), ("--label-column", label)):
        if column not in header:
            raise InputError(
                f"Expected {path} to have a column {column!r}. "
                f"Received: columns={header}. Name one with {option}; if these are not names of "
                "columns, add a first line with the names"
            )
    return _Layout({text, label}, lambda row: row[text], lambda row: row[label])
