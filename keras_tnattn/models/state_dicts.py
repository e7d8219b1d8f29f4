"""Reads the weights of PyTorch models without PyTorch, and without running code from the file."""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.extras import installation

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "BoolStorage": "bool",
}
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SAFETENSORS |= {"I64": "int64", "I32": "int32", "BOOL": "bool"}


def read_state_dict(path: str | Path) -> dict[str, np.ndarray]:
    """Reads a file of named tensors that PyTorch wrote.

    Args:
        path: A file `.safetensors`, which the package `safetensors` reads (the extra
            `checkpoints`); or a file `.pth`, `.pt` or `.bin` of `torch.save`. Of
            such a pickle only tensors and dicts are made; anything else is refused, and no code in
            it is run.

    Returns:
        Dict of arrays; bfloat16 becomes float32.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file has another format, is damaged, or contains anything but tensors.

    Example:
        ```python notest
        weights = read_state_dict("model.safetensors")
        ```
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file. Received: path={str(path)!r}")
    readers = {".safetensors": _read_safetensors}
    readers |= dict.fromkeys((".pth", ".pt", ".bin"), _read_pickle)
    if path.suffix not in readers:
        raise ValueError(f"Expected one of {tuple(readers)}. Received: path={str(path)!r}")
    return readers[path.suffix](path)


def _array(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("uint32") << 16).view("float32")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            f"Reading .safetensors needs the package safetensors. {installation('safetensors')}"
        ) from error
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"Expected a file of safetensors. Received: path={str(path)!r} ({error})"
        ) from error
    weights = {}
    for name, entry in entries:
        if entry["dtype"] not in _SAFETENSORS:
            raise ValueError(
                f"Expected one of {tuple(_SAFETENSORS)}. Received: {name} of {entry['dtype']}"
            )
        array = _array(bytes(entry["data"]), _SAFETENSORS[entry["dtype"]])
        weights[name] = array.reshape(entry["shape"])
    return weights


# What a damaged pickle raises.
_DAMAGES = (
    zipfile.BadZipFile,
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
)


class _Storage:
    """Stands for a class of storages in a pickle."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class _TensorUnpickler(pickle.Unpickler):
    """Makes arrays of the tensors of a pickle, and refuses everything but dicts and tensors."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive = archive
        self.root = root

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _Storage(_STORAGES[name])
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
        }
        if (module, name) not in known:
            raise ValueError(
                "Expected a pickle of tensors only, of which no code is run. "
                f"Received: one with {module}.{name}"
            )
        return known[module, name]

    def persistent_load(self, pid: Any) -> np.ndarray:
        if not isinstance(pid, tuple) or len(pid) < 3 or not isinstance(pid[1], _Storage):
            raise pickle.UnpicklingError(f"no storage of a tensor: {pid!r}")
        _, storage, key, *_ = pid
        return _array(self.archive.read(f"{self.root}/data/{key}"), storage.dtype)


def _tensor(storage: np.ndarray, offset: int, shape: Any, stride: Any, *_: Any) -> np.ndarray:
    """Returns a copy of a strided view, checked to be within its storage."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    # A stride of 0 would let a small file ask for any amount of memory.
    inside = min((offset, *shape, *stride)) >= 0 and math.prod(shape) <= len(storage)
    if not inside or (0 not in shape and last >= len(storage)):
        raise ValueError(
            "Expected a tensor within its storage. "
            f"Received: shape={tuple(shape)}, offset={offset}, storage of {len(storage)}"
        )
    steps = [s * storage.itemsize for s in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps).copy()


def _read_pickle(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise ValueError(f"Expected a file of torch.save. Received: path={str(path)!r}")
            state = _TensorUnpickler(archive, pickles[0].removesuffix("/data.pkl")).load()
    except _DAMAGES as error:
        raise ValueError(
            f"Expected a file of torch.save, version 1.6 or later. Received: path={str(path)!r} "
            f"({error})"
        ) from error
    # A checkpoint of a training has the weights in an entry of its own.
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ValueError(f"Expected a dict of tensors. Received: {type(state).__name__}")
    return {name: x for name, x in state.items() if isinstance(x, np.ndarray)}
