"""Factors of kernels of convolutions have the products and the errors that they should."""

import numpy as np
import pytest
from conformance import relative_error

from keras_small.storage import convolution_factors as factors

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(3, 2, 5, 7))


def moment_of(size, directions=12):
    """Of patches that mostly span few directions."""
    patches = RNG.normal(size=(500, directions)) @ RNG.normal(size=(directions, size))
    patches += 0.1 * RNG.normal(size=patches.shape)
    return patches.T @ patches / 500, patches


MOMENT, PATCHES = moment_of(30)


def output_error(approximation):
    """Relative error of the outputs on the patches themselves."""
    expected, outputs = (PATCHES @ kernel.reshape(30, 7) for kernel in (KERNEL, approximation))
    return relative_error(outputs, expected)


def test_an_error_is_that_of_the_outputs():
    approximation = KERNEL + 0.1 * np.random.default_rng(1).normal(size=KERNEL.shape)
    assert factors.OutputErrors(KERNEL, MOMENT).of(approximation) == pytest.approx(
        output_error(approximation)
    )
    plain = pytest.approx(relative_error(approximation, KERNEL))
    assert factors.OutputErrors(KERNEL).of(approximation) == plain


@pytest.mark.parametrize("moment", [None, MOMENT])
def test_full_ranks_are_exact(moment):
    first, second, errors = factors.channel_factors(KERNEL, moment)
    np.testing.assert_allclose(factors.product(first, second), KERNEL, atol=1e-9)
    assert errors[-1] < 1e-9
    inner, core, outer = next(factors.tucker_factors(KERNEL, [(5, 7)], moment))
    np.testing.assert_allclose(factors.product(inner, core, outer), KERNEL, atol=1e-2)
    first, second = next(factors.spatial_factors(KERNEL, [14], moment))
    np.testing.assert_allclose(factors.product(first, second), KERNEL, atol=1e-2)


def test_a_product_is_the_sum_over_all_ranks():
    first, second = RNG.normal(size=(3, 1, 5, 4)), RNG.normal(size=(1, 2, 4, 7))
    expected = np.einsum("hcr,wrf->hwcf", first[:, 0], second[0])
    np.testing.assert_allclose(factors.product(first, second), expected)
    inner, core, outer = (RNG.normal(size=s) for s in ((5, 3), (3, 2, 3, 4), (4, 7)))
    expected = np.einsum("ca,hwab,bf->hwcf", inner, core, outer)
    np.testing.assert_allclose(factors.product(inner, core, outer), expected)


def test_a_channel_counts_by_its_energy_at_each_tap():
    """Channel 0 is large but alternates from tap to tap, so that its sum over the taps is 0."""
    loud, quiet = RNG.normal(size=(2, 400))
    patches = np.stack([3 * loud, quiet, -3 * loud, quiet], axis=1)  # taps, then channels
    kernel = np.linalg.qr(RNG.normal(size=(8, 2)))[0].reshape(2, 4, 2).transpose(0, 2, 1)
    inner, _, _ = next(factors.tucker_factors(kernel, [(1, 4)], patches.T @ patches / 400))
    assert abs(inner[0, 0]) > 0.9


def test_the_moment_reduces_the_error_of_the_outputs():
    def channel(moment):
        first, second, errors = factors.channel_factors(KERNEL, moment)
        approximation = factors.product(first[..., :4], second[:4])
        if moment is not None:
            assert errors[4] == pytest.approx(output_error(approximation))
        return approximation

    ways = [
        channel,
        lambda moment: factors.product(*next(factors.tucker_factors(KERNEL, [(3, 4)], moment))),
        lambda moment: factors.product(*next(factors.spatial_factors(KERNEL, [6], moment))),
    ]
    for way in ways:
        assert output_error(way(MOMENT)) < 0.9 * output_error(way(None))


def test_least_squares_has_no_better_neighbor():
    """Neither the core of Tucker-2 nor the second spatial kernel can be improved."""
    inner, core, outer = next(factors.tucker_factors(KERNEL, [(3, 4)], MOMENT))
    best = output_error(factors.product(inner, core, outer))
    first, second = next(factors.spatial_factors(KERNEL, [6], MOMENT))
    best_spatial = output_error(factors.product(first, second))
    for _ in range(20):
        changed = core + 0.01 * RNG.normal(size=core.shape)
        assert output_error(factors.product(inner, changed, outer)) > best
        changed = second + 0.01 * RNG.normal(size=second.shape)
        assert output_error(factors.product(first, changed)) > best_spatial


@pytest.mark.parametrize("shape", [(3, 20, 30), (3, 3, 64, 32), (2, 2, 2, 8, 8)])
def test_ranks_within_a_share(shape):
    *sizes, channels, filters = shape
    for share in (0.1, 0.3, 0.6):
        a, b = factors.ranks_within(shape, share)
        size = a * channels + np.prod(sizes) * a * b + b * filters
        assert size <= share * np.prod(shape) or (a, b) == (1, 1)
        a, b = a + 1, b + 1
        assert a * channels + np.prod(sizes) * a * b + b * filters > share * np.prod(shape)


def test_one_axis_and_three():
    kernel = RNG.normal(size=(3, 4, 6))
    first, second, errors = factors.channel_factors(kernel)
    approximation = factors.product(first[..., :2], second[:2])
    assert factors.OutputErrors(kernel).of(approximation) == pytest.approx(errors[2])
    kernel = RNG.normal(size=(2, 3, 2, 4, 6))
    first, second = next(factors.spatial_factors(kernel, [8]))
    assert first.shape == (2, 1, 1, 4, 8)
    assert second.shape == (1, 3, 2, 8, 6)
    np.testing.assert_allclose(factors.product(first, second), kernel, atol=1e-4)


@pytest.mark.parametrize("moment", [None, MOMENT])
def test_a_series_has_the_factors_of_each_rank(moment):
    pairs = [(5, 7), (2, 4), (1, 1)]
    for ranks, parts in zip(pairs, factors.tucker_factors(KERNEL, pairs, moment), strict=True):
        expected = factors.product(*next(factors.tucker_factors(KERNEL, [ranks], moment)))
        np.testing.assert_allclose(factors.product(*parts), expected, atol=1e-8)
    numbers = [11, 4, 1]
    for rank, parts in zip(numbers, factors.spatial_factors(KERNEL, numbers, moment), strict=True):
        expected = factors.product(*next(factors.spatial_factors(KERNEL, [rank], moment)))
        np.testing.assert_allclose(factors.product(*parts), expected, atol=1e-8)
