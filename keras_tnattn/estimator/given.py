"""Checks the texts and labels that somebody gives to an estimator."""

import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from keras_tnattn.checks import shape_of


def texts_of(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list.

    Raises:
        TypeError: For a single string, an array of several axes, or anything that is no string.
        ValueError: For no texts.
    """
    shape = shape_of(texts)
    if isinstance(texts, str | bytes) or (shape is not None and len(shape) != 1):
        received = f"an array of shape {shape}" if shape is not None else reprlib.repr(texts)
        raise TypeError(f"Expected a list of texts. Received: texts={received}")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(
                f"Expected strings. Received: texts[{place}]={reprlib.repr(text)}, a "
                f"{type(text).__name__}"
            )
    if not listed:
        raise ValueError("Expected at least one text. Received: texts=[]")
    return listed


def labels_of(labels: Iterable[Any], number: int) -> np.ndarray:
    """Returns the labels of a number of texts as an array.

    Raises:
        ValueError: Unless there is one label for each text, of two classes or more.
    """
    shape = shape_of(labels)
    if isinstance(labels, str | bytes) or (shape is not None and len(shape) != 1):
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
                f"{reprlib.repr(label)}, a {type(label).__name__}"
            )
        if label is None or label != label:
            raise ValueError(
                f"Expected a label for each text. Received: labels[{place}]={label}. Leave out "
                "texts without one"
            )
    array = np.asarray(labels)
    check_classification_targets(array)
    if len(set(listed)) < 2:
        raise ValueError(
            "Expected at least two classes to tell apart. Received: one class, "
            f"{array[0]!r}, for all of {number} texts"
        )
    return array
