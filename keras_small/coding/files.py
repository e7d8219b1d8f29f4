"""Writes and reads `.tnz` files: Keras models whose arrays are coded.

After a head of fixed size, with the SHA-256 of all that follows, comes an index: JSON, deflated,
which lists the arrays, with dtypes and shapes, and the parts in which they are coded, each of one
large array or of several small ones of a kind. The parts follow. The arrays are those of Keras' own
format, as the layers save them; config, metadata and assets are arrays of bytes among them.

The bytes of a file bound the memory and the time of reading it. Where the index promises more than
a file of this size may hold, the writer adds zeros behind it until the file is large enough.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib
import io
import itertools
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import h5py
import keras
import numpy as np

from keras_small.coding import arrays
from keras_small.coding.archives import WEIGHTS, temporary_folder
from keras_tnattn.errors import cause_of
from keras_tnattn_runtime.folders import writing_to

_MAGIC = b"TNZ\x89"
_VERSION = 1
# Magic, version, the checksum, and the bytes of the index, deflated and as text.
_HEAD = struct.Struct("<4sI32sII")
_CONFIG = "config.json"
# Arrays of fewer bytes share their tables with others of their kind.
_SMALL = 512
# Maximum bytes of index and config for each byte of the file.
_TEXT = 16
# Minimum bytes of the file for each part of an array's name, which becomes a group of HDF5.
_NAME_PART = 8
# Maximum bytes of the arrays of a file: for each byte of the layers' weights, with the states of an
# optimizer; in any file; and for each byte of the file.
_MAXIMUM_FOR_WEIGHTS = 4
_MAXIMUM_IN_ANY = 2**20
_MAXIMUM_FOR_FILE = 16
# Maximum bytes of a number of a weight.
_NUMBER = 8
# Booleans, integers, floats, complex numbers, and what NumPy does not know (bfloat16).
_KINDS = "biufcV"


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
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.count * self.type.itemsize

    @property
    def entry(self) -> list[Any]:
        """The entry of the array in the index."""
        entry: list[Any] = [self.name, self.dtype, self.shape]
        if self.attributes:
            entry.append(self.attributes)
        return entry

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or "\\" in self.name or not path.parts:
            raise ValueError(f"Expected a relative path. Received: {self.name}")
        has_sizes = all(isinstance(size, int) and size >= 0 for size in self.shape)
        has_fields = self.type.names is not None or self.type.subdtype is not None
        if self.type.kind not in _KINDS or has_fields or not has_sizes:
            raise ValueError(f"Expected an array of numbers. Received: {self}")


def check_model(
    files: Mapping[str, bytes], custom_objects: Mapping[str, Any] | None = None
) -> None:
    """Refuses a model that no `.tnz` file can hold, without coding it.

    Args:
        files: The files of the archive that `model.save` writes, by name.
        custom_objects: As for `load_model`. Default: none.

    Raises:
        ValueError: If a layer saves other things than numbers, or its config does not build it.

    Example:
        >>> from keras_small.coding.archives import saved_files
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> check_model(saved_files(model))
    """
    _number_to_code(files, custom_objects)
    with h5py.File(io.BytesIO(files[WEIGHTS])) as weights:
        _groups(files, weights)


def encode_model(
    files: Mapping[str, bytes], custom_objects: Mapping[str, Any] | None = None
) -> bytes:
    """Returns the `.tnz` file of a model that Keras saved.

    Args:
        files: The files of the archive that `model.save` writes, by name.
        custom_objects: As for `load_model`. Default: none.

    Returns:
        The bytes of the file.

    Raises:
        ImportError: If `constriction` is missing.
        ValueError: If a layer saves other things than numbers, or its config does not build it.

    Example:
        >>> from keras_small.coding.archives import saved_files
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> try:
        ...     content = encode_model(saved_files(model))
        ... except ImportError:  # constriction is missing
        ...     content = b"TNZ"
        >>> content[:3]
        b'TNZ'
    """
    arrays.coder()
    weights_of_layers = _number_to_code(files, custom_objects)
    listed: list[_Array] = []
    parts: list[tuple[int, str, int]] = []
    codes: list[bytes] = []
    with h5py.File(io.BytesIO(files[WEIGHTS])) as weights:
        for group in _groups(files, weights):
            values = [_value(files, weights, array) for array in group]
            joined = np.concatenate([v.ravel() for v in values]) if len(group) > 1 else values[0]
            method, code = arrays.encode(joined)
            again = arrays.decode(code, method, joined.dtype, joined.shape)
            if again.tobytes() != joined.tobytes():
                raise ValueError(f"Expected to decode {group[0].name} as it was")
            listed += group
            parts.append((len(group), method, len(code)))
            codes.append(code)
    entries = [array.entry for array in listed]
    text = json.dumps({"arrays": entries, "parts": parts}, separators=(",", ":")).encode()
    index = arrays.deflate(text)
    least = max(
        _bytes_for_text(text),
        _bytes_for_text(files[_CONFIG]),
        _bytes_for_names(array.name for array in listed),
        _bytes_for_layers(weights_of_layers),
        _bytes_for_arrays(listed, weights_of_layers),
    )
    size = _HEAD.size + len(index) + sum(map(len, codes))
    index += bytes(max(0, least - size))
    checked = b"".join([struct.pack("<II", len(index), len(text)), index, *codes])
    return struct.pack("<4sI", _MAGIC, _VERSION) + hashlib.sha256(checked).digest() + checked


def _number_to_code(files: Mapping[str, bytes], custom_objects: Mapping[str, Any] | None) -> int:
    """Returns the number of weights of a model that is to be coded."""
    try:
        return _number_of_weights(files[_CONFIG], custom_objects, safe_mode=False)
    except MemoryError:
        raise
    except Exception as error:  # whatever a layer's own code raises
        raise ValueError(
            "Expected layers that can be built in a thread, without values of their weights, which "
            f"loading a .tnz file begins with. Received: {type(error).__name__}: "
            f"{cause_of(error)}. Save the model as a .keras file"
        ) from error


def load_model(
    path: str | os.PathLike | IO[bytes],
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> keras.Model:
    """Loads the model of a `.tnz` file, the same as that of the `.keras` file.

    Integers stay integers: the model takes the memory of its packed weights. A file that is
    damaged, or that asks for more memory than its bytes account for, is refused before memory is
    taken.

    Args:
        path: The file, or one that was opened in binary mode.
        custom_objects: As for `keras.models.load_model`. Default: none.
        safe_mode: As for `keras.models.load_model`; `False` runs code of `Lambda` layers. Defaults
            to `True`.

    Returns:
        A Keras model, compiled if the saved one was.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If `constriction` is missing.
        OSError: If the folder for temporary files has no room for the weights.
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
    with temporary_folder() as folder:
        with _refusals(path):
            file = _File.of(data)
            file.check_layers(custom_objects, safe_mode)
            unpacked = file.unpacked()
        with writing_to(folder.parent):
            for name, content in unpacked.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        del unpacked  # the layers take their memory
        with _refusals(path):
            return keras.models.load_model(folder, custom_objects, safe_mode=safe_mode)


