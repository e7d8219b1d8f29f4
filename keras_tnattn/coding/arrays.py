"""Codes arrays of numbers with about as many bits as their frequencies allow.

An array is split into streams of symbols: packed integers into the integers, wider numbers into
their first bytes, their second bytes and so on. Each stream has a table of the frequencies of its
symbols, with which an entropy coder (asymmetric numeral systems, Duda et al., 2015) writes a symbol
of frequency `p` in `-log2 p` bits. Decoding gives the same bytes.
"""

import math
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_tnattn.storage.integer_groups import pack, packed_size, unpacked_integers
from keras_tnattn_runtime.extras import installation

# No array is more times larger than its code, so that a small file cannot fill the memory.
MOST_TIMES_LARGER = 256
# How an array can be coded: as it is, deflated, its bytes as symbols, or integers of so many bits
# as symbols, which are packed along the first or the last axis; of 4 and 2 bits both are alike.
_AXES = {"6 first": 0, "6 last": -1, "3 first": 0, "3 last": -1, "4 last": -1, "2 last": -1}
METHODS = ("stored", "deflated", "bytes", *_AXES)
# Frequencies are rounded to parts of this, whose sums are exact in float32.
_PARTS = 2**16
# Symbols that are decoded at once.
_SYMBOLS = 2**20


def coder() -> Any:
    """Returns the package with the entropy coder.

    Raises:
        ImportError: If it is missing.
    """
    try:
        import constriction
    except ImportError as error:
        raise ImportError(
            f"Coded files need constriction. {installation('constriction')}"
        ) from error
    return constriction.stream


def encode(array: np.ndarray, methods: Collection[str] = METHODS) -> tuple[str, bytes]:
    """Codes an array by the method that takes the fewest bytes.

    Args:
        array: Array of numbers.
        methods: The methods with a coder that may be chosen. Defaults to all.

    Returns:
        The method, one of `METHODS`, and the code.

    Example:
        >>> numbers = np.random.default_rng(0).choice(4, 10_000, p=(0.9, 0.06, 0.03, 0.01))
        >>> try:
        ...     method, code = encode(numbers.astype("uint8"))
        ... except ImportError:  # constriction is missing
        ...     method, code = "bytes", b""
        >>> len(code) < 780  # .59 bits for each
        True
    """
    raw = array.tobytes()
    best, code = min(("stored", raw), ("deflated", deflate(raw)), key=lambda pair: len(pair[1]))
    sizes = {method: _size(array, method) for method in _methods(array) if method in methods}
    method = min(sizes, key=lambda name: sizes[name], default=best)
    if method in sizes and sizes[method] < len(code):
        coded = _encode(_streams(array, method))
        if len(coded) < len(code):
            best, code = method, coded
    return best, _filled_up(code, len(raw))


def deflate(raw: bytes) -> bytes:
    """Returns bytes as the method "deflated" codes them."""
    return _filled_up(zlib.compress(raw, 9), len(raw))


def _filled_up(code: bytes, size: int) -> bytes:
    return code.ljust(math.ceil(size / MOST_TIMES_LARGER), b"\0")


