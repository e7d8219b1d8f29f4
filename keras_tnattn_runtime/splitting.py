"""Splits labeled rows into two parts."""

import numpy as np


def split_rows(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits row numbers into two sorted parts with the same proportions of classes (stratified).

    The row of a class with a single row goes to the first part. The split is not stratified if a
    part would have fewer rows than there are classes.

    Args:
        labels: Integers from 0 on, `(R,)`.
        fraction: The share of the second part, between 0 and 1.
        seed: Of the order in which rows are drawn.

    Raises:
        ValueError: For rows of one class, without a class of two rows, or with none left for the
            first part.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn_runtime.splitting import split_rows
        >>> first, second = split_rows(np.array([0, 0, 0, 1, 1, 1]), 1 / 3, seed=0)
        >>> len(first), len(second)
        (4, 2)
    """
    # scikit-learn takes a second to import, which `--help` should not.
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels)
    classes = np.count_nonzero(counts)
    alone = counts[labels] == 1
    if classes < 2:
        raise ValueError(
            f"Expected at least two classes to tell apart. Received: {len(labels)} rows of one"
        )
    rows = np.arange(len(labels))
    shared = rows[~alone]
    if len(shared) < 2:
        raise ValueError(
            f"Expected a class with two rows or more. Received: {len(labels)} rows in "
            f"{classes} classes. Is this the column of the labels?"
        )
    number = int(np.ceil(fraction * len(shared)))
    if number == len(shared):
        raise ValueError(
            f"Expected rows to train on. Received: {len(labels)} rows, of which a fraction of "
            f"{fraction} leaves none. Give a smaller fraction or more rows"
        )
    stratified = classes - np.count_nonzero(alone) <= min(number, len(shared) - number)
    stratify = labels[shared] if stratified else None
    first, second = train_test_split(
        shared, test_size=number, random_state=seed, shuffle=True, stratify=stratify
    )
    return np.sort(np.concatenate([first, rows[alone]])), np.sort(second)
