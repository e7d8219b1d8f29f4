"""Permutations that are computed a part at a time."""

import numpy as np
import pytest

from keras_tnattn_train.data.permutation import permute


@pytest.mark.parametrize("size", [1, 7, 65_536, 65_537, 200_000])
def test_each_number_comes_once_also_in_parts(size):
    whole = permute(np.arange(size), size, (3, 1))
    assert sorted(whole) == list(range(size))
    parts = [permute(np.arange(size)[i::3], size, (3, 1)) for i in range(3)]
    for i, part in enumerate(parts):
        np.testing.assert_array_equal(part, whole[i::3])


@pytest.mark.parametrize("size", [1000, 100_000])
def test_other_seeds_give_other_orders_and_neighbors_are_parted(size):
    first, second = (permute(np.arange(size), size, (0, epoch)) for epoch in (0, 1))
    assert (first == second).mean() < 10 / size * 5
    for numbers in (first, second):
        # Of a random permutation, one pair of neighbors in `size / 2` stays together.
        assert (np.abs(np.diff(numbers)) == 1).sum() < 20
        # No trend and no relation to the order before.
        assert abs(np.corrcoef(numbers, np.arange(size))[0, 1]) < 5 / np.sqrt(size)
        # As many of each quarter come from each quarter.
        quarters = 4 * numbers.reshape(4, -1) // size
        shares = [np.bincount(quarter, minlength=4) / (size / 4) for quarter in quarters]
        np.testing.assert_allclose(shares, 0.25, atol=3 / np.sqrt(size))