@contextlib.contextmanager
def _refusals(path: Any) -> Iterator[None]:
    """Turns any error into one that says that the file is no model."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # whatever Keras raises of a config that it did not write
        raise ValueError(
            f"Expected a .tnz file of a model. Received: path={path}, {cause_of(error)}"
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
    """The content of a file: its bytes, and the arrays, the method and the code of each part."""

    size: int
    parts: list[tuple[list[_Array], str, memoryview]]

    @classmethod
    def of(cls, data: bytes) -> "_File":
        if data[:4] != _MAGIC or len(data) < _HEAD.size:
            raise ValueError("which does not begin as one")
        _, version, digest, packed, size = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"of version {version}: this program reads version {_VERSION}")
        content = memoryview(data)
        if hashlib.sha256(content[40:]).digest() != digest:
            raise ValueError("which is damaged: its checksum differs")
        _check_size(len(data), math.ceil(size / _TEXT), f"an index of {size:,} bytes")
        start = _HEAD.size + packed
        text = arrays.inflate(content[_HEAD.size : start], size)
        _check_size(len(data), _bytes_for_text(text), "its index")
        index = json.loads(text)
        _check_size(len(data), _bytes_for_names(n for n, *_ in index["arrays"]), "its arrays")
        listed = iter(
            _Array(name, dtype, tuple(shape), *rest)
            for name, dtype, shape, *rest in index["arrays"]
        )
        parts = []
        for number, method, length in index["parts"]:
            group = list(itertools.islice(listed, number))
            if not group:
                raise ValueError("whose index has a part without arrays")
            parts.append((group, method, content[start : start + length]))
            if sum(array.size for array in group) > arrays.MAXIMUM_FACTOR * length:
                raise ValueError(f"{length} bytes cannot be {group[0].name}")
            start += length
        if start != len(data) or next(listed, None) is not None:
            raise ValueError("whose index does not list what follows it")
        return cls(len(data), parts)

    def values(self) -> Iterator[tuple[_Array, np.ndarray]]:
        """Decodes part after part."""
        for group, method, code in self.parts:
            if len(group) == 1:
                yield group[0], arrays.decode(code, method, group[0].type, group[0].shape)
                continue
            counts = [array.count for array in group]
            joined = arrays.decode(code, method, group[0].type, (sum(counts),))
            values = np.split(joined, list(itertools.accumulate(counts[:-1])))
            for array, value in zip(group, values, strict=True):
                yield array, value.reshape(array.shape)

    def check_layers(self, custom_objects: Mapping[str, Any] | None, safe_mode: bool) -> None:
        """Compares the bytes of the arrays with the layers, which take no memory here."""
        (config,) = (
            (array, method, code)
            for (array, *_), method, code in self.parts
            if array.name == _CONFIG and not array.dtype
        )
        array, method, code = config
        _check_size(self.size, math.ceil(array.size / _TEXT), f"a config of {array.size:,} bytes")
        text = arrays.decode(code, method, array.type, array.shape).tobytes()
        _check_size(self.size, _bytes_for_text(text), "its config")
        weights = _number_of_weights(text, custom_objects, safe_mode)
        _check_size(self.size, _bytes_for_layers(weights), f"{weights:,} weights of its layers")
        listed = [array for group, _, _ in self.parts for array in group]
        held = sum(array.size for array in listed)
        least = _bytes_for_arrays(listed, weights)
        _check_size(self.size, least, f"{held:,} bytes of arrays that its layers do not need")

    def unpacked(self) -> dict[str, bytes]:
        """Returns the files that Keras saved, by name."""
        files: dict[str, bytes] = {}
        content = io.BytesIO()
        with h5py.File(content, "w", libver="latest") as weights:
            for array, value in self.values():
                if array.dtype:
                    dataset = weights.create_dataset(array.name, data=value)
                    dataset.attrs.update(array.attributes)
                else:
                    files[array.name] = value.tobytes()
        return {**files, WEIGHTS: content.getvalue()}


def _check_size(size: int, least: int, what: str) -> None:
    """Refuses a file that is too small for the arrays that its index lists."""
    if size < least:
        raise ValueError(f"whose {size:,} bytes are too few for {what}: at least {least:,}")


def _bytes_for_text(text: bytes) -> int:
    """Returns the minimum bytes of a file with such JSON; each of its entries takes memory."""
    entries = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    return max(math.ceil(len(text) / _TEXT), entries)


def _bytes_for_names(names: Iterable[str]) -> int:
    """Returns the minimum bytes of a file with arrays of such names."""
    return _NAME_PART * sum(name.count("/") + 1 for name in names)


def _bytes_for_layers(weights: int) -> int:
    """Returns the minimum bytes of a file by the numbers in the weights of its layers."""
    return math.ceil(weights / arrays.MAXIMUM_FACTOR)


def _bytes_for_arrays(listed: Sequence[_Array], weights: int) -> int:
    """Returns the minimum bytes of a file with such arrays, some of which are no weights."""
    held = sum(array.size for array in listed)
    others = held - _MAXIMUM_FOR_WEIGHTS * _NUMBER * weights - _MAXIMUM_IN_ANY
    return math.ceil(max(0, others) / _MAXIMUM_FOR_FILE)


def _number_of_weights(
    config: bytes, custom_objects: Mapping[str, Any] | None, safe_mode: bool
) -> int:
    """Returns the number of a model's weights, by its config, without making them."""
    known = dict(custom_objects or {})  # and what a scope has, which only this thread knows
    if b'"keras_hub.' in config:  # Keras imports it only when it makes one of its layers
        with contextlib.suppress(ImportError):
            importlib.import_module("keras_hub")

    def read(entry: dict[str, Any]) -> dict[str, Any]:
        """Returns a config of a layer that makes no states, which are no weights."""
        for name in map(entry.get, ("class_name", "registered_name", "config")):
            if isinstance(name, str):
                found = keras.saving.get_registered_object(name)
                if found is not None:
                    known[name] = found
        if entry.get("stateful") is True:
            entry["stateful"] = False
        if isinstance(entry.get("compile_config"), dict):  # by which an optimizer is made
            entry["compile_config"] = None
        own = known.get(str(entry.get("registered_name")))
        if isinstance(own, type) and issubclass(own, keras.Model):
            entry["registered_name"] = uncompiled(entry["registered_name"], own)
        return entry

    def uncompiled(name: str, own: type[keras.Model]) -> str:
        """Returns a name of a class like this one that is not compiled by its constructor.

        Tasks of keras-hub are. The name is another one, because Keras prefers the classes that
        are registered.
        """
        other = f"{name}, not compiled"
        known[other] = type(own.__name__, (own,), {"compile": lambda self, *args, **options: None})
        return other

    fields = json.loads(config, object_hook=read)

    def build() -> int:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(fields, known, safe_mode)
        return sum(math.prod(weight.shape) for weight in model.weights)

    # Keras notes in its state, which each thread has for itself, what it has not initialized yet.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()


def _groups(files: Mapping[str, bytes], weights: h5py.File) -> list[list[_Array]]:
    """Returns the arrays of a model's files, the small ones of a kind together."""
    groups: dict[Any, list[_Array]] = collections.defaultdict(list)
    for name in sorted(files):
        if name != WEIGHTS:
            groups[name] = [_Array(name, "", (len(files[name]),))]

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        array = _Array(name, item.dtype.str, item.shape, dict(item.attrs))
        kind = (name.split("/")[0], name.split("/")[-1], array.dtype)
        groups[kind if array.size < _SMALL else ("weights", name)].append(array)

    weights.visititems(add)
    return list(groups.values())


def _value(files: Mapping[str, bytes], weights: h5py.File, array: _Array) -> np.ndarray:
    if array.dtype:
        return weights[array.name][()]
    return np.frombuffer(files[array.name], "uint8")
