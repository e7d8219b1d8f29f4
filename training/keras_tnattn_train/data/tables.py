"""Reads tables: the one reader of training, evaluation, prediction, pairs and graphs.

A row that cannot be read does not end the reading: it comes with its problem, so that all bad rows
of a file can be listed at once.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from keras_tnattn_train.data.opening import PACKINGS, open_lines, suffix_of
from keras_tnattn_train.data.records import (
    Lines,
    QuotedRecords,
    Record,
    delimiter_of,
    is_comment,
    is_separator_line,
    split,
    unquoted_records,
)
from keras_tnattn_train.data.rows import Table, TableRow
from keras_tnattn_train.data.values import JSON_SUFFIXES, PARQUET_SUFFIX, json_table, parquet_table
from keras_tnattn_train.options.errors import InputError

SUFFIXES = (".csv", ".tsv", *JSON_SUFFIXES, PARQUET_SUFFIX)
NAMES = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
MAX_LISTED_ROWS = 10  # rows that a message names
NOT_UTF_8 = "not UTF-8"


class BadRows:
    """Collects bad rows, to list them at once; `skip` is `None` if no option leaves them out."""

    def __init__(self, source: object, skip: bool | None, remedy: str = "Correct them") -> None:
        self.source, self.skip, self.count, self._undecodable = source, skip, 0, 0
        self._remedy = remedy
        self._first: list[str] = []

    def add(self, row: object, problem: str) -> None:
        """Adds a row, with what is wrong with it."""
        self.count += 1
        self._undecodable += problem == NOT_UTF_8
        if self.count <= MAX_LISTED_ROWS:
            self._first.append(f"{row}: {problem}")

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence about the rows that were left out, if there are any."""
        if not self.count:
            return ()
        more = self.count - len(self._first)
        rows = "; ".join([*self._first, *([f"and {more} more"] if more else [])])
        if self.skip:
            return (f"{quantity(self.count, 'bad row')} left out: {rows}",)
        remedy = self._remedy
        if self.skip is not None:
            remedy += ", or leave them out with --skip-bad-rows"
        if self._undecodable == self.count:
            remedy += (
                ". If the file has another encoding, convert it, for instance with iconv -f latin1 "
                "-t utf-8"
            )
        raise InputError(
            f"Expected rows that can all be read. Received: {self.source} with "
            f"{quantity(self.count, 'bad row')}: {rows}. {remedy}"
        )


