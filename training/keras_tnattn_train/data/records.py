"""Splits the lines of CSV and TSV files into records; no quotation mark swallows lines unnoticed.

If a quoted field is not closed as it should be, only the line where it begins is a bad record, and
the lines after it are read on their own.
"""

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# The longest field; that of Python's csv, 131,072 characters, is less than some texts.
csv.field_size_limit(2**31 - 1)
DELIMITERS = ",;\t|"
_LONGEST_ESCAPED = 1000  # lines of a record with escaped quotation marks
_NO_CLOSING_MARK = "a quotation mark is opened that the file never closes"
_NO_DELIMITER = "a closing quotation mark is not followed by a delimiter"
_LATE_CLOSING_MARK = "a quotation mark is opened that a later row closes"
_NO_OPENING_MARK = "a quotation mark is closed that none opens"


class Record(NamedTuple):
    """A record of a file.

    Attributes:
        line: The number of its first line.
        fields: Its fields; empty in a bad record.
        problem: What is wrong with it; `None` in a good one.
        escaped: Whether its quotation marks are escaped by backslashes.
        like_rows: Whether its lines look like records of their own, of as many fields.
    """

    line: int
    fields: list[str]
    problem: str | None = None
    escaped: bool = False
    like_rows: bool = False


class Lines(Iterator[str]):
    """The lines of a file; lines that were read can be put back, to be read again."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._again = list[str]()  # the last one is the next one
        self.since: list[str] = []
        self.number = 1

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._file)
        self.number += 1
        self.since.append(line)
        return line

    def mark(self) -> None:
        """Forgets the lines that were read."""
        self.since = []

    def put_back(self, count: int) -> None:
        """Lets the last lines since `mark` come again."""
        if count:
            self._again += reversed(self.since[-count:])
            del self.since[-count:]
            self.number -= count


def delimiter_of(header: str, following: str = "") -> str:
    """Returns the first of comma, semicolon, tab and bar that separates a header, or a comma.

    Those come first that separate the line after it, if it is a whole record, into as many fields.
    """
    if following.count('"') % 2 or "\r" in following.rstrip("\r\n"):
        following = ""

    def count(line: str, delimiter: str) -> int:
        return len(next(csv.reader([line], delimiter=delimiter), []))

    several = [delimiter for delimiter in DELIMITERS if count(header, delimiter) > 1]
    alike = [d for d in several if count(following, d) == count(header, d)]
    return next(iter(alike or several), ",")


def split(line: str, delimiter: str) -> list[str]:
    """Returns the fields of a line without quoting."""
    return line.rstrip("\r\n").split(delimiter)


def unquoted_records(lines: Lines, delimiter: str) -> Iterator[Record]:
    """Yields a record for each line."""
    while True:
        number = lines.number
        lines.mark()
        line = next(lines, None)
        if line is None:
            return
        yield Record(number, split(line, delimiter))


class QuotedRecords(Iterator[Record]):
    """The records of a CSV file, whose fields may be within quotation marks."""

    def __init__(self, lines: Lines, delimiter: str, size: int | None = None) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._size = size
        self._reader = csv.reader(lines, delimiter=delimiter, strict=True)
        escape = re.escape(delimiter)
        self._escaped_field = re.compile(
            rf'(?:"((?:[^"\\]|\\.|"")*)"|((?!")[^{escape}\r\n]*))({escape}|\r?\n|\r|$)', re.DOTALL
        )
        # Whether, and up to which line, a field may end that began in a bad record.
        self._recovering = False
        self._recovered = 0

    def __next__(self) -> Record:
        record = self._next()
        if self._size is None and record.problem is None and record.fields:
            self._size = len(record.fields)
        return record

    def _next(self) -> Record:
        lines = self._lines
        number = self._lines.number
        lines.mark()
        problem = None
        fields = list[str]()
        try:
            fields = next(self._reader)
        except csv.Error as error:
            problem = _describe(error)
        fits = problem is None and len(fields) == self._size
        several = len(lines.since) > 1
        like_rows = problem is None and several and self._like_rows()
        if (like_rows or not fits) and any('\\"' in line for line in lines.since):
            count = len(lines.since)
            lines.put_back(count)
            if record := self._with_backslashes(number):
                return record
            for _ in range(count):
                next(lines)
        if like_rows and not fits:
            problem = _LATE_CLOSING_MARK
        if problem is not None:
            begin = lines.since[0].strip()[:40]
            self._recovering = True
            self._recovered = lines.number
            lines.put_back(len(lines.since) - 1)
            return Record(number, [], f"{problem}, in the row that begins with {begin!r}")
        if self._recovering and fields:
            self._recovering = not fits or lines.number < self._recovered
            if fits and any(field.endswith('"') for field in fields):
                return Record(number, [], f"{_NO_OPENING_MARK}, in the row of {fields[0][:40]!r}")
        return Record(number, fields, like_rows=like_rows)

    def _like_rows(self) -> bool:
        """Returns whether each line that was read has as many fields as a record, without quoting.

        That is so if one stray quotation mark opens a field, and another closes it rows later.
        """
        full = [line for line in self._lines.since if line.strip()]
        return self._size != 1 and all(
            len(split(line, self._delimiter)) == self._size for line in full
        )

    def _with_backslashes(self, number: int) -> Record | None:
        """Reads a record with escaped quotation marks; if it is none, its lines come again."""
        text = ""
        count = 0
        for line in itertools.islice(self._lines, _LONGEST_ESCAPED):
            text += line
            count += 1
            fields = list[str]()
            position = 0
            end = self._delimiter
            while end == self._delimiter:
                match = self._escaped_field.match(text, position)
                if match is None:
                    break
                quoted, plain, end = match.groups()
                if quoted is not None:
                    plain = re.sub(r'\\(["\\])|""', lambda mark: mark[1] or '"', quoted)
                fields.append(plain)
                position = match.end()
            if match is None:
                continue  # the last field goes on in the next line
            if position == len(text) and len(fields) == self._size:
                return Record(number, fields, escaped=True)
            break
        self._lines.put_back(count)
        return None


def _describe(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return _NO_CLOSING_MARK
    return _NO_DELIMITER if "expected after" in str(error) else str(error)


def is_separator_line(line: str) -> str | None:
    """Returns the delimiter that a line such as Excel's `sep=;` names, or `None`."""
    match = re.fullmatch(r'"?sep=(.)"?\s*', line, re.IGNORECASE)
    return match and match[1]


def is_comment(line: str, following: Sequence[str]) -> bool:
    """Returns whether a line with `#` before the header is a comment; `#id,text` is a header."""
    if re.match(r"\s*#(\s|#|$)", line):
        return True
    delimiter = delimiter_of(line)
    return not following or len(split(line, delimiter)) != len(split(following[0], delimiter))
