"""Groups of integers are decoded as the format says, and near what they stand for."""

import itertools
import math

import numpy as np
import pytest
from conformance import to_numpy
from keras import ops

from keras_small.storage import integer_groups
from keras_small.storage.integer_groups import restored_matrix

ALL_BITS = (2, 3, 4, 6, 8)
RNG = np.random.default_rng(0)
# 45 rows: the last group of 16 is not full, and no unit of packed bytes is.
MATRIX = RNG.normal(size=(45, 7)).astype("float32") * np.geomspace(0.01, 1, 7, dtype="float32")


def test_symmetric_integers_stay_so():
    parts = integer_groups.quantize_groups(MATRIX, 8, 16, symmetric=True)
    numbers, _ = integer_groups.round_to_groups(ops.convert_to_tensor(-2 * MATRIX), parts, 8, 16)
    assert to_numpy(numbers).min() == 1


def unpacked_bits(column, size, bits):
    """Reads the bytes of a column as one long binary number, lowest bits first."""
    whole = int.from_bytes(bytes(column.tolist()), "little")
    return [(whole >> (bits * i)) & (2**bits - 1) for i in range(size)]


def decoded(groups, rows, bits, group_size):
    """Decodes entry by entry, in float64."""
    approximation = np.empty((rows, groups.integers.shape[1]))
    for j in range(approximation.shape[1]):
        numbers = unpacked_bits(groups.integers[:, j], rows, bits)
        zeros = unpacked_bits(groups.zeros[:, j], len(groups.scales), bits)
        for i, number in enumerate(numbers):
            g = i // group_size
            scale = float(groups.largest) * 2 ** (-int(groups.scales[g, j]) / 16)
            approximation[i, j] = scale * (number - zeros[g])
    return approximation


@pytest.mark.parametrize(("bits", "group_size"), list(itertools.product(ALL_BITS, (16, 64))))
def test_the_bytes_say_what_is_restored(bits, group_size):
    groups = integer_groups.quantize_groups(MATRIX, bits, group_size)
    expected = decoded(groups, 45, bits, group_size)
    np.testing.assert_allclose(
        restored_matrix(groups, 45, bits, group_size), expected, rtol=2e-6, atol=1e-9
    )
    assert groups.nbytes == integer_groups.stored_bytes((45, 7), bits, group_size)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_symmetric_groups_have_their_zero_in_the_middle(bits):
    groups = integer_groups.quantize_groups(MATRIX, bits, 16, symmetric=True)
    numbers, steps, zeros = integer_groups.numbers_of_groups(groups, 45, bits)
    assert (zeros == 2 ** (bits - 1)).all()
    assert numbers.min() >= (bits == 8)  # -127 to 127
    if bits >= 6:
        error = np.abs(restored_matrix(groups, 45, bits, 16) - MATRIX)
        assert (error <= 1.01 * np.repeat(steps, 16, axis=0)[:45]).all()


@pytest.mark.parametrize("bits", ALL_BITS)
def test_errors_are_below_a_step(bits):
    groups = integer_groups.quantize_groups(MATRIX, bits, 16)
    approximation, shares = restored_matrix(groups, 45, bits, 16), []
    for start in range(0, 45, 16):
        part = MATRIX[start : start + 16]
        low, high = np.minimum(part.min(axis=0), 0), np.maximum(part.max(axis=0), 0)
        step = (high - low) / (2**bits - 1)
        error = np.abs(approximation[start : start + 16] - part)
        # Scales are rounded up by at most 2^(1/16), and the zero by half a step.
        if bits >= 6:
            assert (error <= 1.05 * step).all()
        zero = np.rint(-low / step)
        plain = (np.clip(np.rint(part / step) + zero, 0, 2**bits - 1) - zero) * step
        shares.append((error**2).sum(axis=0) / ((plain - part) ** 2).sum(axis=0))
    # With few bits entries are clipped where this reduces the squared error of the group.
    assert np.mean(shares) < {2: 0.78, 3: 0.9, 4: 0.98}.get(bits, 1.15)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_rows_are_the_columns_of_the_transpose(bits):
    columns = integer_groups.quantize_groups(MATRIX, bits, 16)
    rows = integer_groups.quantize_groups(MATRIX.T, bits, 16, axis=1)
    for name in ("integers", "scales", "zeros", "largest"):
        np.testing.assert_array_equal(getattr(rows, name).T, getattr(columns, name))
    approximation = restored_matrix(rows, 45, bits, 16, axis=1)
    np.testing.assert_allclose(approximation.T, restored_matrix(columns, 45, bits, 16), rtol=1e-6)
    # Some rows with any leading axes, as a lookup takes them.
    places = np.array([[0, 3], [6, 6]])
    some = [x[places] for x in rows[:3]]
    taken = integer_groups.dequantize_groups([*some, rows.largest], 45, bits, 16, axis=-1)
    np.testing.assert_allclose(to_numpy(taken), approximation[places], rtol=2e-6)


def correlated_inputs(size=45):
    mixing = RNG.normal(size=(6, size)) + 0.3 * RNG.normal(size=(6, 1))
    return RNG.normal(size=(400, 6)) @ mixing + 0.1 * RNG.normal(size=(400, size))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_moment_reduces_the_error_of_the_outputs(bits):
    inputs = correlated_inputs()
    moment = inputs.T @ inputs / len(inputs)
    errors = [
        np.linalg.norm(inputs @ (restored_matrix(groups, 45, bits, 16) - MATRIX))
        for groups in (
            integer_groups.quantize_groups(MATRIX, bits, 16),
            integer_groups.quantize_groups(MATRIX, bits, 16, moment=moment),
        )
    ]
    assert errors[1] < 0.75 * errors[0]


