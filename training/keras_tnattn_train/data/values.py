"""Tables whose cells are values and not text: JSON lines and Parquet.

A value becomes the text that a CSV file would have: a number as it is written, nothing for null and
for a key that an object lacks, and JSON for lists and objects.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_tnattn_train.data.opening import reading_errors
from keras_tnattn_train.data.rows import Table, TableRow
from keras_tnattn_train.options.errors import InputError

JSON_SUFFIXES, PARQUET_SUFFIX = (".jsonl", ".ndjson", ".json"), ".parquet"
_FIRST_LINES = 1000  # whose keys are the columns
_SHOWN = 40  # characters of a value that a message shows
LIST, OBJECT = "a list", "an object"
_SURROGATE = re.compile("[\ud800-\udfff]")


class ValuesTable(Table):
    """A table of objects: their numbers, each with an object or what is wrong with it."""

    def __init__(
        self,
        path: str | Path,
        columns: Iterable[str],
        objects: Iterable[tuple[int, dict[str, Any] | str]],
    ) -> None:
        self._keys, self._objects = list(columns), objects
        super().__init__(path, self._keys)

    def __iter__(self) -> Iterator[TableRow]:
        for number, content in self._objects:
            if isinstance(content, str):
                yield TableRow(number, number, [], content)
            else:
                values = [content.get(key) for key in self._keys]
                problems = {i: p for i, value in enumerate(values) if (p := _problem(value))}
                fields = [_cell(value) for value in values]
                yield TableRow(number, number, fields, problems=problems)


def json_table(path: str | Path, lines: Iterator[str]) -> Table:
    """Returns a table of JSON lines; its columns are the keys of the first 1,000 objects."""
    numbered = ((n, _object_of_line(line)) for n, line in enumerate(lines, start=1) if line.strip())
    first = list(itertools.islice(numbered, _FIRST_LINES))
    columns = dict.fromkeys(key for _, x in first if isinstance(x, dict) for key in x)
    if not columns:
        problem = f"whose line {first[0][0]} is {first[0][1]}" if first else "which is empty"
        raise InputError(
            f"Expected a JSON object in each line. Received: {path}, {problem}. jq -c '.[]' writes "
            "the objects of an array as lines"
        )
    return ValuesTable(path, columns, itertools.chain(first, numbered))


def _object_of_line(line: str) -> dict[str, Any] | str:
    """Returns the object of a line, or what is wrong with it."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return f"no JSON object, beginning with {line[:20].strip()!r}"
    if isinstance(content, dict) and "\\u" in line and not _SURROGATE.search(line):
        content = {key: _marked(value) for key, value in content.items()}
    return content if isinstance(content, dict) else f"not an object, but {line[:20].strip()}"


@contextlib.contextmanager
def parquet_table(path: str | Path) -> Iterator[Table]:
    """Opens a Parquet file, with pyarrow."""
    from pyarrow import ArrowException, parquet

    @contextlib.contextmanager
    def check() -> Iterator[None]:
        try:
            with reading_errors(path, "Parquet file"):
                yield
        except ArrowException as error:
            raise InputError(
                f"Expected a readable Parquet file. Received: {path}, which is damaged or of "
                f"another format ({str(error).partition(chr(10))[0]})"
            ) from error

    def objects(file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        number = itertools.count(1)
        with check():
            for batch in file.iter_batches(batch_size=_FIRST_LINES):
                yield from zip(number, batch.to_pylist())  # noqa: B905

    with contextlib.ExitStack() as stack:
        with check():
            file = stack.enter_context(parquet.ParquetFile(stack.enter_context(open(path, "rb"))))
        yield ValuesTable(path, file.schema_arrow.names, objects(file))


class _Escaped(str):
    """A text with an escaped surrogate that has no other half."""


def _marked(value: Any) -> Any:
    """Marks a text with a surrogate, of a line that is UTF-8: it was an escape, not a byte."""
    return _Escaped(value) if isinstance(value, str) and _SURROGATE.search(value) else value


def _problem(value: Any) -> str | None:
    """Returns why a value is no text, if it is none."""
    if isinstance(value, list):
        return f"{LIST} where a text is expected, {_cell(value)[:_SHOWN]}"
    if isinstance(value, dict):
        return f"{OBJECT} where a text is expected, {_cell(value)[:_SHOWN]}"
    if isinstance(value, _Escaped):
        half = _SURROGATE.findall(value)[0]
        return f"half of a character, \\u{ord(half):04x}, whose other half is missing"
    return None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
