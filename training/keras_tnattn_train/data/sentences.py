"""Reads sentences row by row from the lines of a text file or a column of a table."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from keras_tnattn_runtime.reader import visible
from keras_tnattn_train.data.opening import STDIN, open_lines, suffix_of
from keras_tnattn_train.data.tables import (
    NAMES,
    NOT_UTF_8,
    SUFFIXES,
    Table,
    open_table,
    undecodable,
)
from keras_tnattn_train.options.errors import InputError

COLUMNS = ("text", "source", "sentence")  # looked for if no column is named


class Row(NamedTuple):
    """A sentence, or a row that could not be read."""

    number: int
    text: str | None
    problem: str | None = None


def from_strings(texts: Iterable[str]) -> Iterator[Row]:
    """Yields a row for each string."""
    for number, text in enumerate(texts, start=1):
        yield _row(number, text)


@contextlib.contextmanager
def from_file(
    path: str,
    column: str | None = None,
    columns: Sequence[str] = COLUMNS,
    warn: Callable[[str], None] = lambda note: None,
) -> Iterator[Iterator[Row]]:
    """Opens a file, and yields an iterator that reads its rows one by one.

    Tables are read as for training, by `keras_tnattn_train.data.tables`.

    Args:
        path: A text file with one sentence per line, or a table as `open_table` reads it; also
            packed (`.gz`, `.xz`, `.bz2`, `.zip`). `"-"` is the standard input, which is read as a
            CSV table if `column` is given.
        column: The column with the sentences. Default: the first of `columns` in the header, or the
            only column.
        columns: Usual names of this column. Default: `text`, `source` and `sentence`.
        warn: Is called, after the last row, with each sentence about what the user should know.
    """
    suffix = suffix_of(path)
    if path == STDIN:
        suffix = ".csv" if column else ""
    elif column and suffix not in SUFFIXES:
        raise InputError(
            f"Expected a table named {NAMES} with --column. Received: {path}, column={column!r}"
        )
    if suffix in SUFFIXES:
        with open_table(path, suffix=suffix) as table:
            table.keeps_empty_rows = True  # an answer for each row
            yield _column(table, _place(table, column, columns), warn)
    else:
        with open_lines(path, "text file") as lines:
            yield (_row(n, line.rstrip("\r\n")) for n, line in enumerate(lines, start=1))


def _place(table: Table, column: str | None, columns: Sequence[str]) -> int:
    names = [column] if column else columns
    places = [place for name in names if (place := table.place(name)) is not None]
    if not places and not column and len(table.columns) == 1:
        places = [0]
    if not places:
        expected = f"a column {column!r}" if column else f"a column {' or '.join(columns)}"
        raise InputError(
            f"Expected {table.path} to have {expected}. Received: columns={table.columns}. Name "
            "one with --column"
        )
    return places[0]


def _column(table: Table, place: int, warn: Callable[[str], None]) -> Iterator[Row]:
    for row in table:
        if row.problem is not None:
            yield Row(row.number, None, row.problem)
        elif table.repeats_header(row):
            yield Row(row.number, None, "repeats the header")
        elif place in row.problems:
            yield Row(row.number, None, row.problems[place])
        else:
            yield _row(row.number, row.fields[place])
    for note in table.notes():
        warn(note)


def _row(number: int, text: str) -> Row:
    if undecodable(text):
        return Row(number, None, NOT_UTF_8)
    return Row(number, text) if visible(text).strip() else Row(number, None, "empty")