def test_scales_suit_the_inputs_that_count():
    matrix = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
    matrix[3] = 6  # of an input that is nearly always 0
    weights = np.where(np.arange(16) == 3, 1e-4, 1.0)
    groups = integer_groups.quantize_groups(matrix, 3, 16, moment=np.diag(weights))
    plain = integer_groups.quantize_groups(matrix, 3, 16)
    errors = [
        weights @ np.square(restored_matrix(x, 16, 3, 16) - matrix).sum(axis=1)
        for x in (groups, plain)
    ]
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.parametrize("size", [45, 100])  # one block of rows, and two
def test_rounding_in_turn_equals_the_least_squares_of_the_paper(size):
    """After each entry is rounded, the rest is the minimizer of the error, computed anew."""
    inputs, matrix = correlated_inputs(size), RNG.normal(size=(size, 7))
    moment = inputs.T @ inputs / len(inputs)
    groups = integer_groups.quantize_groups(matrix, 3, 16, moment=moment)
    damped = moment + (0.01 * np.trace(moment) / size + 1e-12) * np.eye(size)
    order = np.argsort(-np.diag(moment), kind="stable")
    for j in range(7):
        zeros = unpacked_bits(groups.zeros[:, j], math.ceil(size / 16), 3)
        scales = [float(groups.largest) * 2 ** (-int(u) / 16) for u in groups.scales[:, j]]
        rest, numbers = matrix[:, j].copy(), np.empty(size, int)
        for turn, i in enumerate(order):
            scale, zero = scales[i // 16], zeros[i // 16]
            numbers[i] = np.clip(np.rint(rest[i] / scale) + zero, 0, 7)
            error, after = rest[i] - scale * (numbers[i] - zero), order[turn + 1 :]
            if len(after):
                within = damped[np.ix_(after, after)]
                rest[after] += np.linalg.solve(within, damped[after, i]) * error
        assert (numbers == unpacked_bits(groups.integers[:, j], size, 3)).mean() > 0.95


@pytest.mark.parametrize("step", [0.05, 0.3, 1.5])
def test_one_step_for_a_whole_matrix(step):
    matrix = np.random.default_rng(0).normal(size=(60, 9)).astype("float32") + 0.4
    size = step * np.sqrt(np.square(matrix).mean())
    bits = integer_groups.bits_of_step(matrix, step)
    groups = integer_groups.quantize_groups(matrix, bits, group_size=60, step=step)
    near = integer_groups.restored_matrix(groups, 60, bits, group_size=60)
    errors = np.abs(matrix) - np.abs(near)
    assert -0.501 * size < errors.min() < errors.max() < 0.801 * size
    assert (np.sign(near) * matrix >= 0).all()
    multiples = near / groups.largest
    np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-4)
    fewer = [b for b in (2, 3, 4, 6, 8) if np.ptp(np.rint(matrix / size)) < 2**b]
    assert bits == fewer[0]
    assert integer_groups.bits_of_step(matrix, 0.001) is None


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [1e12, 1e18])
def test_the_integers_of_large_numbers_are_those_of_small_ones(bits, size):
    matrix, inputs = RNG.normal(size=(64, 40)), RNG.normal(size=(500, 64))
    moment = inputs.T @ inputs / 500
    small = integer_groups.quantize_groups(matrix, bits, 32, moment=moment)
    large = integer_groups.quantize_groups(size * matrix, bits, 32, moment=size**2 * moment)
    assert np.mean(small.integers == large.integers) > 0.99


def test_zeros_stay_zeros():
    matrix = MATRIX.copy()
    matrix[:16, 2] = 0
    for bits in ALL_BITS:
        approximation = restored_matrix(
            integer_groups.quantize_groups(matrix, bits, 16), 45, bits, 16
        )
        assert (approximation[:16, 2] == 0).all()
        nothing = integer_groups.quantize_groups(0 * matrix, bits, 16)
        assert (restored_matrix(nothing, 45, bits, 16) == 0).all()


def test_every_integer_survives_packing():
    for bits in ALL_BITS:
        numbers = RNG.integers(2**bits, size=(45, 3))
        packed = integer_groups.pack(numbers, bits)
        assert len(packed) == integer_groups.packed_size(45, bits)
        np.testing.assert_array_equal(
            to_numpy(integer_groups.unpack(ops.convert_to_tensor(packed), 45, bits)), numbers
        )


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match="bits=5"):
        integer_groups.quantize_groups(MATRIX, 5)
    with pytest.raises(ValueError, match="group_size=0"):
        integer_groups.quantize_groups(MATRIX, 4, 0)
    with pytest.raises(ValueError, match="axis=2"):
        integer_groups.quantize_groups(MATRIX, 4, axis=2)
    with pytest.raises(ValueError, match=r"\(45, 45\).*\(7, 7\)"):
        integer_groups.quantize_groups(MATRIX, 4, moment=np.eye(7))
    with pytest.raises(ValueError, match="1 entries infinite or NaN"):
        integer_groups.quantize_groups(np.array([[1.0, np.nan]]), 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("by_moment", [False, True])
def test_parts_of_a_matrix_have_one_largest_scale(monkeypatch, axis, by_moment):
    size = MATRIX.shape[axis]
    rows = RNG.normal(size=(90, size))
    moment = rows.T @ rows / 90 if by_moment else None
    whole = integer_groups.quantize_groups(MATRIX, 4, 16, axis, moment)
    monkeypatch.setattr(integer_groups, "_NUMBERS_AT_ONCE", 3 * size)
    if by_moment:
        moment = integer_groups.FactoredMoment.of(moment)
    parts = integer_groups.quantize_groups(MATRIX, 4, 16, axis, moment)
    for name in ("integers", "scales", "zeros", "largest"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
