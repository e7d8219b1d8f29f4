"""Random permutations that need no memory for what they permute."""

from collections.abc import Sequence

import numpy as np

_MAX_IN_MEMORY = 65_536  # numbers that are permuted in memory
_ROUNDS = 6


def permute(places: np.ndarray, size: int, seed: Sequence[int]) -> np.ndarray:
    """Returns what a random permutation of the numbers below `size` makes of some of them.

    A large permutation is a Feistel network: it splits the bits of a number in halves and, in
    turns, adds a random function of the one to the other. Numbers of `size` or more that result are
    permuted again, until they are smaller.
    """
    rng = np.random.default_rng(seed)
    if size <= _MAX_IN_MEMORY:
        return rng.permutation(size)[places]
    half = np.uint64((int(size - 1).bit_length() + 1) // 2)
    keys = rng.integers(2**63, size=_ROUNDS, dtype="uint64")
    numbers = _network(np.asarray(places, "uint64"), half, keys)
    while (outside := np.flatnonzero(numbers >= size)).size:
        numbers[outside] = _network(numbers[outside], half, keys)
    return numbers.astype("int64")


def _network(numbers: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Permutes the numbers of `2 * half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << half) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Mixes the bits of 64-bit numbers, as the generator SplitMix64 does."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
