"""Rows on a grid: two cores recover rows of their form, and rows move to places that fit."""

import itertools

import numpy as np
import pytest

from keras_small.formats import grouped_rows
from keras_small.storage.integer_groups import rounded_matrix

RNG = np.random.default_rng(0)
SHAPE, RANK, COLUMNS = (12, 5), 3, 4
A = RNG.normal(size=(12, RANK))
B = RNG.normal(size=(RANK, 5, COLUMNS))


def row_by_row(a, b, places):
    rows = [sum(a[p // 5, r] * b[r, p % 5] for r in range(RANK)) for p in places]
    return np.array(rows)


def error(a, b, rows, weights, places):
    return (weights[:, None] * (rows - grouped_rows.lookup(a, b, places)) ** 2).sum()


def test_lookup():
    places = RNG.permutation(60)[:57]
    np.testing.assert_allclose(grouped_rows.lookup(A, B, places), row_by_row(A, B, places))


@pytest.mark.parametrize(("rows", "columns"), [(20_000, 64), (20_011, 3), (7, 64), (600, 1)])
def test_a_grid_has_a_place_for_each_row_and_no_empty_group(rows, columns):
    groups, size = grouped_rows.grid_shape(rows, columns)
    assert (groups - 1) * size < rows <= groups * size
    # Both cores have about the same size, as far as a group has at least one row.
    assert size == 1 or 0.5 < groups / (size * columns) < 2


def test_rows_of_the_rank_are_found_exactly():
    places = RNG.permutation(60)
    rows, weights = row_by_row(A, B, places), np.ones(60)
    a, b = grouped_rows.factors(rows, weights, places, SHAPE, RANK)
    np.testing.assert_allclose(grouped_rows.lookup(a, b, places), rows, atol=1e-5)


def test_refitting_reduces_the_weighted_error():
    places = RNG.permutation(60)[:57]  # three places without a row
    rows, weights = RNG.normal(size=(57, COLUMNS)), RNG.pareto(1.0, 57) + 0.01
    cores = grouped_rows.factors(rows, weights, places, SHAPE, RANK)
    errors = [error(*cores, rows, weights, places)]
    for _ in range(5):
        cores = grouped_rows.refit(*cores, rows, weights, places)
        errors.append(error(*cores, rows, weights, places))
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.9 * errors[0]
    # At the minimum, no change of one core reduces the error further.
    best = grouped_rows.refit(*cores, rows, weights, places, sweeps=300)
    least = error(*best, rows, weights, places)
    for n, core in enumerate(best):
        moved = list(best)
        moved[n] = core + 1e-3 * RNG.normal(size=core.shape)
        assert error(*moved, rows, weights, places) > least


def test_a_group_without_rows_stays():
    rows = RNG.normal(size=(55, COLUMNS))
    a, _ = grouped_rows.refit(A, B, rows, np.ones(55), np.arange(55))
    np.testing.assert_allclose(a[11], A[11])


def test_the_svd_counts_heavy_groups():
    # Groups of two kinds that a single rank cannot both represent.
    rows = np.repeat([[1.0, 0.0], [0.0, 1.5]], 4, axis=0)
    weights = np.repeat([100.0, 1.0], 4)
    a, b = grouped_rows.factors(rows, weights, np.arange(8), (4, 2), rank=1)
    found = grouped_rows.lookup(a, b, np.arange(8))
    np.testing.assert_allclose(found[:4], rows[:4], atol=1e-6)


def test_rows_find_their_places_again():
    weights = RNG.uniform(1, 2, 60)
    places = RNG.permutation(60)
    rows = row_by_row(A, B, places)
    start = np.concatenate([places[:2], np.sort(places[2:])])
    found = grouped_rows.rearrange((A, B), rows, weights, start, first=2, share=1.0)
    np.testing.assert_array_equal(found, places)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_other_blocks_let_rows_move_on(monkeypatch, shift):
    monkeypatch.setattr(grouped_rows, "BLOCK", 30)
    wanted = np.arange(60)
    wanted[[29, 30]] = 30, 29  # in two blocks unless these are shifted
    rows, start = row_by_row(A, B, wanted), np.arange(60)
    found = grouped_rows.rearrange((A, B), rows, np.ones(60), start, share=1.0, shift=shift)
    assert np.array_equal(found, wanted) == (shift > 0)


def test_heavier_rows_choose_first_and_the_others_keep_their_order():
    a, b = np.array([[1.0], [2.0], [3.0]]), np.ones((1, 1, 1))  # places 0, 1, 2 hold 1, 2, 3
    rows = np.full((3, 1), 3.0)
    weights = np.array([1.0, 3.0, 2.0])
    new = grouped_rows.rearrange((a, b), rows, weights, np.arange(3), share=1.0)
    assert new.tolist() == [0, 2, 1]
    # Only the heaviest row chooses: the others follow as they were, on the places that are left.
    for places, expected in (([1, 0, 2], [0, 2, 1]), ([2, 0, 1], [1, 2, 0])):
        new = grouped_rows.rearrange((a, b), rows, weights, np.array(places), share=0.5)
        assert new.tolist() == expected


def test_the_first_rows_stay():
    rows, weights = RNG.normal(size=(57, COLUMNS)), np.ones(57)
    places = grouped_rows.similar_places(rows, first=2)
    assert places[:2].tolist() == [0, 1]
    assert sorted(places) == list(range(57))
    new = grouped_rows.rearrange((A, B), rows, weights, places, first=2)
    assert new[:2].tolist() == [0, 1]
    assert sorted(new) == list(range(57))
    assert new.tolist() != places.tolist()


@pytest.mark.parametrize("change", [grouped_rows.balance, grouped_rows.rotate])
def test_the_product_of_the_cores_stays(change):
    a, b = RNG.normal(size=(30, 7)), RNG.normal(size=(7, 5, 4)) * np.arange(1, 8)[:, None, None]
    new = change(a, b)
    places = np.arange(150)
    expected = grouped_rows.lookup(a, b, places)
    np.testing.assert_allclose(grouped_rows.lookup(*new, places), expected, atol=1e-10)
    assert [x.shape for x in new] == [a.shape, b.shape]


def test_rotated_numbers_are_rounded_with_less_error():
    rows = RNG.normal(size=(500, 32)) * 0.9 ** np.arange(32)
    rotation = grouped_rows.random_rotation(32)
    plain = rounded_matrix(rows, 4, 32, axis=1)
    rotate = rounded_matrix(rows @ rotation, 4, 32, axis=1) @ rotation.T
    assert np.linalg.norm(rotate - rows) < 0.8 * np.linalg.norm(plain - rows)


def test_the_second_core_makes_up_for_a_rounded_first_one():
    places = RNG.permutation(200)
    weights = RNG.uniform(0.1, 3, 200)
    a, b = RNG.normal(size=(40, 8)), RNG.normal(size=(8, 5, 6))
    rows = grouped_rows.lookup(a, b, places)
    rounded = rounded_matrix(a, 4, 8, axis=1)

    def error(a, b):
        return (weights[:, None] * (grouped_rows.lookup(a, b, places) - rows) ** 2).sum()

    again = grouped_rows.refit_second(rounded, b, rows, weights, places)
    assert error(rounded, again) < 0.8 * error(rounded, b)


@pytest.mark.parametrize("exact", [1024, 8])
def test_large_tables_are_factored_in_parts(monkeypatch, exact):
    rows = RNG.normal(size=(600, 16)) * 0.8 ** np.arange(16)
    weights, places = RNG.uniform(0.5, 2, 600), RNG.permutation(600)
    a, b, errors = grouped_rows.decomposition(rows, weights, places, (50, 12), 9)
    whole = error(a, b, rows, weights, places)
    assert grouped_rows.squared_error(a, b, rows, weights, places) == pytest.approx(whole)
    monkeypatch.setattr(grouped_rows, "_COPIED_NUMBERS", 1000)
    monkeypatch.setattr(grouped_rows, "_EXACT_SVD_SIZE", exact)
    parts = grouped_rows.decomposition(rows, weights, places, (50, 12), 9)
    np.testing.assert_allclose(parts[2], errors, rtol=1e-2)
    cores = grouped_rows.lookup(*parts[:2], places), grouped_rows.lookup(a, b, places)
    if exact > 8:
        np.testing.assert_allclose(*cores, atol=1e-8)
    assert grouped_rows.squared_error(*parts[:2], rows, weights, places) <= 1.02 * whole
    # With equal weights the errors are those of the rows.
    a, b, errors = grouped_rows.decomposition(rows, np.ones(600), places, (50, 12), 9)
    for rank in (3, 9):
        left = error(a[:, :rank], b[:rank], rows, np.ones(600), places) / (rows**2).sum()
        assert errors[rank] == pytest.approx(left, rel=1e-4)


@pytest.mark.parametrize("size", [1.0, 1e25])
def test_rows_find_their_places_in_small_products(monkeypatch, size):
    monkeypatch.setattr(grouped_rows, "_PRODUCTS", 300)
    weights, places = RNG.uniform(1, 2, 60), RNG.permutation(60)
    rows = size * row_by_row(A, B, places)
    found = grouped_rows.rearrange((size * A, B), rows, weights, np.arange(60), share=1.0)
    np.testing.assert_array_equal(found, places)
