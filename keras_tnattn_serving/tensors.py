"""Conversion of JSON values to arrays, with checks."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tnattn_serving.errors import RequestError

_SHOWN = 60  # characters of a wrong value that an error quotes


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses the JSON object of a request."""
    try:
        parsed = json.loads(body.decode("utf-8"))
    except RecursionError as error:
        raise RequestError("JSON Parse error: nested too deeply") from error
    except ValueError as error:  # invalid UTF-8, invalid JSON, or a huge integer
        raise RequestError(f"JSON Parse error: {error}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"JSON Value: {shown(parsed)} Is not object")
    return parsed


def to_array(value: Any, dtype: np.dtype, max_rank: int = 8) -> np.ndarray:
    """Converts nested lists of JSON values to an array.

    Args:
        value: A value, or lists of equal lengths nested to any depth up to `max_rank`.
        dtype: The array's dtype; `object` for strings, which become `bytes`. `{"b64": "..."}` is a
            string too, in base64.
        max_rank: Maximum depth of the nesting.

    Raises:
        RequestError: With 400, if the lists are ragged or a value is of another type.
    """
    shape: list[int] = []
    leaves = [value]
    while leaves and type(leaves[0]) is list:
        size = len(leaves[0])
        if len(shape) == max_rank:
            raise RequestError(f"Encountered list at unexpected level: expected < {max_rank}")
        if any(type(part) is not list or len(part) != size for part in leaves):
            raise RequestError(f"Expecting lists of equal size {size} at level {len(shape)}")
        shape.append(size)
        leaves = [leaf for part in leaves for leaf in part]
    if dtype.kind == "O":
        flat = np.empty(len(leaves), object)
        flat[:] = [_to_bytes(leaf) for leaf in leaves]
        return flat.reshape(shape)
    types: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
    allowed = types.get(dtype.kind, {int, float})
    if not set(map(type, leaves)) <= allowed:
        wrong = next(leaf for leaf in leaves if type(leaf) not in allowed)
        raise _wrong_type(wrong, dtype)
    try:
        with np.errstate(over="ignore"):  # 1e300 becomes infinite in float32
            return np.array(leaves, dtype).reshape(shape)
    except OverflowError as error:
        raise RequestError(f"JSON Value out of the range of type: {dtype}") from error


def pad_together(arrays: Sequence[np.ndarray], fill: Any) -> np.ndarray:
    """Concatenates along the first axis after padding the others to the largest size."""
    if len(arrays) == 1:
        return arrays[0]
    sizes = {array.shape[1:] for array in arrays}
    if len(sizes) > 1:
        largest = np.max(list(sizes), axis=0)
        arrays = [
            np.pad(
                array,
                [(0, 0), *((0, n - m) for n, m in zip(largest, array.shape[1:], strict=True))],
                constant_values=fill,
            )
            for array in arrays
        ]
    return np.concatenate(arrays)


def shown(value: Any) -> str:
    """Returns a short form of a value for an error message."""
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _to_bytes(leaf: Any) -> bytes:
    if type(leaf) is str:
        try:
            return leaf.encode("utf-8")
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise RequestError(f"JSON Value: not valid Unicode ({error.reason})") from error
    if type(leaf) is dict and leaf.keys() == {"b64"} and type(leaf["b64"]) is str:
        try:
            return base64.b64decode(leaf["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestError("Unable to base64 decode") from error
    if type(leaf) is dict:
        raise RequestError("JSON Value: object not formatted correctly for base64 data")
    raise _wrong_type(leaf, "string")


def _wrong_type(leaf: Any, dtype: object) -> RequestError:
    names = {str: "String", dict: "Object", list: "Array", type(None): "Null", bool: "Bool"}
    kind = names.get(type(leaf), "Number")
    return RequestError(f"JSON Value: {shown(leaf)} Type: {kind} is not of expected type: {dtype}")
