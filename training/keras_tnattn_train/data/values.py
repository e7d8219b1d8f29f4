"""Tables whose cells are values and not text: JSON lines and Parquet.

A value becomes the text that a CSV file would have: a number as it is written, nothing for null and
for a key that an object lacks, and JSON for lists and objects.
"""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_tnattn_train.data.opening import reading_errors
from keras_tnattn_train.data.rows import Table, TableRow
from keras_tnattn_train.options.errors import InputError

JSON_SUFFIXES, PARQUET_SUFFIX = (".jsonl", ".ndjson", ".json"), ".parquet"
_FIRST_LINES = 1000  # whose keys are the columns


class ValuesTable(Table):
    """A table of objects."""

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
                yield TableRow(number, number, [_cell(content.get(key)) for key in self._keys])


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


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
