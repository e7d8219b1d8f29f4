"""Checks the texts and labels that somebody gives to an estimator."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from keras_tnattn.checks import shape_of


def texts_of(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list.

    Raises:
        TypeError: For a single string, a set or dict, an array of several axes, or anything that
            is no string.
        ValueError: For no texts.
    """
    _check_order("texts", texts)
    shape = shape_of(texts)
    if not _is_listed(texts, shape):
        received = f"an array of shape {shape}" if shape is not None else reprlib.repr(texts)
        raise TypeError(f"Expected a list of texts. Received: texts={received}")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(
                f"Expected strings. Received: texts[{place}]={reprlib.repr(text)} "
                f"of type {type(text).__name__}"
            )
    if not listed:
        raise ValueError("Expected at least one text. Received: texts=[]")
    return listed


def labels_of(labels: Iterable[Any], number: int) -> np.ndarray:
    """Returns the labels of a number of texts as an array.

    Raises:
        TypeError: For a set or dict.
        ValueError: Unless there is one label for each text, of two classes or more.
    """
    _check_order("labels", labels)
    shape = shape_of(labels)
    if not _is_listed(labels, shape):
        received = f"an array of shape {shape}" if shape is not None else reprlib.repr(labels)
        raise ValueError(f"Expected a list with one label for each text. Received: {received}")
    listed = list(labels)
    if len(listed) != number:
        raise ValueError(
            f"Expected as many labels as texts. Received: {number} texts, {len(listed)} labels"
        )
    for place, label in enumerate(listed):
        if isinstance(label, list | tuple | set | dict | np.ndarray):
            raise ValueError(
                f"Expected one label for each text. Received: labels[{place}]="
                f"{reprlib.repr(label)} of type {type(label).__name__}"
            )
        if _is_missing(label):
            raise ValueError(
                f"Expected a label for each text. Received: labels[{place}]={label}. Leave out "
                "texts without one"
            )
    _check_one_type(listed)
    array = np.asarray(listed if shape is None else labels)
    check_classification_targets(array)
    different = len(set(listed))
    if different < 2:
        raise ValueError(
            "Expected at least two classes to tell apart. Received: one class, "
            f"{array.tolist()[0]!r}, for all of {number} texts"
        )
    if different == number:
        raise ValueError(
            "Expected a label of two texts or more. Received: as many different labels as texts, "
            f"{number}"
        )
    return array


def _check_order(name: str, entries: Any) -> None:
    """Refuses sets, which have no order, and dicts, whose keys are taken for their values."""
    if isinstance(entries, Mapping):
        problem = f"a {type(entries).__name__}. Pass list({name}.values())"
    elif isinstance(entries, set | frozenset):
        problem = (
            f"a {type(entries).__name__}, whose order is not that of the data. Pass the list "
            "from which it was made"
        )
    else:
        return
    raise TypeError(f"Expected a list. Received: {name}={reprlib.repr(entries)}, {problem}")


def _is_listed(entries: Any, shape: Sequence[int] | None) -> bool:
    """Whether entries are a sequence or an iterable of texts or labels; `shape` is an array's."""
    if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
        return False
    return shape is None or len(shape) == 1


def _is_missing(label: Any) -> bool:
    """Whether a label is `None`, NaN, or another that is not equal to itself, as that of pandas."""
    if label is None:
        return True
    try:
        return bool(label != label)
    except TypeError:
        return True


def _check_one_type(labels: Sequence[Any]) -> None:
    """Refuses texts among numbers, which NumPy would make texts."""
    is_text = isinstance(labels[0], str)
    for place, label in enumerate(labels):
        if isinstance(label, str) != is_text:
            raise ValueError(
                "Expected labels of one type. Received: "
                f"labels[0]={reprlib.repr(labels[0])} and labels[{place}]={reprlib.repr(label)}"
            )
