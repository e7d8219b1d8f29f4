"""Coded arrays have about the bytes of their entropy, and decode to the same arrays."""

import math
import tracemalloc

import numpy as np
import pytest

from keras_small.coding import arrays
from keras_small.storage.integer_groups import pack

pytest.importorskip("constriction")
RNG = np.random.default_rng(0)
SHAPES = [(), (0,), (1,), (3,), (6, 7), (7, 6), (300, 12), (3, 5, 6)]
NUMBERS = {
    "all alike": lambda shape: np.full(shape, 3),
    "the two ends": lambda shape: 255 * RNG.integers(0, 2, shape),
    "one of many": lambda shape: 255 * (RNG.random(shape) < 0.003),
    "any": lambda shape: RNG.integers(0, 256, shape),
    "geometric": lambda shape: np.minimum(RNG.geometric(0.5, shape), 255),
    "bell": lambda shape: np.clip(np.rint(RNG.normal(scale=20, size=shape)) + 128, 0, 255),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "int32", "int64", "bool"])
def test_decoding_gives_the_same_bytes(make, dtype, monkeypatch):
    monkeypatch.setattr(arrays, "_SYMBOLS_AT_ONCE", 100)
    for shape in SHAPES:
        array = np.asarray(make(shape)).astype(dtype)
        codes = [arrays.encode(array)]
        for method in arrays._methods(array):
            code = arrays._encode(arrays._streams(array, method))
            codes.append((method, arrays._filled_up(code, array.nbytes)))
        for method, code in codes:
            again = arrays.decode(code, method, array.dtype, shape)
            assert (again.dtype, again.shape) == (array.dtype, shape)
            assert again.tobytes() == array.tobytes(), (method, shape)


@pytest.mark.parametrize("counts", [(2 * arrays._PARTS - 1, 1), (70_000, 1, 1), (70_000, 3, 3, 1)])
def test_symbols_that_are_rarer_than_a_part_are_kept(counts):
    array = np.repeat(np.arange(len(counts)), counts).astype("uint8")
    code = arrays._encode(arrays._streams(array, "8 last"))
    code = arrays._filled_up(code, array.nbytes)
    np.testing.assert_array_equal(arrays.decode(code, "8 last", array.dtype, array.shape), array)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(("bits", "axis"), [(8, 0), (6, 0), (4, 0), (3, 0), (3, 1), (2, 0)])
def test_code_is_as_small_as_the_entropy(bits, axis, share):
    probabilities = np.full(2**bits, (1 - share) / (2**bits - 1))
    probabilities[1] = share
    numbers = RNG.choice(2**bits, (4800, 96), p=probabilities)
    packed = pack(numbers, bits) if axis == 0 else pack(numbers.T, bits).T
    entropy = -(probabilities * np.log2(probabilities)).sum() * numbers.size / 8
    method, code = arrays.encode(packed)
    assert len(code) < 1.02 * entropy + 2**bits + 60
    assert method == "deflated" or int(method[0]) == bits


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_and_columns_of_other_frequencies_have_their_own_tables(bits):
    for rows, most, share in ((5000, 1.1, 0.8), (100, 1.35, 0.95)):
        sizes = RNG.choice([0.3, 1, 3], (rows, 1)) * 0.97 ** np.arange(64)
        numbers = np.clip(np.rint(sizes * RNG.normal(size=(rows, 64))) + 8, 0, 15)
        entropy = 0.0
        for size in np.unique(sizes):
            counts = np.bincount(numbers[sizes == size].astype(int))
            shares = counts[counts > 0] / counts.sum()
            entropy -= counts[counts > 0] @ np.log2(shares) / 8
        method, code = arrays.encode(pack(numbers.T, bits).T)
        assert method == f"{bits} last" or rows == 100
        alike = arrays.entropy_bytes(numbers.astype("uint8"))
        assert len(code) < most * entropy < share * alike


