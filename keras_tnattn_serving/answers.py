"""Arrays of a model as JSON, in pieces of bounded size.

`orjson` writes a float with the fewest digits that restore it in its own precision. Each call holds
Python's lock, so that long answers are written in blocks, between which other threads can run.
"""

import base64
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from keras_tnattn_serving.errors import too_large

_BLOCK = 32_768  # entries written by one call, a few milliseconds
_NOT_FINITE = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


class JsonWriter:
    """Collects the pieces of one JSON text; `RequestError` with 413 above a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._pieces: list[bytes] = []

    def raw(self, piece: bytes) -> None:
        """Adds JSON as it is."""
        self._size += len(piece)
        if self._size > self._limit:
            raise too_large(f"an answer of {self._size} bytes or more", self._limit, "--max-answer")
        self._pieces.append(piece)

    def array(self, array: np.ndarray, base64_strings: bool = False) -> None:
        """Adds an array as nested lists: strings as text, or as `{"b64": "..."}`.

        Floats that are not finite become `NaN`, `Infinity` and `-Infinity`.
        """
        if array.size <= _BLOCK:
            self.raw(_encode(array, base64_strings))
            return
        per_entry = math.prod(array.shape[1:])
        self.raw(b"[")
        for start in range(0, len(array), max(1, _BLOCK // per_entry)):
            if start:
                self.raw(b",")
            if per_entry > _BLOCK:
                self.array(array[start], base64_strings)
            else:
                block = array[start : start + _BLOCK // per_entry]
                self.raw(_encode(block, base64_strings)[1:-1])
        self.raw(b"]")

    def getvalue(self) -> bytes:
        """Returns the whole text."""
        return b"".join(self._pieces)


def rows(outputs: Mapping[str, np.ndarray], limit: int) -> bytes:
    """Returns `{"predictions": ...}`: values if there is one output, else an object for each row.

    The outputs have one length; those whose names end in `_bytes` have strings in base64.
    """
    check_size(outputs.values(), limit)
    writer = JsonWriter(limit)
    writer.raw(b'{"predictions":')
    if len(outputs) == 1:
        for name, array in outputs.items():
            writer.array(array, name.endswith("_bytes"))
    else:
        keys = {name: orjson.dumps(name) + b":" for name in outputs}
        writer.raw(b"[")
        for row in range(len(next(iter(outputs.values())))):
            before = b",{" if row else b"{"
            for name, array in outputs.items():
                writer.raw(before + keys[name])
                writer.array(array[row, ...], name.endswith("_bytes"))
                before = b","
            writer.raw(b"}")
        writer.raw(b"]")
    writer.raw(b"}")
    return writer.getvalue()


def columns(outputs: Mapping[str, np.ndarray], limit: int) -> bytes:
    """Returns `{"outputs": ...}`: the values if there is one output, else an object of all."""
    check_size(outputs.values(), limit)
    writer = JsonWriter(limit)
    before = b'{"outputs":' if len(outputs) == 1 else b'{"outputs":{'
    for name, array in outputs.items():
        writer.raw(before if len(outputs) == 1 else before + orjson.dumps(name) + b":")
        writer.array(array, name.endswith("_bytes"))
        before = b","
    writer.raw(b"}" if len(outputs) == 1 else b"}}")
    return writer.getvalue()


def check_size(arrays: Iterable[np.ndarray], limit: int) -> None:
    """Refuses arrays that cannot fit, before they take the time and memory to be written."""
    least = least_size(arrays)
    if least > limit:
        raise too_large(f"an answer of {least} bytes or more", limit, "--max-answer")


def least_size(arrays: Iterable[np.ndarray]) -> int:
    """Returns a number of bytes that arrays take at least."""
    least = 0
    for array in arrays:
        least += 2 * array.size  # a digit and a comma, or two quotation marks
        if array.dtype == object:
            least += sum(map(len, array.flat))
    return least


def _encode(array: np.ndarray, base64_strings: bool) -> bytes:
    if array.dtype == object:

        def convert(data: Any) -> Any:
            if base64_strings:
                return {"b64": base64.b64encode(data).decode("ascii")}
            return data.decode("utf-8", "replace")

        if not array.ndim:
            return orjson.dumps(convert(array[()]))
        return orjson.dumps(np.asarray(np.frompyfunc(convert, 1, 1)(array), object).tolist())
    if array.dtype.kind in "fV" and array.dtype.itemsize < 4:  # V: bfloat16
        array = array.astype(np.float32)
    # A scalar of numpy: orjson takes no array without axes.
    value = np.ascontiguousarray(array) if array.ndim else array[()]
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = array[~np.isfinite(array)].tolist()
        parts = text.split(b"null")  # what orjson writes for them
        names = [_NOT_FINITE[str(number)] for number in wrong]
        text = parts[0] + b"".join(a + b for a, b in zip(names, parts[1:], strict=True))
    return text
