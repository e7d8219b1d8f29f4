"""Rows of a tensor train by their digits, and tables turned into tensor trains."""

import math

import numpy as np
import pytest
from conformance import to_numpy
from keras import ops

from keras_tnattn.ops.tensor_train import table as tt_table

RNG = np.random.default_rng(0)
# Unequal factors and ranks: any swapped pair of axes changes a number.
ROWS, COLUMNS, RANKS = (2, 3, 4), (5, 2, 3), (1, 4, 6, 1)
CORES = [
    RNG.normal(size=(RANKS[n], ROWS[n], COLUMNS[n], RANKS[n + 1])).astype("float32")
    for n in range(3)
]


def entry_by_entry():
    table = np.zeros((24, 30))
    for i, digits in enumerate(np.ndindex(*ROWS)):
        for j, columns in enumerate(np.ndindex(*COLUMNS)):
            slices = [
                c[:, a, b].astype("float64") for c, a, b in zip(CORES, digits, columns, strict=True)
            ]
            table[i, j] = np.linalg.multi_dot(slices).item()
    return table


@pytest.mark.parametrize("blocks", [(1, 1, 1), (2, 1), (1, 2), (3,)])
def test_rows_of_every_partition(blocks):
    ids = RNG.integers(0, 24, (3, 7))
    cores = [ops.convert_to_tensor(core) for core in CORES]
    rows = to_numpy(tt_table.tt_rows(ops.convert_to_tensor(ids), cores, blocks))
    np.testing.assert_allclose(rows, entry_by_entry()[ids], rtol=1e-4, atol=1e-5)


def test_form_table():
    np.testing.assert_allclose(
        tt_table.form_table(CORES, 23), entry_by_entry()[:23], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("num_rows", [1, 7, 12, 20_000, 20_011])
@pytest.mark.parametrize("num_factors", [1, 2, 3, 4])
def test_row_factors_cover_the_rows_and_none_can_be_less(num_rows, num_factors):
    factors = tt_table.row_factors(num_rows, num_factors)
    assert len(factors) == num_factors
    assert math.prod(factors) >= num_rows
    for n, factor in enumerate(factors):
        fewer = (*factors[:n], factor - 1, *factors[n + 1 :])
        assert math.prod(fewer) < num_rows


def test_blocks_depend_on_the_number_of_ids():
    shapes = (20, 25, 40), (4, 4, 4), (16, 16)
    few, many = (tt_table.row_blocks(*shapes, num_ids) for num_ids in (1, 10**7))
    assert sum(few) == sum(many) == 3
    assert few == (1, 1, 1)
    assert many == (3,)  # the whole table
    # The last block is only looked up.
    assert tt_table.row_blocks((4, 16, 16), (4, 2, 1), (2, 2), 1024) == (3,)


def test_a_table_of_these_ranks_is_found_again():
    table = entry_by_entry()[:23]
    cores, error = tt_table.table_to_tt(table, ROWS, COLUMNS, tt_ranks=(10, 12))
    assert error < 1e-6
    np.testing.assert_allclose(tt_table.form_table(cores, 23), table, atol=1e-4)


def test_weights_lower_the_weighted_error_that_is_stated():
    table = RNG.normal(size=(22, 30))
    weights = np.where(np.arange(22) < 5, 50.0, 0.1)

    def weighted(cores):
        error = (table - tt_table.form_table(cores, 22)) ** 2
        return np.sqrt((weights @ error).sum() / (weights @ table**2).sum())

    plain, _ = tt_table.table_to_tt(table, ROWS, COLUMNS, tt_ranks=4)
    cores, stated = tt_table.table_to_tt(table, ROWS, COLUMNS, tt_ranks=4, row_weights=weights)
    np.testing.assert_allclose(stated, weighted(cores), rtol=1e-6)
    assert weighted(cores) < 0.9 * weighted(plain)


def test_the_order_has_the_direction_of_the_largest_feature():
    along = np.array([-9, 1.5, 2, -0.5, 3, 1])
    order = tt_table.similarity_order(np.outer(along, [0.5, 1.0]))
    np.testing.assert_array_equal(order, along.argsort())


def test_similar_rows_become_neighbors():
    groups = RNG.permutation(np.repeat(np.arange(4), 16))
    centers = np.array([[0, 0], [0, 50], [100, 0], [100, 50]])
    order = tt_table.similarity_order(centers[groups] + RNG.normal(size=(64, 2)))
    assert sorted(order) == list(range(64))
    assert all(len(set(groups[order][i : i + 16])) == 1 for i in range(0, 64, 16))


def test_halves_are_those_along_the_principal_axis():
    along = RNG.permutation(6000)  # more rows than one axis is computed from
    table = along[:, None] * np.array([1.0, -1.0, 0.0]) + RNG.normal(size=(6000, 3))
    order = along[tt_table.similarity_order(table)]
    for parts in (2, 4, 8):
        means = [part.mean() for part in np.split(order, parts)]
        assert all(part.std() < 6000 / parts / 3 for part in np.split(order, parts))
        assert np.ptp(means) == pytest.approx(6000 * (1 - 1 / parts), rel=1e-2)


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match="num_rows=0"):
        tt_table.row_factors(0, 3)