def test_sorted_rows_take_the_bytes_of_their_order_less():
    numbers = np.minimum(RNG.geometric(0.5, (3000, 12)), 20).astype("uint8")
    order = arrays.sorted_rows(numbers[:, 0] // 4, numbers, first=2)
    assert order[:2].tolist() == [0, 1]
    assert sorted(order) == list(range(3000))
    assert (np.diff(numbers[order[2:], 0] // 4) >= 0).all()
    method, code = arrays.encode(numbers[order])
    assert method == "8 sorted"
    assert len(code) == pytest.approx(arrays.coded_bytes(numbers[order], 36_000, True), rel=0.01)
    saved = len(arrays.encode(numbers)[1]) - len(code)
    orders = math.lgamma(3001) / math.log(2) / 8
    assert 0.5 * orders < saved < orders
    again = arrays.decode(code, method, numbers.dtype, numbers.shape)
    np.testing.assert_array_equal(again, numbers[order])
    wide = np.tile(numbers[order], 30)  # more equal numbers than a byte tells
    method, code = arrays.encode(wide, ["8 sorted"])
    np.testing.assert_array_equal(arrays.decode(code, method, wide.dtype, wide.shape), wide)


def test_no_array_is_much_larger_than_its_code():
    array = np.zeros(10**6, "float32")
    assert len(arrays.encode(array)[1]) == array.nbytes / arrays.MAXIMUM_FACTOR
    for method in arrays.METHODS:
        with pytest.raises(ValueError, match="100 bytes do not code 25601"):
            arrays.decode(bytes(100), method, np.dtype("uint8"), (25601,))
    for method in arrays._AXES:
        with pytest.raises(ValueError, match=f"uint8 in {method}"):
            arrays.decode(bytes([0, 0, 1] * 3), method, np.dtype("uint8"), (0, 3 * 10**14))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_code_of_more_symbols_is_refused(dtype):
    array = RNG.integers(0, 200, (12, 10)).astype(dtype)
    for method in arrays._methods(array):
        code = arrays._encode(arrays._streams(array, method))
        with pytest.raises(ValueError, match="more symbols than the array"):
            arrays.decode(code, method, array.dtype, (6, 10))


def test_a_class_without_a_table_is_refused():
    # The coder leaves a little room for symbols of frequency 0.
    tables = [bytes([0, 1, 200, 0]), bytes([0, 0, 200]), bytes([0, 0, 200])]
    streams = [np.array([0, 1], "int32"), np.zeros(3, "int32"), np.zeros(3, "int32")]
    ans = arrays.coder().stack.AnsCoder()
    for table, stream in zip(tables[::-1], streams[::-1], strict=True):
        ans.encode_reverse(stream, arrays._model(table[2:]))
    code = b"".join(tables) + ans.get_compressed().astype("<u4").tobytes()
    with pytest.raises(ValueError, match="classes without tables"):
        arrays.decode(code, "8 last", np.dtype("uint8"), (2, 3))


def test_tables_whose_sums_are_not_exact_are_refused():
    # The frequency of a byte 16 e + m is (16 + m) 2^(e - 1) for e > 0.
    most = bytes([13 * 16] * 4)  # 2^16 each
    assert arrays._model(most) is not None
    for frequencies in (most + b"\x01", bytes([255]), bytes(3)):
        with pytest.raises(ValueError, match="has no frequencies"):
            arrays._model(frequencies)


@pytest.mark.parametrize("bits", [8, 4])
def test_decoding_takes_a_few_times_the_memory(bits):
    array = pack(RNG.integers(0, 2**bits, (1000, 1000)), bits)
    method, code = arrays.encode(array, [f"{bits} first", f"{bits} last"])
    tracemalloc.start()
    arrays.decode(code, method, array.dtype, array.shape)
    assert tracemalloc.get_traced_memory()[1] < 80 / bits * array.nbytes
    tracemalloc.stop()


def test_random_codes_are_decoded_or_refused():
    for _ in range(300):
        code, method = RNG.bytes(RNG.integers(20, 300)), RNG.choice(arrays.METHODS)
        try:
            array = arrays.decode(code, method, np.dtype("uint8"), (6, 4))
        except (ValueError, LookupError, arrays.zlib.error):
            continue
        assert array.shape == (6, 4)


def test_rows_that_repeat_from_afar_are_found():
    array = np.tile(RNG.integers(0, 256, (1000, 64), "uint8"), (3, 1))
    method, code = arrays.encode(array)
    assert (method, len(code) < 66_000) == ("lzma", True)
    np.testing.assert_array_equal(arrays.decode(code, method, array.dtype, array.shape), array)
