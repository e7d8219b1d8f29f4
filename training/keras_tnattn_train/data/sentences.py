"""Reads sentences row by row from the lines of a text file or a column of a table."""

import contextlib
import csv
import io
import itertools
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

from keras_tnattn_train.data.reading import PACKED, delimiter_of
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

COLUMNS = ("text", "source", "sentence")  # looked for if no column is named


class Row(NamedTuple):
    """A sentence, or a row that could not be read.

    Attributes:
        number: The number of the line or row, counted from 1; the header of a table is row 1.
        text: The sentence; `None` in a bad row.
        problem: Describes what is wrong with a bad row; `None` in a good one.
    """

    number: int
    text: str | None
    problem: str | None = None


def from_strings(texts: Iterable[str]) -> Iterator[Row]:
    """Yields a row for each string."""
    for number, text in enumerate(texts, start=1):
        yield _row(number, text)


@contextlib.contextmanager
def from_file(
    path: str, column: str | None = None, columns: Sequence[str] = COLUMNS
) -> Iterator[Iterator[Row]]:
    """Opens a file, and yields an iterator that reads its rows one by one.

    Args:
        path: A text file with one sentence per line, or a table named `.csv` or `.tsv`, also
            compressed (`.gz`, `.xz`). `"-"` is the standard input, which is read as a CSV table if
            `column` is given.
        column: The column with the sentences. Default: the first of `columns` in the header, or the
            only column.
        columns: Usual names of this column. Default: `text`, `source` and `sentence`.

    Raises:
        InputError: If the file cannot be read, or lacks the column.
    """
    name = Path(path)
    suffixes = [suffix for suffix in name.suffixes if suffix not in PACKED]
    table = suffixes[-1] if suffixes and suffixes[-1] in (".csv", ".tsv") else None
    if path == "-":
        table = ".csv" if column else None
    elif column and not table:
        raise InputError(
            f"Expected a table named .csv or .tsv with --column. Received: {path}, "
            f"column={column!r}"
        )
    with contextlib.ExitStack() as stack:
        if path == "-":
            file = sys.stdin.buffer
        else:
            try:
                file = stack.enter_context(PACKED.get(name.suffix, open)(name, "rb"))
            except OSError as error:
                raise InputError(f"Could not read {path}: {reason(error)}") from error
        yield _reading(path, _table(file, path, table, column, columns) if table else _lines(file))


def _reading(path: str, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except OSError as error:
        raise InputError(f"Could not read {path}: {reason(error)}") from error
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"Could not read {path}, which is damaged: {error}") from error


def _lines(file: BinaryIO) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape")
        yield _row(number, text.rstrip("\r\n"))


def _table(
    file: BinaryIO, path: str, kind: str, column: str | None, columns: Sequence[str]
) -> Iterator[Row]:
    # Undecodable bytes become surrogates, so that only their own row is bad.
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    try:
        yield from _table_rows(text, path, kind, column, columns)
    finally:
        with contextlib.suppress(ValueError):  # closed already
            text.detach()  # the caller closes the file


def _table_rows(
    text: TextIO, path: str, kind: str, column: str | None, columns: Sequence[str]
) -> Iterator[Row]:
    # A tab-separated file has no quoting, as in training/keras_tnattn_train/data/reading.py.
    if kind == ".tsv":
        rows = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        first = text.readline()
        rows = csv.reader(itertools.chain([first], text), delimiter=delimiter_of(first))
    header = next(rows, [])
    names = [column] if column else [name for name in columns if name in header]
    if not names and len(header) == 1:
        names = header
    if not names or names[0] not in header:
        expected = f"a column {column!r}" if column else f"a column {' or '.join(columns)}"
        raise InputError(
            f"Expected {path} to have {expected}. Received: columns={header}. Name one with "
            "--column"
        )
    place, number = header.index(names[0]), 1
    while True:
        number += 1
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, None, str(error))
            continue
        if len(fields) == len(header):
            yield _row(number, fields[place])
        elif fields:
            yield Row(number, None, f"{len(fields)} fields instead of {len(header)}")


def _row(number: int, text: str) -> Row:
    try:
        text.encode()
    except UnicodeEncodeError:
        return Row(number, None, "not UTF-8")
    return Row(number, text) if text.strip() else Row(number, None, "empty")
