"""Reads tables and text files, compressed or not; errors are reported in one line."""

import contextlib
import csv
import difflib
import gzip
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any, TextIO

from keras_tnattn_train.options.errors import InputError

Row = dict[str, str]

PACKED: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
# The longest field of a table; that of Python's csv, 131,072 characters, is less than some texts.
csv.field_size_limit(2**31 - 1)
TFDS = "tfds:"


def short_name(data: str) -> str:
    """Shortens the name or path of data to a valid file name.

    Args:
        data: A name, a TFDS name or a path.

    Returns:
        The name without folders, suffixes, library or version.
    """
    if data.startswith(TFDS):
        name = data.removeprefix(TFDS).partition(":")[0]
    else:
        # Not Path.resolve, which would replace the name of a link.
        name = Path(os.path.abspath(data)).name.lstrip(".").partition(".")[0]
    return re.sub(r"^-|[^\w-]", "_", name) or "data"


def unknown_source(option: str, value: str, names: Iterable[str]) -> InputError:
    """Returns the error for a data set that is neither a known name nor an existing path.

    Args:
        option: The option's name.
        value: Its value.
        names: The known names.
    """
    path = Path(value)
    if path.suffix or len(path.parts) > 1:
        return InputError(f"There is no file or folder {value!r} ({option}={value!r})")
    similar = difflib.get_close_matches(value, names, n=1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    return InputError(
        f"Expected {option} to be one of {', '.join(names)}, or the path of a file or folder. "
        f"Received: {option}={value!r}.{hint}"
    )


@contextlib.contextmanager
def open_table(
    path: Path, quoted_columns: Set[str] = frozenset()
) -> Iterator[tuple[list[str], Iterator[Row]]]:
    """Yields the names of a table's columns, and an iterator that reads its rows one by one.

    The fields of a CSV file are separated by commas or, if its header line has no commas, by
    semicolons, tabs or bars.

    Args:
        path: The file, named `.csv` or `.tsv` (also `.gz`, `.xz`).
        quoted_columns: A TSV file with these columns quotes its fields as CSV files do; others have
            no quoting. Default: no TSV file has quoting.

    Raises:
        InputError: If the file cannot be read as a table.
    """
    with _reading(path, "table") as file:
        yield _read(path, file, quoted_columns)


def read_table(path: Path) -> tuple[list[str], list[Row]]:
    """Returns the names of a table's columns, and all its rows, as `open_table` reads them."""
    with open_table(path) as (header, rows):
        return header, list(rows)


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Yields an iterator over the lines of a text file; only a newline ends a line.

    Raises:
        InputError: If the file (UTF-8; `.gz`, `.xz`) cannot be read.
    """
    with _reading(path, "text file") as file:
        yield (line.removesuffix("\n").removesuffix("\r") for line in file)


def _kind(path: Path) -> str:
    """Returns the suffix that names the format, without the suffix of a compression."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in PACKED]
    return suffixes[-1] if suffixes else ""


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[TextIO]:
    opener: Any = PACKED.get(path.suffix, open)
    newline = "" if _kind(path) == ".csv" else "\n"
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"Expected a {kind}. Received: {path}, which does not exist") from error
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error, csv.Error) as error:
        remedy = ""
        if isinstance(error, UnicodeDecodeError):
            remedy = ". Convert it, for instance with iconv -f latin1 -t utf-8"
        raise InputError(
            f"Expected a readable UTF-8 {kind}. Received: {path} ({error}){remedy}"
        ) from error


def _read(path: Path, file: TextIO, quoted_columns: Set[str]) -> tuple[list[str], Iterator[Row]]:
    """Returns the names of the columns, and the rows one by one."""
    if _kind(path) not in {".csv", ".tsv"}:
        raise InputError(f"Expected a table named .csv or .tsv (.gz, .xz). Received: {path}")
    lines: Iterator[list[str]]
    if _kind(path) == ".csv":
        first = file.readline()
        delimiter = delimiter_of(first)
        # A quoted field of the header can also span several lines.
        lines = csv.reader(itertools.chain([first], file), delimiter=delimiter)
        header = next(lines, [])
    else:
        header = _fields(file.readline())
        if quoted_columns and quoted_columns <= set(header):
            lines = csv.reader(file, delimiter="\t")
        else:
            lines = map(_fields, file)
    if not any(header):
        raise InputError(f"Expected a table with a header line. Received: {path}, which is empty")
    numbered = enumerate(lines, start=2)  # the header is row 1
    return header, (_row(path, header, fields, i) for i, fields in numbered if any(fields))


def delimiter_of(header: str) -> str:
    """Returns the delimiter of a CSV file with this header line.

    Args:
        header: The first line of the file.

    Returns:
        The first of comma, semicolon, tab and bar that separates fields in it; otherwise a comma.
    """
    for delimiter in ",;\t|":
        if len(next(csv.reader([header], delimiter=delimiter), [])) > 1:
            return delimiter
    return ","


def _fields(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")


def _row(path: Path, header: list[str], fields: list[str], number: int) -> Row:
    if len(fields) != len(header):
        raise InputError(
            f"Expected {len(header)} fields in every row. "
            f"Received: {path}: {len(fields)} fields in row {number}, "
            f"which begins with {fields[0][:40]!r}"
        )
    return dict(zip(header, fields, strict=True))
