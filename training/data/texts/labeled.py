"""Labeled texts, and their split into a training and a test part."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable

import numpy as np

from training.base.errors import InputError


@dataclasses.dataclass(frozen=True)
class LabeledTexts:
    """Texts with one label each.

    Args:
        texts: `R` strings, which may be empty.
        labels: Integer array `(R,)`, positions in `class_names`.
        class_names: The names of the classes, at least two.
        notes: Sentences that describe how the rows were changed while they were read.

    Raises:
        InputError: If there are no rows or fewer than two classes.
    """

    texts: list[str]
    labels: np.ndarray
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.texts:
            raise InputError("Expected at least one labeled text. Received: no rows")
        if len(self.class_names) < 2:
            raise InputError(
                "Expected at least two classes to tell apart. "
                f"Received: class_names={self.class_names}"
            )

    @classmethod
    def from_names(
        cls, texts: Iterable[str], names: Iterable[str], notes: Iterable[str] = ()
    ) -> "LabeledTexts":
        """Numbers the classes in the order of their names, by value if all names are numbers."""
        names = list(names)
        try:
            class_names = sorted(set(names), key=float)
        except ValueError:
            class_names = sorted(set(names))
        number = {name: i for i, name in enumerate(class_names)}
        labels = np.array([number[name] for name in names], "int32")
        return cls(list(texts), labels, tuple(class_names), tuple(notes))

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any text, label or name, or with their order."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        digest.update(self.labels.astype("<i4").tobytes())
        for text in self.texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def without_repeats(texts: list[str], names: list[str]) -> tuple[list[str], list[str], int]:
    """Drops rows with the text and label of an earlier row; also returns how many."""
    rows = list(dict.fromkeys(zip(texts, names, strict=True)))
    kept_texts, kept_names = map(list, zip(*rows, strict=True)) if rows else ([], [])
    return kept_texts, kept_names, len(texts) - len(rows)


def split_rows(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits row numbers into two parts with the same proportions of classes (stratified).

    The row of a class with a single row goes to the first part. The split is not stratified if a
    part would have fewer rows than there are classes.

    Args:
        labels: Integer array `(R,)`.
        fraction: The share of the second part, in (0, 1).
        seed: Seed of the split.

    Returns:
        Two integer arrays of row numbers, each sorted.

    Raises:
        InputError: If one part would be empty.
    """
    # scikit-learn takes a second to import, which `--help` should not.
    from sklearn.model_selection import train_test_split

    counts = collections.Counter(labels.tolist())
    alone = np.array([counts[label] == 1 for label in labels.tolist()], bool)
    rows = np.arange(len(labels))
    shared = rows[~alone]
    if len(shared) < 2:
        raise InputError(
            f"Expected a class with two rows or more. Received: {len(labels)} rows in "
            f"{len(counts)} classes. Is this the column of the labels?"
        )
    number = int(np.ceil(fraction * len(shared)))
    if number == len(shared):
        raise InputError(
            f"Expected rows to train on. Received: {len(labels)} rows, of which a fraction of "
            f"{fraction} leaves none. Give a smaller fraction (--test-fraction) or more rows"
        )
    classes = len(counts) - int(alone.sum())
    stratify = labels[shared] if classes <= min(number, len(shared) - number) else None
    first, second = train_test_split(
        shared, test_size=number, random_state=seed, shuffle=True, stratify=stratify
    )
    return np.sort(np.concatenate([first, rows[alone]])), np.sort(second)
