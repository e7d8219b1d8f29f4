"""What every table has, whatever its format: columns, and rows that may be bad."""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from keras_tnattn_train.data.names import InvisibleCharacters, plain
from keras_tnattn_train.options.errors import InputError


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        number: The number of the row; the header, if there is one, is row 1, and empty rows count.
        line: The number of its first line in the file.
        fields: One for each column; empty in a bad row.
        problem: What is wrong with a bad row; `None` in a good one.
        problems: What is wrong with single fields of a good row, by their places.
    """

    number: int
    line: int
    fields: Sequence[str]
    problem: str | None = None
    problems: Mapping[int, str] = MappingProxyType({})

    def __str__(self) -> str:
        place = f"row {self.number}"
        return place if self.line == self.number else f"{place} (line {self.line})"


class Table(abc.ABC):
    """An open table; an iterator over its rows, which are read once.

    Attributes:
        keeps_empty_rows: Whether a row of empty fields is a bad row; by default it is left out.
    """

    keeps_empty_rows = False

    def __init__(self, path: str | Path, columns: Iterable[str]) -> None:
        names = list(columns)
        self.path, self.columns = path, [plain(name) for name in names]
        self._invisible = InvisibleCharacters("column name")
        for name in names:
            self._invisible.add(name)
        for i, name in enumerate(self.columns):
            if name and name in self.columns[:i]:
                raise InputError(
                    f"Expected columns of different names. Received: {path}, whose columns "
                    f"{self.columns.index(name) + 1} and {i + 1} are both called {name!r}. Rename "
                    "one of them"
                )

    def place(self, name: str) -> int | None:
        """Returns the place of the column of a name or, if there is none, of it in another case."""
        name = plain(name)
        if name in self.columns:
            return self.columns.index(name)
        alike = [i for i, other in enumerate(self.columns) if other.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def repeats_header(self, row: TableRow) -> bool:
        """Returns whether a row is the header once more, as in files that were joined."""
        return False

    @abc.abstractmethod
    def __iter__(self) -> Iterator[TableRow]: ...

    def notes(self) -> Iterator[str]:
        """Describes what was special about the rows, after they were read."""
        yield from self._invisible.notes()
