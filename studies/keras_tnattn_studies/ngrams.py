"""Counted n-grams: what a language model has to beat on the same text.

The probability of an id after a context `c` of `k` ids is interpolated with that of the next
shorter context (Witten and Bell, 1991, https://doi.org/10.1109/18.87000, method C), which needs no
parameter:

    p_k(x | c) = (n(c, x) + T(c) p_{k-1}(x | c')) / (n(c) + T(c))

where `n` counts, `T(c)` is the number of different ids after `c`, and `p_{-1}` is uniform.
"""

import math
from collections.abc import Sequence

import numpy as np

_BITS = 9  # of an id: bytes, and some special ones
MAX_ORDER = 64 // _BITS - 1


def ngram_bits(train: np.ndarray, test: np.ndarray, orders: Sequence[int]) -> list[float]:
    """Returns the bits of all predicted ids of rows, for models of several orders.

    An order is the number of ids that are seen. As for the models of the study, the first id of a
    row is seen and not predicted, and no id before the row is seen. Ids are integers from 1 to 511;
    0 is padding, at the end of a row.

    Raises:
        ValueError: If an order or an id is out of range.

    Example:
        >>> rows = np.array([[1, 2, 1, 2, 1, 2, 1, 2]])
        >>> [round(bits, 2) for bits in ngram_bits(rows, rows, (0, 1))]
        [6.9, 1.18]
    """
    if not all(0 <= order <= MAX_ORDER for order in orders):
        raise ValueError(f"Expected orders from 0 to {MAX_ORDER}. Received: orders={orders}")
    largest = max(train.max(), test.max())
    if largest >= 2**_BITS:
        raise ValueError(f"Expected ids below {2**_BITS}. Received: an id of {largest}")
    real = test[:, 1:] != 0
    probabilities = np.full(real.shape, 1 / len(np.unique(train[train != 0])))
    bits = {}
    for order in range(max(orders) + 1):
        counts = _Counts(train, order)
        first = max(order - 1, 0)  # of the predicted ids, the first that sees so many
        probabilities[:, first:] = counts.interpolate(test, probabilities[:, first:])
        bits[order] = -math.fsum(np.log2(probabilities[real]))
    return [bits[order] for order in orders]


class _Counts:
    """How often each id follows each context of one length."""

    def __init__(self, rows: np.ndarray, order: int) -> None:
        self.order = order
        grams, ids = self._grams(rows)
        self.grams, self.numbers = np.unique(grams[ids != 0], return_counts=True)
        self.contexts, starts = np.unique(self.grams >> _BITS, return_index=True)
        self.totals = np.add.reduceat(self.numbers, starts)
        self.kinds = np.diff(starts, append=len(self.grams))

    def _grams(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns contexts with the ids that follow as numbers, and these ids."""
        first, length = max(self.order, 1), rows.shape[1]
        grams = np.zeros((len(rows), length - first), "uint64")
        for place in range(first - self.order, first + 1):
            grams = grams << _BITS | rows[:, place : length - first + place].astype("uint64")
        return grams, rows[:, first:]

    def interpolate(self, rows: np.ndarray, shorter: np.ndarray) -> np.ndarray:
        """Returns the probabilities of the ids of rows from those after shorter contexts."""
        grams, _ = self._grams(rows)
        numbers = _looked_up(grams, self.grams, self.numbers)
        contexts = grams >> _BITS
        totals, kinds = (_looked_up(contexts, self.contexts, x) for x in (self.totals, self.kinds))
        mixed = (numbers + kinds * shorter) / np.maximum(totals + kinds, 1)
        return np.where(totals > 0, mixed, shorter)


def _looked_up(keys: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the value of each key, 0 for those that are not known."""
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[places] == keys, values[places], 0)
