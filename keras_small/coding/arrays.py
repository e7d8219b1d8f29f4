"""Codes arrays of numbers with about as many bits as their frequencies allow.

An array is split into streams of symbols. Packed integers are a matrix. If that saves bytes, its
rows and its columns have classes, by how far their integers are from the most frequent one: two
streams tell the classes, and the integers of each pair of classes are a stream. Sorted rows are
front-coded: the prefix shared with the previous row is left out. Wider numbers have a stream for
their first bytes, one for their second bytes and so on. Each stream has a table of the
frequencies of its symbols, with which an entropy coder (asymmetric numeral systems, Duda et al.,
2015) writes a symbol of frequency `p` in `-log2 p` bits. Where much repeats, as rows of a table do,
Deflate or LZMA takes fewer bytes. Decoding gives the same bytes.
"""

import itertools
import lzma
import math
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np

from keras_small.storage.integer_groups import pack, packed_size, unpacked_integers
from keras_tnattn_runtime.extras import installation

# Maximum bytes of an array for each byte of its code, so that a small file cannot fill the memory.
MAXIMUM_FACTOR = 256
# How an array can be coded: as it is, by Deflate, by LZMA, its bytes as symbols, b-bit integers as
# symbols, which are packed along the first or the last axis, or front-coded bytes of sorted rows.
_ENDS = {"first": 0, "last": -1}
_SORTED = "8 sorted"
_PACKED = {f"{n} {end}": _ENDS[end] for n in (6, 4, 3, 2) for end in _ENDS}
_AXES = {"8 last": -1, _SORTED: -1, **_PACKED}
METHODS = ("stored", "deflated", "lzma", "bytes", *_AXES)
# Frequencies are rounded to parts of this, whose sums are exact in float32.
_PARTS = 2**16
# Classes for each power of 2; each pair of them has a table.
_CLASSES_PER_OCTAVE = (2, 1, 0.5)
_SORTED_CLASSES_PER_OCTAVE = 1
# Try classes (slow) only within this factor of the smallest code.
_CLASSES_WITHIN = 1.2
# Maximum bytes at Deflate's lowest level for each byte at its highest level.
_DEFLATE_LEVELS_FACTOR = 1.6
# Maximum bytes for LZMA, which finds what repeats from afar, but is ten times slower than Deflate.
MAXIMUM_FOR_LZMA = 4_000_000
# Bytes of the sample that chooses the method, and a multiple of its rows that packs integers whole.
_TRIAL_BYTES = 2**20
_TRIAL_ROWS = 24
# Symbols that are decoded at once.
_SYMBOLS_AT_ONCE = 2**20


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
    codes = {"stored": raw}
    trial = _first_rows(array)
    sizes = {name: _size(_symbols_of(trial, name)) for name in _methods(array) if name in methods}
    names = [name for name, size in sizes.items() if size <= _CLASSES_WITHIN * min(sizes.values())]
    found = {name: _streams(array, name) for name in names}
    method = min(found, key=lambda name: _size(found[name]), default="stored")
    if method in found and _size(found[method]) < len(raw):
        codes[method] = _encode(found[method])
    # The best level takes long for large arrays.
    if len(zlib.compress(raw, 1)) < _DEFLATE_LEVELS_FACTOR * min(map(len, codes.values())):
        codes["deflated"] = deflate(raw)
    if "lzma" in methods and len(raw) <= MAXIMUM_FOR_LZMA:
        codes["lzma"] = lzma.compress(raw, lzma.FORMAT_RAW, filters=_lzma_filters(len(raw)))
    best = min(codes, key=lambda name: len(codes[name]))
    return best, _filled_up(codes[best], len(raw))


