"""Floats that integers or half floats stand for."""

import numpy as np
import pytest

from keras_tnattn.export.narrowing import narrow_bytes, narrowed

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("bits", "largest"), [(4, 7), (8, 127)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_integers_and_their_scales_are_found(bits, largest, axis):
    numbers = RNG.integers(-largest, largest + 1, (20, 24, 28)).astype("int8")
    shape = [1, 1, 1]
    shape[axis] = numbers.shape[axis]
    scales = RNG.uniform(0.001, 2, shape).astype("float32")
    narrow = narrowed(numbers * scales)
    assert (narrow.bits, narrow.axis) == (bits, axis)
    np.testing.assert_array_equal(narrow.numbers, numbers)
    np.testing.assert_allclose(narrow.scales, scales.ravel(), rtol=1e-6)
    assert narrow.nbytes == numbers.size * bits // 8 + 4 * scales.size


def test_a_row_without_the_largest_integer_is_found_too():
    numbers = RNG.integers(-127, 128, (30, 50))
    numbers[:, 0] = 127
    numbers[7] = RNG.integers(-90, 91, 50)
    numbers[7, 3] = 90
    scales = RNG.uniform(0.1, 1, (30, 1)).astype("float32")
    narrow = narrowed((numbers * scales).astype("float32"))
    np.testing.assert_array_equal(narrow.numbers, numbers)


def test_whole_numbers_have_one_scale():
    numbers = RNG.integers(-5, 6, (40, 41)).astype("float32")
    narrow = narrowed(numbers)
    assert narrow.scales.tolist() == [1.0]
    assert narrow.bits == 4


def test_half_floats_are_found():
    array = RNG.normal(size=(30, 30)).astype("float16").astype("float32")
    assert narrowed(array).bits == 16
    assert narrow_bytes(array) == 1800


@pytest.mark.parametrize(
    "array",
    [
        RNG.normal(size=(30, 30)).astype("float32"),
        np.full((30, 30), np.inf, "float32"),
        np.ones((30, 30), "int32"),
        np.zeros(3, "float32"),
    ],
)
def test_other_arrays_stay(array):
    assert narrowed(array) is None


def test_bytes_of_whole_numbers():
    assert narrow_bytes(np.arange(300, dtype="int32")) == 600
    assert narrow_bytes(np.arange(200, dtype="int32")) == 200
    assert narrow_bytes(np.ones((9, 9), "uint8")) == 81


def test_floats_without_a_narrow_form_have_their_own_bytes():
    assert narrow_bytes(np.random.default_rng(0).normal(size=(100, 30)).astype("float32")) == 12_000
