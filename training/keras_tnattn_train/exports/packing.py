"""Packs vocabularies and model files for pages in fewer bytes than gzip; see `unpacking.js`."""

import base64
import bisect
import collections
import gzip
import importlib.util
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_small.coding import arrays

_MARKS = 26  # letters for the lengths of the prefixes that words share with the previous one
_FIRST_MARKS = ("A", "\ue000", "\U000f0000")
_EXACT_LIMIT = 2**52  # integers below are exact in JavaScript
# Minimum bytes to pack a tensor; to give it its own tables.
_MINIMUM_PACKED = 1024
_MINIMUM_OWN_TABLES = 2**16
_REPETITIVE_FACTOR = 16  # by which gzip makes a tensor of mostly repetitions smaller
# How tensors are coded, with the bits of a symbol.
_METHODS = {"bytes": 8, "8 last": 8, "6 last": 6, "4 last": 4, "3 last": 3, "2 last": 2}


def packed_words(words: Sequence[str]) -> dict[str, Any] | list[str]:
    """Returns different words in less space: sorted, front-coded, and with their order.

    Each sorted word is a mark, `chr(ord(first) + n)` where it shares a prefix of `n` characters
    with the previous one, and the remaining characters. The order is a number for each word, its
    place among the remaining sorted words, of which there are `V`, `V - 1`, ...

    Args:
        words: The words.

    Returns:
        A dict of `first`, `words` and, in base64, `order`; or the words, if they contain all marks.

    Example:
        >>> packed_words(["tea", "team", "ten"])
        {'first': 'A', 'words': 'AteaDmCn', 'order': 'AA=='}
    """
    characters = set("".join(words))
    for first in _FIRST_MARKS:
        if not characters & {chr(ord(first) + n) for n in range(_MARKS)}:
            break
    else:
        return list(words)
    parts = []
    previous = ""
    for word in sorted(words):
        shared = min(_shared_length(previous, word), _MARKS - 1)
        parts.append(chr(ord(first) + shared) + word[shared:])
        previous = word
    order = base64.b64encode(_digits_as_bytes(list(_remaining_places(words)), len(words)))
    return {"first": first, "words": "".join(parts), "order": order.decode()}


def _shared_length(previous: str, word: str) -> int:
    """Returns the length of the prefix that two words share."""
    pairs = zip(previous, word, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _remaining_places(words: Sequence[str]) -> Iterator[int]:
    """Yields the place of each word among those sorted words that have not come before."""
    place = {word: n for n, word in enumerate(sorted(words))}
    size = max(1, math.isqrt(len(words)))
    blocks = [list(range(n, min(n + size, len(words)))) for n in range(0, len(words), size)]
    for word in words:
        number = place[word] // size
        block = blocks[number]
        n = bisect.bisect_left(block, place[word])
        yield n + sum(map(len, blocks[:number]))
        del block[n]


def _digits_as_bytes(digits: Sequence[int], count: int) -> bytes:
    """Writes the `n`-th digit, which is below `count - n`, with hardly more bits than it needs.

    Digits are joined to numbers below `_EXACT_LIMIT`, each of the bits of its possible values.
    """
    bits = []
    value = 0
    values = 1
    for digit, base in itertools.zip_longest(digits, range(count, 0, -1)):
        if values * base > _EXACT_LIMIT:
            bits.append(_bits(value, values))
            value = 0
            values = 1
        value = value * base + digit
        values *= base
    bits.append(_bits(value, values))
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big") if text else b""


def _bits(value: int, values: int) -> str:
    size = (values - 1).bit_length()
    return f"{value:0{size}b}" if size else ""


def packed_model(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Returns the bytes of an ONNX file in less space, and its coded parts.

    gzip finds little in weights: the codes of their tensors follow the rest of the file. Without
    `constriction`, of the extra `coded`, gzip packs all.

    Args:
        path: The file.

    Returns:
        The packed bytes, and for each code the places and sizes in bytes of its `tensors`, the
        bytes of a number (`width`), the `bits` and the `columns` of symbols, and the `bytes` of the
        code.
    """
    methods = _METHODS if importlib.util.find_spec("constriction") else ()
    content = path.read_bytes()
    codes = []
    parts: list[dict[str, Any]] = []
    for width, columns, tensors in _groups(content):
        raw = b"".join(content[place : place + size] for place, size in tensors)
        numbers = np.frombuffer(raw, f"u{width}").reshape(-1, columns or len(raw) // width)
        method, code = arrays.encode(numbers, methods)
        if method in _METHODS:
            part = {
                "tensors": tensors,
                "width": width,
                "bits": _METHODS[method],
                "columns": 8 * numbers.shape[1] // _METHODS[method],
                "bytes": len(code),
            }
            parts.append(part)
            codes.append(code)
    uncoded = []
    end = 0
    for place, size in sorted(tensor for part in parts for tensor in part["tensors"]):
        uncoded.append(content[end:place])
        end = place + size
    uncoded.append(content[end:])
    return gzip.compress(b"".join([*uncoded, *codes]), mtime=0), parts


def _groups(content: bytes) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Returns tensors of an ONNX file, the small ones of a kind together.

    Returns:
        For each group the bytes of a number, the numbers of a row, 0 if there is one row, and the
        places and the sizes in bytes of its tensors.
    """
    import onnx

    place = 0
    groups = collections.defaultdict(list)
    for tensor in onnx.load_from_string(content).graph.initializer:
        raw = tensor.raw_data
        # gzip is good at repetitions, such as one scale of all groups.
        is_repetitive = _REPETITIVE_FACTOR * len(zlib.compress(raw)) < len(raw)
        if len(raw) < _MINIMUM_PACKED or is_repetitive:
            continue
        width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        place = content.index(raw, place)
        is_large = len(raw) >= _MINIMUM_OWN_TABLES
        rows = next((size for size in tensor.dims if size > 1), 1)
        columns = len(raw) // width // rows if is_large else 0
        groups[width, columns, place if is_large else None].append((place, len(raw)))
        place += len(raw)
    return [(width, columns, tensors) for (width, columns, _), tensors in groups.items()]