def decode(code: bytes, method: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the array that `encode` coded.

    Raises:
        ValueError: If the code is not of such an array.

    Example:
        >>> numbers = np.arange(1000, dtype="uint8")
        >>> decode(numbers.tobytes(), "stored", numbers.dtype, (1000,))[:3].tolist()
        [0, 1, 2]
    """
    size = math.prod(shape) * dtype.itemsize
    if size > MOST_TIMES_LARGER * len(code):
        raise ValueError(f"{len(code)} bytes do not code {size}")
    if method == "stored":
        raw = code
    elif method == "deflated":
        raw = zlib.decompressobj().decompress(code, size + 1)
    elif method in ("bytes", *_AXES):
        return _decode(code, method, dtype, shape)
    else:
        raise ValueError(f"Expected one of {METHODS}. Received: method={method!r}")
    if len(raw) != size:
        raise ValueError(f"Expected {size} bytes. Received: {len(raw)}")
    return np.frombuffer(raw, dtype).reshape(shape)


def entropy_bytes(symbols: np.ndarray) -> int:
    """Returns about how many bytes a stream of symbols takes, with its table.

    Args:
        symbols: Array of whole numbers from 0 to 255.

    Example:
        >>> entropy_bytes(np.tile(np.arange(4, dtype="uint8"), 1000))  # 2 bits for each
        1010
    """
    counts = np.bincount(symbols.ravel())
    used = np.flatnonzero(counts)
    some = counts[used]
    bits = -(some * np.log2(some / some.sum())).sum()
    return math.ceil(bits / 8) + int(used[-1] - used[0]) + 7


def _methods(array: np.ndarray) -> list[str]:
    """Returns how an array can be split into symbols."""
    if not array.size:
        return []
    if array.dtype != "uint8" or not array.ndim:
        return ["bytes"]
    fits = {name: name[0] in "24" or array.shape[_AXES[name]] % 3 == 0 for name in _AXES}
    return ["bytes", *(name for name in _AXES if fits[name])]


def _size(array: np.ndarray, method: str) -> int:
    return sum(entropy_bytes(stream) for stream in _streams(array, method))


def _streams(array: np.ndarray, method: str) -> list[np.ndarray]:
    """Splits an array into streams of symbols, uint8."""
    if method in _AXES:
        moved = np.moveaxis(array, _AXES[method], 0)
        return [unpacked_integers(moved, int(method[0])).ravel()]
    planes = np.frombuffer(array.tobytes(), "uint8").reshape(-1, array.dtype.itemsize)
    return [np.ascontiguousarray(plane) for plane in planes.T]


def _encode(streams: list[np.ndarray]) -> bytes:
    """Returns tables and symbols of streams; the last symbol is written first."""
    ans, tables = coder().stack.AnsCoder(), []
    for stream in streams[::-1]:
        table = _table(np.bincount(stream))
        ans.encode_reverse(stream.astype("int32") - table[0], _model(table[2:]))
        tables.append(table)
    words = ans.get_compressed().astype("<u4").tobytes()
    return b"".join(tables[::-1]) + words


def _decode(code: bytes, method: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    moved, numbers = shape, math.prod(shape)
    if method in _AXES:
        bits, axis = int(method[0]), _AXES[method]
        if (
            not shape
            or dtype != "uint8"
            or packed_size(shape[axis] * 8 // bits, bits) != shape[axis]
        ):
            raise ValueError(f"Expected uint8 in {method}. Received: shape={shape}, dtype={dtype}")
        moved = (shape[axis], *(shape[:-1] if axis else shape[1:]))
        numbers = numbers * 8 // bits
    tables = []
    for _ in range(1 if method in _AXES else dtype.itemsize):
        table = code[: 2 + code[1] + 1]
        tables.append(table)
        code = code[len(table) :]
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4").astype("uint32")
    used = np.flatnonzero(words)
    ans = coder().stack.AnsCoder(words[: used[-1] + 1 if len(used) else 0])
    streams = [_symbols(ans, table, numbers) for table in tables]
    if not ans.is_empty():
        raise ValueError("the code has more symbols than the array")
    if method in _AXES:
        packed = pack(streams[0].reshape(-1, *moved[1:]), bits)
        return np.ascontiguousarray(np.moveaxis(packed, 0, axis))
    return np.frombuffer(np.stack(streams, axis=1).tobytes(), dtype).reshape(shape)


def _symbols(ans: Any, table: bytes, number: int) -> np.ndarray:
    model, stream = _model(table[2:]), np.empty(number, "uint8")
    for start in range(0, number, _SYMBOLS):
        stop = min(number, start + _SYMBOLS)
        stream[start:stop] = ans.decode(model, stop - start) + table[0]
    return stream


def _table(counts: np.ndarray) -> bytes:
    """Returns the first symbol, how many more there are, and a byte for the frequency of each.

    The byte of 1 to 15 is the frequency; of a larger one it has four bits after the first, and the
    exponent.
    """
    used = np.flatnonzero(counts)
    counts = counts[used[0] : used[-1] + 1]
    # The coder may leave no room for a last symbol without a part.
    parts = np.maximum(counts * _PARTS // counts.sum(), counts > 0)
    exponents = np.maximum(0, np.floor(np.log2(np.maximum(parts, 1))).astype(int) - 4)
    return bytes([used[0], len(counts) - 1, *(16 * exponents + (parts >> exponents))])


def _model(frequencies: bytes) -> Any:
    """Returns the model of symbols by the bytes of their frequencies."""
    codes = np.frombuffer(frequencies, "uint8").astype("int64")
    exponents = np.maximum(0, codes // 16 - 1)
    parts = (codes - 16 * exponents) << exponents
    if not 0 < parts.sum() <= 4 * _PARTS:
        raise ValueError("the table has no frequencies")
    # The coder needs two symbols.
    parts = np.pad(parts, (0, max(0, 2 - len(parts)))).astype("float32")
    return coder().model.Categorical(parts, perfect=False)
