"""Second moments are kept as triangles, and are those of all rows."""

import numpy as np
import pytest

from keras_small.survey import moments

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("columns", [3, 4, 10, 12])
def test_a_moment_is_that_of_all_rows(columns, monkeypatch):
    monkeypatch.setattr(moments, "_COLUMNS_AT_ONCE", 4)
    rows = RNG.normal(size=(50, columns)).astype("float32")
    moment = moments.SecondMoment()
    for part in (rows[:20], rows[20:]):
        moment.add(part)
    assert moment.rows == 50
    assert moment.matrix().dtype == "float32"
    np.testing.assert_allclose(moment.matrix(), rows.T @ rows / 50, atol=1e-5)


def test_a_triangle_takes_half_the_memory():
    moment = moments.SecondMoment()
    moment.add(RNG.normal(size=(10, 2048)).astype("float32"))
    size = moment.matrix().nbytes
    assert 0.5 * size <= sum(block.nbytes for block in moment._blocks) < 0.6 * size


@pytest.mark.parametrize("large", [1, 1e25])
def test_few_rows_wait_for_others(large):
    rows = RNG.normal(size=(20, 40)).astype("float32")
    rows[-1] *= np.float32(large)
    moment = moments.SecondMoment()
    for part in np.split(rows, 10):
        before = sum(map(len, moment._waiting))
        moment.add(part)
        assert sum(map(len, moment._waiting)) == (before + 2 if before + 2 < 40 / 8 else 0)
    exact = rows.astype("float64")
    np.testing.assert_allclose(moment.matrix(), exact.T @ exact / 20, rtol=1e-4, atol=1e-5)


def test_what_waits_is_told_if_it_is_not_finite():
    moment = moments.SecondMoment()
    moment.add(np.full((1, 40), np.nan, "float32"))
    assert not moment.is_finite()


def test_large_numbers_are_summed_in_float64():
    rows = RNG.normal(size=(20, 3))
    moment = moments.SecondMoment()
    moment.add(rows.astype("float32"))
    moment.add((1e25 * rows).astype("float32"))
    assert moment.matrix().dtype == "float64"
    expected = (1 + 1e50) * rows.T @ rows / 40
    np.testing.assert_allclose(moment.matrix(), expected, rtol=1e-5)


def test_the_size_of_the_rows_does_not_change_how_much_is_shrunk():
    rows = RNG.normal(size=(50, 8)).astype("float32")
    one, large = moments.SecondMoment(), moments.SecondMoment()
    one.add(rows)
    large.add(np.float32(1e10) * rows)
    assert large.matrix().dtype == "float32"
    np.testing.assert_allclose(large.shrunk() / 1e20, one.shrunk(), rtol=1e-3, atol=1e-4)


def test_without_rows_there_is_nothing_to_shrink():
    moment = moments.SecondMoment()
    moment.add(np.zeros((0, 3), "float32"))
    np.testing.assert_array_equal(moment.shrunk(), np.zeros((3, 3)))


def test_few_rows_are_shrunk_more():
    def distance(count):
        moment = moments.SecondMoment()
        moment.add(RNG.normal(size=(count, 8)).astype("float32") * np.arange(1, 9))
        matrix, shrunk = moment.matrix(), moment.shrunk()
        assert np.trace(shrunk) == pytest.approx(np.trace(matrix))
        return np.linalg.norm(shrunk - matrix) / np.linalg.norm(matrix)

    assert distance(5000) < 0.05 < distance(10)


def test_what_is_not_finite_is_told():
    moment = moments.SecondMoment()
    moment.add(np.ones((2, 3), "float32"))
    assert moment.is_finite()
    moment.add(np.full((2, 3), np.nan, "float32"))
    assert not moment.is_finite()