class EmptyFolders:
    """Collects folders of classes in which nothing was found; `what` says what was looked for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._names: list[str] = []

    def add(self, folder: Path) -> None:
        """Adds a folder."""
        self._names.append(folder.name)

    def notes(self) -> Iterator[str]:
        """Names the folders, if there are any."""
        if not self._names:
            return
        more = f" and {len(self._names) - MAX_LISTED_ROWS} more"
        listed = ", ".join(map(repr, self._names[:MAX_LISTED_ROWS]))
        listed += more if len(self._names) > MAX_LISTED_ROWS else ""
        noun = "folder" if len(self._names) == 1 else "folders"
        yield f"warning: {noun} without {self._what}, which make no class: {listed}"


def quantity(number: int, noun: str) -> str:
    """Returns a number with a noun: `1 row`, `1,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def problem_of(row: TableRow, places: Iterable[int]) -> str | None:
    """Returns why the fields at some places of a row are no texts; `None` if they are."""
    for place in places:
        if place in row.problems:
            return row.problems[place]
        if undecodable(row.fields[place]):
            return NOT_UTF_8
    return None


def undecodable(text: str) -> bool:
    """Returns whether a text has bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@contextlib.contextmanager
def open_table(
    path: str | Path, quoted_columns: Set[str] = frozenset(), suffix: str | None = None
) -> Iterator["Table"]:
    """Opens a table.

    Args:
        path: The file, named by one of `SUFFIXES` (but for Parquet also packed: `.gz`, `.xz`,
            `.bz2`, `.zip`), in any case; `"-"` is the standard input.
        quoted_columns: A TSV file with these columns quotes its fields as CSV files do; others have
            no quoting. Default: no TSV file has quoting.
        suffix: One of `SUFFIXES`, in place of that of the file's name.
    """
    suffix = suffix or suffix_of(path)
    if suffix not in SUFFIXES:
        raise InputError(
            f"Expected a table named {NAMES} ({', '.join(PACKINGS)}). Received: {path}"
        )
    if suffix == PARQUET_SUFFIX:
        with parquet_table(path) as table:
            yield table
        return
    with open_lines(path, "table", "" if suffix == ".csv" else "\n") as lines:
        if suffix in JSON_SUFFIXES:
            yield json_table(path, lines)
        else:
            yield DelimitedTable(path, lines, suffix, quoted_columns)


class DelimitedTable(Table):
    """An open CSV or TSV file.

    The fields of a CSV file are separated by commas, semicolons, tabs or bars, of these by the
    first that splits the header and, if one does, the next line into as many fields; or by what a
    first line `sep=;` says. Empty lines and lines that begin with `#` may come before the header.

    A field that is quoted may hold line ends. If its lines look like whole rows, a stray quotation
    mark may have opened it; such rows are counted in a warning.
    """

    def __init__(
        self, path: str | Path, lines: Iterator[str], suffix: str, quoted_columns: Set[str]
    ) -> None:
        self._comments = self._empty = self._escaped = self._quotes = self._like_rows = 0
        self._first_like_rows: list[TableRow] = []
        source = Lines(lines)
        delimiter, first = self._start(source)
        if suffix == ".csv" or (quoted_columns and quoted_columns <= set(split(first, "\t"))):
            self._records: Iterator[Record] = QuotedRecords(
                source, "\t" if suffix == ".tsv" else delimiter
            )
            self._unquoted = False
        else:
            self._records, self._unquoted = unquoted_records(source, "\t"), True
        header = next(self._records, None)
        if header is None:
            raise InputError(
                f"Expected a table with a header line. Received: {path}, which is empty"
            )
        if header.problem:
            raise InputError(
                "Expected a header line with the names of the columns. Received: "
                f"{path}: {header.problem}"
            )
        self._header = header.fields
        super().__init__(path, header.fields)

    def _start(self, lines: Lines) -> tuple[str, str]:
        """Skips what comes before the header; returns the delimiter, and its first line."""
        delimiter = None
        while (line := next(lines, None)) is not None:
            lines.mark()
            if separator := is_separator_line(line):
                delimiter = separator
            elif line.lstrip().startswith("#"):
                following = list(itertools.islice(lines, 1))
                lines.put_back(len(following))
                if not is_comment(line, following):
                    break
                self._comments += 1
            elif line.strip():
                break
        if line is None:
            return ",", ""
        following = list(itertools.islice(lines, 1))
        lines.put_back(len(following))
        lines.since = [line]
        lines.put_back(1)
        return delimiter or delimiter_of(line, *following), line

    def repeats_header(self, row: TableRow) -> bool:
        return row.fields == self._header

    def __iter__(self) -> Iterator[TableRow]:
        size = len(self.columns)
        for number, record in enumerate(self._records, start=2):  # the header is row 1
            fields, problem = record.fields, record.problem
            if problem is None:
                if not any(fields):
                    is_row = len(fields) > int(self._unquoted)
                    if is_row and self.keeps_empty_rows:
                        yield TableRow(number, record.line, [], "empty")
                    else:
                        self._empty += is_row
                    continue
                if self._is_comment(fields):
                    self._comments += 1
                    continue
                if len(fields) != size:
                    begin = fields[0][:40]
                    noun = "field" if len(fields) == 1 else "fields"
                    problem = f"{len(fields)} {noun} instead of {size}, beginning with {begin!r}"
                    fields = []
            row = TableRow(number, record.line, fields, problem)
            self._escaped += record.escaped
            if problem is None and record.like_rows:
                self._like_rows += 1
                if self._like_rows <= MAX_LISTED_ROWS:
                    self._first_like_rows.append(row)
            if self._unquoted:
                self._quotes += any(len(f) > 1 and f[0] == f[-1] == '"' for f in fields)
            yield row

    def _is_comment(self, fields: Sequence[str]) -> bool:
        if not fields[0].startswith("#"):
            return False
        marked = fields[0][1:2] in ("", " ", "#")
        return marked and (bool(self._comments) or len(fields) != len(self.columns))

    def notes(self) -> Iterator[str]:
        yield from super().notes()
        if self._comments:
            yield f"{quantity(self._comments, 'comment line')} (#) left out"
        if self._empty:
            yield f"{quantity(self._empty, 'row')} of empty fields left out"
        if self._escaped:
            rows = quantity(self._escaped, "row")
            yield f"{rows} read with quotation marks that backslashes escape"
        if self._like_rows:
            rows = ", ".join(map(str, self._first_like_rows))
            rows += ", ..." if self._like_rows > MAX_LISTED_ROWS else ""
            yield (
                f"warning: {quantity(self._like_rows, 'row')} with a quoted field whose lines look "
                f"like whole rows ({rows}). If a stray quotation mark opens it, rows are lost: "
                "remove the mark, or write it twice within quotation marks"
            )
        if self._quotes:
            yield (
                f"warning: {quantity(self._quotes, 'row')} with fields within quotation marks, "
                "which are read as parts of the fields, because .tsv files have no quoting. If the "
                "marks quote the fields, name the file .csv"
            )