def _first_rows(array: np.ndarray) -> np.ndarray:
    """Returns the first rows of an array, of about `_TRIAL_BYTES`."""
    if not array.ndim:
        return array
    rows = _TRIAL_BYTES // max(1, array[:1].nbytes)
    return array[: max(_TRIAL_ROWS, rows // _TRIAL_ROWS * _TRIAL_ROWS)]


def deflate(raw: bytes) -> bytes:
    """Returns bytes as the method "deflated" codes them."""
    return _filled_up(zlib.compress(raw, 9), len(raw))


def inflate(code: bytes | memoryview, size: int) -> bytes:
    """Returns the `size` bytes that `deflate` coded.

    Raises:
        ValueError: If the code is not one of `size` bytes.
    """
    try:
        raw = zlib.decompressobj().decompress(code, size + 1)
    except zlib.error as error:
        raise ValueError(f"the code is not one of Deflate: {error}") from error
    _check_length(raw, size)
    return raw


def _check_length(raw: bytes | memoryview, size: int) -> None:
    if len(raw) != size:
        raise ValueError(f"Expected {size} bytes. Received: {len(raw)}")


def _lzma_filters(size: int) -> list[dict[str, int]]:
    """Returns LZMA's settings for an array of a size in bytes, which bounds its memory."""
    return [{"id": lzma.FILTER_LZMA1, "preset": 6, "dict_size": max(2**12, min(size, 2**24))}]


def _filled_up(code: bytes, size: int) -> bytes:
    return code.ljust(math.ceil(size / MAXIMUM_FACTOR), b"\0")


def decode(
    code: bytes | memoryview, method: str, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """Returns the array that `encode` coded.

    Raises:
        ValueError: If the code is not of such an array.

    Example:
        >>> numbers = np.arange(1000, dtype="uint8")
        >>> decode(numbers.tobytes(), "stored", numbers.dtype, (1000,))[:3].tolist()
        [0, 1, 2]
    """
    size = math.prod(shape) * dtype.itemsize
    if size > MAXIMUM_FACTOR * len(code):
        raise ValueError(f"{len(code)} bytes do not code {size}")
    raw: bytes | memoryview
    if method == "stored":
        raw = code
    elif method == "deflated":
        raw = inflate(code, size)
    elif method == "lzma":
        try:
            decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_lzma_filters(size))
            raw = decoder.decompress(code, size + 1)
        except lzma.LZMAError as error:
            raise ValueError(f"the code is not one of LZMA: {error}") from error
    elif method in ("bytes", *_AXES):
        return _decode(memoryview(code), method, dtype, shape)
    else:
        raise ValueError(f"Expected one of {METHODS}. Received: method={method!r}")
    _check_length(raw, size)
    return np.frombuffer(raw, dtype).reshape(shape)


def coded_bytes(integers: np.ndarray, size: int, are_sorted: bool = False) -> int:
    """Returns about how many bytes the entropy coder takes, by some rows or columns of a matrix.

    Args:
        integers: Matrix of whole numbers from 0 to 255.
        size: The numbers of the whole matrix.
        are_sorted: Whether its rows are in the order of `sorted_rows`. Defaults to `False`.

    Example:
        >>> coded_bytes(np.tile(np.arange(4, dtype="uint8"), (1, 1000)), 4000)  # 2 bits for each
        1012
    """
    times = size / integers.size
    streams = _streams_of_sorted(integers) if are_sorted else streams_of(integers)
    return sum(entropy_bytes(stream, times) for stream in streams)


def entropy_bytes(symbols: np.ndarray, times: float = 1.0) -> int:
    """Returns about how many bytes a stream of symbols takes, with its table.

    Args:
        symbols: Array of whole numbers from 0 to 255.
        times: The factor by which there are more symbols, of the same frequencies. Default: 1.

    Example:
        >>> entropy_bytes(np.tile(np.arange(4, dtype="uint8"), 1000))  # 2 bits for each
        1006
    """
    counts = _counts(symbols)
    used = np.flatnonzero(counts)
    positive = counts[used]
    bits = -(positive * np.log2(positive / positive.sum())).sum()
    return math.ceil(times * bits / 8) + int(used[-1] - used[0]) + 3


def _counts(symbols: np.ndarray) -> np.ndarray:
    """Returns how often a stream has each symbol; one without any has a table of one, too."""
    return np.bincount(symbols.ravel()) if symbols.size else np.ones(1, int)


def streams_of(integers: np.ndarray) -> list[np.ndarray]:
    """Splits a matrix of integers, uint8, into the streams that take the fewest bytes.

    Returns:
        The classes of the rows, those of the columns, and the integers of each pair of classes.
    """
    rows, columns = (np.zeros(size, "uint8") for size in integers.shape)
    alike = _split(integers, rows, columns)
    if min(integers.shape) < 2:
        return alike
    means = [_distances(integers).mean(axis=axis) for axis in (1, 0)]
    by_class = [
        _split(integers, *(_classes(of_axis, number) for of_axis in means))
        for number in _CLASSES_PER_OCTAVE
    ]
    return min(alike, *by_class, key=_size)


def sorted_rows(groups: np.ndarray, integers: np.ndarray, first: int = 0) -> np.ndarray:
    """Returns the order of rows, uint8, in which neighbors share the longest prefixes.

    Rows of a group stay together, and the `first` rows where they are.
    """
    rows = np.column_stack([groups, _class_of_rows(integers), integers])[first:]
    order = rows.view(f"V{rows.shape[1]}").ravel().argsort(kind="stable")
    return np.append(np.arange(first), first + order)


def _class_of_rows(integers: np.ndarray) -> np.ndarray:
    return _classes(_distances(integers).mean(axis=1), _SORTED_CLASSES_PER_OCTAVE)


def _distances(integers: np.ndarray) -> np.ndarray:
    """Returns how far integers are from the most frequent one."""
    return np.abs(integers.astype("int16") - int(np.bincount(integers.ravel()).argmax()))


def _streams_of_sorted(integers: np.ndarray) -> list[np.ndarray]:
    """Splits a matrix of sorted rows into streams.

    Returns:
        Whether a row is of another class than the previous one, the classes of such rows and of the
        columns, the lengths of the prefixes shared with the previous row for each class, and the
        other integers of each pair of classes.
    """
    rows = _class_of_rows(integers)
    columns = _classes(_distances(integers).mean(axis=0), _SORTED_CLASSES_PER_OCTAVE)
    begins = np.append(True, rows[1:] != rows[:-1])
    same = np.zeros((len(rows), len(columns) + 1), bool)
    same[1:, :-1] = (integers[1:] == integers[:-1]) & ~begins[1:, None]
    shared = np.minimum(same.argmin(axis=1), 255).astype("uint8")
    by_class = [(integers[rows == row], shared[rows == row]) for row in np.unique(rows)]
    streams = [begins.astype("uint8"), rows[begins], columns, *(lengths for _, lengths in by_class)]
    for (of_class, lengths), column in itertools.product(by_class, np.unique(columns)):
        chosen = columns == column
        streams.append(of_class[:, chosen][_own(lengths, len(columns))[:, chosen]])
    return streams


def _own(shared: np.ndarray, columns: int) -> np.ndarray:
    """Returns which integers of rows are written, by the lengths of their shared prefixes."""
    return np.arange(columns) >= shared[:, None]


def _classes(means: np.ndarray, number: float) -> np.ndarray:
    """Returns classes of positive numbers, `number` of them for each power of 2."""
    levels = np.rint(number * np.log2(means + 2**-10)).astype(int)
    return (levels - levels.min()).astype("uint8")


def _split(integers: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> list[np.ndarray]:
    streams = [rows, columns]
    for row in np.unique(rows):
        of_class = integers[rows == row]
        streams += [of_class[:, columns == column].ravel() for column in np.unique(columns)]
    return streams


def _methods(array: np.ndarray) -> list[str]:
    """Returns how an array can be split into symbols."""
    if not array.size:
        return []
    if array.dtype != "uint8" or not array.ndim:
        return ["bytes"]
    return [name for name, axis in _AXES.items() if name[0] in "248" or array.shape[axis] % 3 == 0]


def _size(streams: list[np.ndarray]) -> int:
    return sum(entropy_bytes(stream) for stream in streams)


def _streams(array: np.ndarray, method: str) -> list[np.ndarray]:
    """Splits an array into streams of symbols, uint8."""
    symbols = _symbols_of(array, method)
    if method == _SORTED:
        return _streams_of_sorted(symbols[0])
    return streams_of(symbols[0]) if method in _AXES else symbols


def _symbols_of(array: np.ndarray, method: str) -> list[np.ndarray]:
    """Returns the integers of an array as a matrix, packed along its rows; or planes of bytes."""
    if method in _AXES:
        unpacked = unpacked_integers(np.moveaxis(array, _AXES[method], 0), int(method[0]))
        return [np.moveaxis(unpacked, 0, -1).reshape(-1, len(unpacked))]
    planes = np.frombuffer(array.tobytes(), "uint8").reshape(-1, array.dtype.itemsize)
    return [np.ascontiguousarray(plane) for plane in planes.T]


def _encode(streams: list[np.ndarray]) -> bytes:
    """Returns tables and symbols of streams; the last symbol is written first."""
    ans, tables = coder().stack.AnsCoder(), []
    for stream in streams[::-1]:
        table = _table(_counts(stream))
        ans.encode_reverse(stream.astype("int32") - table[0], _model(table[2:]))
        tables.append(table)
    words = ans.get_compressed().astype("<u4").tobytes()
    return b"".join(tables[::-1]) + words


def _decode(code: memoryview, method: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if method not in _AXES:
        tables, ans = _opened(code, dtype.itemsize)
        streams = [_symbols(ans, table, math.prod(shape)) for table in tables]
        _check_end(ans)
        return np.frombuffer(np.stack(streams, axis=1).tobytes(), dtype).reshape(shape)
    bits, axis = int(method[0]), _AXES[method]
    # Without numbers, one size alone may fill the memory.
    has_bytes = shape and 0 not in shape and dtype == "uint8"
    if not has_bytes or packed_size(shape[axis] * 8 // bits, bits) != shape[axis]:
        raise ValueError(f"Expected uint8 in {method}. Received: shape={shape}, dtype={dtype}")
    columns = shape[axis] * 8 // bits
    rest = shape[:-1] if axis else shape[1:]
    integers = np.zeros((math.prod(rest), columns), "uint8")
    are_sorted = method == _SORTED
    tables, ans = _opened(code, are_sorted=are_sorted)
    begins = np.ones(len(integers), "uint8")
    if are_sorted:
        begins = _symbols(ans, tables.pop(0), len(begins))
    classes = [_used(table) for table in tables[:2]]
    by_row = _symbols(ans, tables.pop(0), int(np.count_nonzero(begins)))
    by_column = _symbols(ans, tables.pop(0), columns)
    if not (_all_in(by_row, classes[0]) and _all_in(by_column, classes[1])):
        raise ValueError("the code has classes without tables")
    by_row, shared = by_row[np.cumsum(begins > 0) - 1], np.zeros(len(begins), "uint8")
    for row in classes[0] if are_sorted else ():
        is_of_class = by_row == row
        count = int(np.count_nonzero(is_of_class))
        shared[is_of_class] = _symbols(ans, tables.pop(0), count)
    columns_by_class = [np.flatnonzero(by_column == column) for column in classes[1]]
    for row in classes[0]:
        of_class = np.flatnonzero(by_row == row)
        is_own = _own(shared[of_class], columns)
        block = np.zeros(is_own.shape, "uint8")
        for others in columns_by_class:
            own = is_own[:, others]
            part = np.zeros(own.shape, "uint8")
            part[own] = _symbols(ans, tables.pop(0), int(np.count_nonzero(own)))
            block[:, others] = part
        integers[of_class] = block
    _check_end(ans)
    for column in range(min(columns, int(shared.max(initial=0)))):
        own = np.where(column >= shared, np.arange(len(shared)), 0)
        integers[:, column] = integers[np.maximum.accumulate(own), column]
    packed = pack(integers.T, bits).reshape(-1, *rest)
    return np.ascontiguousarray(np.moveaxis(packed, 0, axis))


def _all_in(symbols: np.ndarray, known: list[int]) -> bool:
    """Whether all symbols are known ones; `np.isin` takes many times their bytes."""
    is_known = np.zeros(256, bool)
    is_known[known] = True
    return bool(is_known[symbols].all())


def _used(table: memoryview) -> list[int]:
    """Returns the symbols of a table."""
    return [table[0] + n for n, frequency in enumerate(table[2:]) if frequency]


def _opened(
    code: memoryview, streams: int | None = None, are_sorted: bool = False
) -> tuple[list[memoryview], Any]:
    """Returns the tables of a code, and the coder that decodes the rest.

    Args:
        code: The code.
        streams: The number of tables. Default: that of the classes in two tables.
        are_sorted: Whether one table comes before these two, and one for each class of rows after.
    """
    tables: list[memoryview] = []
    first = 2 + are_sorted
    while len(tables) < (streams or first):
        tables.append(code[: 2 + code[1] + 1])
        code = code[len(tables[-1]) :]
        if streams is None and len(tables) == first:
            rows, columns = (len(_used(table)) for table in tables[-2:])
            streams = first + rows * (columns + are_sorted)
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4").astype("uint32")
    used = np.flatnonzero(words)
    return tables, coder().stack.AnsCoder(words[: used[-1] + 1 if len(used) else 0])


def _check_end(ans: Any) -> None:
    if not ans.is_empty():
        raise ValueError("the code has more symbols than the array")


def _symbols(ans: Any, table: memoryview, number: int) -> np.ndarray:
    model, stream = _model(table[2:]), np.empty(number, "uint8")
    for start in range(0, number, _SYMBOLS_AT_ONCE):
        stop = min(number, start + _SYMBOLS_AT_ONCE)
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


def _model(frequencies: bytes | memoryview) -> Any:
    """Returns the model of symbols by the bytes of their frequencies."""
    codes = np.frombuffer(frequencies, "uint8").astype("int64")
    exponents = np.maximum(0, codes // 16 - 1)
    parts = (codes - 16 * exponents) << exponents
    if not 0 < parts.sum() <= 4 * _PARTS:
        raise ValueError("the table has no frequencies")
    # The coder needs two symbols.
    parts = np.pad(parts, (0, max(0, 2 - len(parts)))).astype("float32")
    return coder().model.Categorical(parts, perfect=False)
