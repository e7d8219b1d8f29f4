"""Vocabularies and model files in fewer bytes than gzip finds, for pages; `unpacking.js` restores
them."""

import base64
import bisect
import gzip
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_MARKS = 26  # letters that say how much of the last word the next one repeats
_FIRST_MARKS = ("A", "\ue000", "\U000f0000")
_WHOLE = 2**52  # numbers below are exact in JavaScript
_SMALLEST = 256  # floats of a tensor that is worth a place in the list


def packed_words(words: Sequence[str]) -> dict[str, Any] | list[str]:
    """Returns different words in less space: sorted, and the order that they have.

    Sorted words share beginnings with their neighbors: each is a mark, `chr(ord(first) + n)` where
    it begins with `n` characters of the last one, and the rest. The order is a number for each
    word, its place among the sorted words that are left, of which there are `V`, `V - 1`, ...

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
    parts, last = [], ""
    for word in sorted(words):
        shared = min(_shared(last, word), _MARKS - 1)
        parts.append(chr(ord(first) + shared) + word[shared:])
        last = word
    order = base64.b64encode(_digits_as_bytes(list(_places_left(words)), len(words)))
    return {"first": first, "words": "".join(parts), "order": order.decode()}


def _shared(last: str, word: str) -> int:
    """Returns with how many characters both begin."""
    pairs = zip(last, word, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _places_left(words: Sequence[str]) -> Iterator[int]:
    """Yields the place of each word among those sorted words that have not come before."""
    place = {word: n for n, word in enumerate(sorted(words))}
    size = max(1, math.isqrt(len(words)))
    left = [list(range(n, min(n + size, len(words)))) for n in range(0, len(words), size)]
    for word in words:
        block = left[place[word] // size]
        n = bisect.bisect_left(block, place[word])
        yield n + sum(map(len, left[: place[word] // size]))
        del block[n]


def _digits_as_bytes(digits: Sequence[int], count: int) -> bytes:
    """Writes the `n`-th digit, which is below `count - n`, with hardly more bits than it needs.

    As many digits as fit an exact number become one, of as many bits as the largest of its kind.
    """
    bits, value, values = [], 0, 1
    for digit, base in itertools.zip_longest(digits, range(count, 0, -1)):
        if values * base > _WHOLE:
            bits.append(_bits(value, values))
            value, values = 0, 1
        value, values = value * base + digit, values * base
    bits.append(_bits(value, values))
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big") if text else b""


def _bits(value: int, values: int) -> str:
    size = (values - 1).bit_length()
    return f"{value:0{size}b}" if size else ""


def packed_model(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the bytes of an ONNX file in less space, and where its large tensors of floats are.

    gzip finds little in floats, but much in their first bytes: the floats follow the rest of the
    file, first the first bytes of all, then the second ones, and so on.

    Args:
        path: The file.

    Returns:
        The packed bytes, and the place and the number of the floats of each tensor.
    """
    import onnx

    content, place, tensors = path.read_bytes(), 0, []
    for tensor in onnx.load(path).graph.initializer:
        count = len(tensor.raw_data) // 4
        if tensor.data_type == onnx.TensorProto.FLOAT and count >= _SMALLEST:
            place = content.index(tensor.raw_data, place)
            tensors.append((place, count))
            place += 4 * count
    rest, floats, end = [], [], 0
    for place, count in tensors:
        rest.append(content[end:place])
        end = place + 4 * count
        floats.append(content[place:end])
    whole = b"".join(floats)
    planes = [whole[n::4] for n in range(4)]
    return gzip.compress(b"".join([*rest, content[end:], *planes]), mtime=0), tensors
