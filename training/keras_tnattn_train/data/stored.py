"""Texts in temporary files instead of in memory, as `keras_tnattn_runtime.stored` keeps arrays."""

import abc
import itertools
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from keras_tnattn_runtime.stored import StorageError, store
from keras_tnattn_train.options.errors import input_errors

Item = TypeVar("Item")


class StoredSequence(Sequence[Item]):
    """A sequence whose items are read from a file. Subclasses define `__len__` and `_item`."""

    @abc.abstractmethod
    def _item(self, place: int) -> Item:
        """Returns the item at a place of 0 to `len(self) - 1`."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._item(place) for place in range(len(self))[index]]
        return self._item(range(len(self))[index])

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Returns whether another sequence, of any kind, has the same items."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]


class StoredTexts(StoredSequence[str]):
    """Texts in a temporary file; memory holds 8 bytes per text."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._ends = array("q", [0])
        with input_errors(StorageError):
            self._bytes = store(map(self._encode, texts))

    def _encode(self, text: str) -> bytes:
        content = text.encode("utf-8", "surrogatepass")
        self._ends.append(self._ends[-1] + len(content))
        return content

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        """Pickles the texts; another process stores them in a file of its own."""
        return StoredTexts, (list(self),)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start, end in itertools.pairwise(self._ends):
            yield self._bytes[start:end].decode("utf-8", "surrogatepass")

    def _item(self, place: int) -> str:
        content = self._bytes[self._ends[place] : self._ends[place + 1]]
        return content.decode("utf-8", "surrogatepass")
