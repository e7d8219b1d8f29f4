"""Labeled texts, and their split into a training and a test part."""

import dataclasses
import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from keras_tnattn_train.data.names import number_of
from keras_tnattn_train.data.stored import StoredTexts
from keras_tnattn_train.options.errors import InputError


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
    """Splits row numbers into two sorted parts with the same proportions of classes (stratified).

    The row of a class with a single row goes to the first part. The split is not stratified if a
    part would have fewer rows than there are classes.
    """
    # scikit-learn takes a second to import, which `--help` should not.
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels)
    classes = np.count_nonzero(counts)
    alone = counts[labels] == 1
    if classes < 2:
        raise InputError(
            f"Expected at least two classes to tell apart. Received: {len(labels)} rows of one"
        )
    rows = np.arange(len(labels))
    shared = rows[~alone]
    if len(shared) < 2:
        raise InputError(
            f"Expected a class with two rows or more. Received: {len(labels)} rows in "
            f"{classes} classes. Is this the column of the labels?"
        )
    number = int(np.ceil(fraction * len(shared)))
    if number == len(shared):
        raise InputError(
            f"Expected rows to train on. Received: {len(labels)} rows, of which a fraction of "
            f"{fraction} leaves none. Give a smaller fraction (--test-fraction) or more rows"
        )
    stratified = classes - np.count_nonzero(alone) <= min(number, len(shared) - number)
    stratify = labels[shared] if stratified else None
    first, second = train_test_split(
        shared, test_size=number, random_state=seed, shuffle=True, stratify=stratify
    )
    return np.sort(np.concatenate([first, rows[alone]])), np.sort(second)
