"""Labeled texts, and their split into a training and a test part."""

import dataclasses
import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from keras_tnattn_runtime import splitting
from keras_tnattn_train.data.names import number_of
from keras_tnattn_train.data.stored import StoredTexts
from keras_tnattn_train.options.errors import InputError, input_errors


@dataclasses.dataclass(frozen=True)
class LabeledTexts:
    """Texts with one label each.

    Args:
        texts: `R` strings, which may be empty; those of `from_rows` are on disk.
        labels: Integer array `(R,)`, positions in `class_names`.
        class_names: The names of the classes.
        notes: Sentences that describe how the rows were changed while they were read.
    """

    texts: Sequence[str]
    labels: np.ndarray
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.texts:
            raise InputError("Expected a table with at least one labeled text. Received: no rows")

    def in_classes(self, class_of: Callable[[str], str]) -> "LabeledTexts":
        """Returns the texts with fewer classes, in the order of their names."""
        names = [class_of(name) for name in self.class_names]
        classes = tuple(sorted(set(names)))
        numbers = np.array([classes.index(name) for name in names], self.labels.dtype)
        return dataclasses.replace(self, labels=numbers[self.labels], class_names=classes)

    @classmethod
    def from_rows(
        cls, rows: Iterable[tuple[str, str]], notes: Iterable[str] = ()
    ) -> "LabeledTexts":
        """Stores texts in a temporary file, and numbers the names of their classes.

        The classes are in the order of their names, by value if all names are numbers.
        """
        number: dict[str, int] = {}  # of a class, in the order of their first rows
        numbers = array("i")

        def texts() -> Iterator[str]:
            for text, name in rows:
                numbers.append(number.setdefault(name, len(number)))
                yield text

        stored = StoredTexts(texts())
        values = {name: value for name in number if (value := number_of(name)) is not None}
        by_value = len(values) == len(number)
        class_names = sorted(number, key=values.__getitem__ if by_value else None)
        place = {name: i for i, name in enumerate(class_names)}
        places = np.array([place[name] for name in number], "int32")
        labels = places[np.frombuffer(numbers, "int32")] if number else places
        return cls(stored, labels, tuple(class_names), tuple(notes))

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any text, label or name, or with their order."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        digest.update(self.labels.astype("<i4").tobytes())
        for text in self.texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def split_rows(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits row numbers as `keras_tnattn_runtime.splitting` does; what it refuses are the data."""
    with input_errors():
        return splitting.split_rows(labels, fraction, seed)
