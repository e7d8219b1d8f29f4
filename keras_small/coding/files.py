"""Writes and reads `.tnz` files: Keras models whose arrays are coded.

After a head of fixed size, with the SHA-256 of all that follows, comes an index: JSON, deflated,
which lists the arrays, with dtypes and shapes, and the parts in which they are coded, each of one
large array or of several small ones of a kind. The parts follow. The arrays are those of Keras' own
format; config, metadata and assets are arrays of bytes among them.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import math
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import h5py
import keras
import numpy as np

from keras_small.coding import arrays

_MAGIC, _VERSION = b"TNZ\x89", 1
# Magic, version, the checksum, and the bytes of the index, deflated and as text.
_HEAD = struct.Struct("<4sI32sII")
_WEIGHTS = "model.weights.h5"
# Arrays of fewer bytes share their tables with others of their kind.
_SMALL = 512
# A file may hold so many times the bytes of its layers, and some more: the states of an optimizer.
_STATES, _MORE = 4, 2**20


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array of a file: `name` is a path in the weights, or a file's, whose `dtype` is empty."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def type(self) -> np.dtype:
        return np.dtype(self.dtype or "uint8")

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.type.itemsize

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or "\\" in self.name or not path.parts:
            raise ValueError(f"Expected a relative path. Received: {self.name}")
        whole = all(isinstance(size, int) and size >= 0 for size in self.shape)
        if self.type.kind not in "biufV" or not whole:
            raise ValueError(f"Expected an array of numbers. Received: {self}")


def write_model(folder: Path, path: Path, custom_objects: Mapping[str, Any] | None = None) -> int:
    """Writes the files of a model that Keras saved into a folder as one `.tnz` file.

    Args:
        folder: What `model.save(folder, zipped=False)` wrote.
        path: The file.
        custom_objects: As for `load_model`. Default: none.

    Returns:
        The bytes of the file.

    Raises:
        ImportError: If `constriction` is missing.
        ValueError: If the file would not give the same arrays again, such as texts.

    Example:
        ```python notest
        model.save("folder", zipped=False)
        write_model(Path("folder"), Path("small.tnz"))
        ```
    """
    arrays.coder()
    groups, listed, parts, codes = _groups(folder), [], [], []
    for group in groups:
        values = [_value(folder, array) for array in group]
        whole = values[0] if len(group) == 1 else np.concatenate([v.ravel() for v in values])
        method, code = arrays.encode(whole)
        listed += [[a.name, a.dtype, a.shape, *[a.attributes] * bool(a.attributes)] for a in group]
        parts.append([len(group), method, len(code)])
        codes.append(code)
    text = json.dumps({"arrays": listed, "parts": parts}, separators=(",", ":")).encode()
    index = arrays.deflate(text)
    checked = b"".join([struct.pack("<II", len(index), len(text)), index, *codes])
    head = struct.pack("<4sI", _MAGIC, _VERSION) + hashlib.sha256(checked).digest()
    path.write_bytes(head + checked)
    file = _File.of(path.read_bytes())
    file.check_layers(custom_objects, safe_mode=False)
    for array, value in file.values():
        if value.tobytes() != _value(folder, array).tobytes():
            raise ValueError(f"{array.name} changed in {path}")
    return path.stat().st_size


def load_model(
    path: str | os.PathLike | IO[bytes],
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> keras.Model:
    """Loads the model of a `.tnz` file, the same as that of the `.keras` file.

    Integers stay integers: the model takes the memory of its packed weights. A file that is
    damaged, or that asks for more memory than its bytes and its layers account for, is refused
    before memory is taken.

    Args:
        path: The file, or one that was opened in binary mode.
        custom_objects: As for `keras.models.load_model`. Default: none.
        safe_mode: As for `keras.models.load_model`; `False` runs code of `Lambda` layers. Defaults
            to `True`.

    Returns:
        A Keras model, compiled if the one that was saved was.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If `constriction` is missing.
        TypeError: If the file was opened in text mode.
        ValueError: If the file is not a whole `.tnz` file.

    Example:
        ```python
        import os, tempfile
        import keras, numpy as np
        from keras_small import compress
        from keras_small.coding.files import load_model

        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        result = compress(model, bits=4, formats=(), verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "small.tnz")
            try:
                result.save(path)
                same = load_model(path)
            except ImportError:  # constriction is missing
                same = result.model
        inputs = np.ones((1, 64))
        assert np.array_equal(same.predict(inputs), result.model.predict(inputs))
        ```
    """
    arrays.coder()
    data = _bytes_of(path)
    try:
        file = _File.of(data)
        file.check_layers(custom_objects, safe_mode)
        with tempfile.TemporaryDirectory() as name:
            file.unpack(Path(name))
            return keras.models.load_model(name, custom_objects, safe_mode=safe_mode)
    except MemoryError:
        raise
    except Exception as error:  # whatever Keras raises of a config that it did not write
        raise ValueError(
            f"Expected a .tnz file of a model. Received: path={path}, {error}"
        ) from error


def _bytes_of(path: str | os.PathLike | IO[bytes]) -> bytes:
    if isinstance(path, str | os.PathLike):
        return Path(path).read_bytes()
    data = path.read()
    if not isinstance(data, bytes):
        raise TypeError(
            f"Expected a file that was opened with mode 'rb'. Received: path={path!r}, which "
            f"gives {type(data).__name__}"
        )
    return data


@dataclasses.dataclass(frozen=True)
class _File:
    """What a file holds: the arrays of each part, its method, and its code."""

    parts: list[tuple[list[_Array], str, bytes]]

    @classmethod
    def of(cls, data: bytes) -> "_File":
        if data[:4] != _MAGIC or len(data) < _HEAD.size:
            raise ValueError("which does not begin as one")
        _, version, digest, packed, size = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"of version {version}: this program reads version {_VERSION}")
        if hashlib.sha256(data[40:]).digest() != digest:
            raise ValueError("which is damaged: its checksum differs")
        code = data[_HEAD.size : _HEAD.size + packed]
        text = arrays.decode(code, "deflated", np.dtype("uint8"), (size,))
        index = json.loads(text.tobytes())
        listed = iter(
            _Array(name, dtype, tuple(shape), *rest)
            for name, dtype, shape, *rest in index["arrays"]
        )
        parts, start = [], _HEAD.size + packed
        for number, method, length in index["parts"]:
            group = list(itertools.islice(listed, number))
            parts.append((group, method, data[start : start + length]))
            if sum(array.size for array in group) > arrays.MOST_TIMES_LARGER * length:
                raise ValueError(f"{length} bytes cannot be {group[0].name}")
            start += length
        if start != len(data) or next(listed, None) is not None:
            raise ValueError("whose index does not list what follows it")
        return cls(parts)

    def values(self) -> Iterator[tuple[_Array, np.ndarray]]:
        """Decodes part after part."""
        for group, method, code in self.parts:
            if len(group) == 1:
                yield group[0], arrays.decode(code, method, group[0].type, group[0].shape)
                continue
            sizes = [math.prod(array.shape) for array in group]
            whole = arrays.decode(code, method, group[0].type, (sum(sizes),))
            values = np.split(whole, list(itertools.accumulate(sizes[:-1])))
            for array, value in zip(group, values, strict=True):
                yield array, value.reshape(array.shape)

    def check_layers(self, custom_objects: Mapping[str, Any] | None, safe_mode: bool) -> None:
        """Compares the shapes of the arrays with those of the layers, which take no memory."""
        (config,) = (
            arrays.decode(code, method, group[0].type, group[0].shape).tobytes()
            for group, method, code in self.parts
            if group[0].name == "config.json"
        )
        known = dict(custom_objects or {})  # and what a scope has, which only this thread knows

        def read(entry: dict[str, Any]) -> dict[str, Any]:
            """Returns a config of a layer that makes no states, which are no weights."""
            for name in map(entry.get, ("class_name", "registered_name", "config")):
                if isinstance(name, str):
                    found = keras.saving.get_registered_object(name)
                    if found is not None:
                        known[name] = found
            return {**entry, "stateful": False} if entry.get("stateful") is True else entry

        shapes = _shapes(json.loads(config, object_hook=read), known, safe_mode)
        held = [array for group, _, _ in self.parts for array in group if array.dtype]
        missing = shapes - collections.Counter(array.shape for array in held)
        if missing:
            raise ValueError(f"without arrays of the shapes {sorted(missing)} of its layers")
        size = sum(array.size for array in held)
        needed = 8 * sum(math.prod(shape) * number for shape, number in shapes.items())
        if size > _STATES * needed + _MORE:
            raise ValueError(f"of {size:,} bytes of arrays; its layers need at most {needed:,}")

    def unpack(self, folder: Path) -> None:
        """Writes the files that Keras saved."""
        with h5py.File(folder / _WEIGHTS, "w", libver="latest") as weights:
            for array, value in self.values():
                if array.dtype:
                    dataset = weights.create_dataset(array.name, data=value)
                    dataset.attrs.update(array.attributes)
                else:
                    file = folder / array.name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(value.tobytes())


def _shapes(
    config: dict[str, Any], custom_objects: Mapping[str, Any], safe_mode: bool
) -> collections.Counter[tuple[int, ...]]:
    """Returns the shapes of the weights of a model by its config, without making the weights."""

    def build() -> collections.Counter[tuple[int, ...]]:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(
                {**config, "compile_config": None}, custom_objects, safe_mode
            )
        return collections.Counter(tuple(weight.shape) for weight in model.weights)

    # Keras notes in its state, which each thread has for itself, what it has not initialized yet.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()


def _groups(folder: Path) -> list[list[_Array]]:
    """Returns the arrays of a folder, the small ones of a kind together."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _WEIGHTS)
    groups: dict[Any, list[_Array]] = collections.defaultdict(list)
    for file in files:
        name = file.relative_to(folder).as_posix()
        groups[name] = [_Array(name, "", (file.stat().st_size,))]

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            array = _Array(name, item.dtype.str, item.shape, dict(item.attrs))
            kind = (name.split("/")[0], name.split("/")[-1], array.dtype)
            groups[kind if array.size < _SMALL else name].append(array)

    with h5py.File(folder / _WEIGHTS) as weights:
        weights.visititems(add)
    return list(groups.values())


def _value(folder: Path, array: _Array) -> np.ndarray:
    if not array.dtype:
        return np.frombuffer((folder / array.name).read_bytes(), "uint8")
    with h5py.File(folder / _WEIGHTS) as weights:
        return weights[array.name][()]
