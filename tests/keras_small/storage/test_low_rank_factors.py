"""Thin factors have the error they state, and none of their rank has a smaller one."""

import numpy as np
import pytest
from conformance import relative_error

from keras_tnattn.ops import low_rank

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(7, 5))
INPUTS = RNG.normal(size=(200, 7)) * np.array([9, 5, 1, 1, 0.1, 0.1, 0.01])
MOMENT = INPUTS.T @ INPUTS / len(INPUTS)
COUNTS = np.array([9.0, 0, 4, 1, 1, 0.5, 2])


def outputs_error(approximation):
    return np.linalg.norm(INPUTS @ (KERNEL - approximation)) / np.linalg.norm(INPUTS @ KERNEL)


def rows_error(approximation):
    squared = (KERNEL - approximation) ** 2
    return np.sqrt((COUNTS @ squared).sum() / (COUNTS @ KERNEL**2).sum())


def kernel_error(approximation):
    return relative_error(approximation, KERNEL)


@pytest.mark.parametrize(
    ("scale", "error"),
    [
        (None, kernel_error),
        (low_rank.square_root(MOMENT), outputs_error),
        (np.sqrt(COUNTS), rows_error),
    ],
    ids=["kernel", "inputs", "rows"],
)
def test_errors_are_those_of_what_is_kept_and_the_smallest(scale, error):
    left, right, errors = low_rank.low_rank_factors(KERNEL, scale)
    assert errors.shape == (6,)
    for rank in range(6):
        approximation = left[:, :rank] @ right[:rank]
        np.testing.assert_allclose(error(approximation), errors[rank], atol=1e-9)
        # Eckart-Young: no step away from it is an improvement.
        for _ in range(20):
            step = left[:, :rank] + 0.1 * RNG.normal(size=(7, rank))
            assert error(step @ right[:rank]) >= errors[rank] - 1e-9
    assert (np.diff(errors) <= 1e-12).all()


def test_plain_errors_are_the_singular_values_left_out():
    s = np.linalg.svd(KERNEL, compute_uv=False)
    expected = [np.sqrt((s[rank:] ** 2).sum() / (s**2).sum()) for rank in range(6)]
    np.testing.assert_allclose(low_rank.low_rank_factors(KERNEL)[2], expected, atol=1e-12)


def test_nothing_is_lost_of_zeros():
    assert low_rank.low_rank_factors(np.zeros((3, 4)))[2].tolist() == [0, 0, 0, 0]


def test_square_root():
    root = low_rank.square_root(MOMENT)
    np.testing.assert_allclose(root @ root, MOMENT, atol=1e-9)
    np.testing.assert_allclose(root, root.T, atol=1e-12)


@pytest.mark.parametrize(
    ("rank", "tolerance", "expected"),
    [(2, None, 2), (9, None, 3), (None, 0.5, 1), (None, 0.0, 3), (None, 1.0, 1)],
)
def test_chosen_rank(rank, tolerance, expected):
    assert low_rank.chosen_rank(np.array([1.0, 0.5, 0.1, 1e-16]), rank, tolerance) == expected


@pytest.mark.parametrize("options", [(None, None), (2, 0.1), (0, None), (None, -0.1)])
def test_errors_of_the_caller(options):
    with pytest.raises(ValueError, match="Received"):
        low_rank.chosen_rank(np.array([1.0, 0.0]), *options)
