"""Writes a model as a `.keras` file that is hardly larger than its weights, or as a `.tnz` file.

Keras stores some hundred bytes with each weight, and the state of an optimizer. Here the same HDF5
file has its small weights inside their headers, and the archive is compressed.
"""

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import keras

from keras_small.coding.archives import WEIGHTS, saved_files
from keras_small.coding.arrays import MAXIMUM_FOR_LZMA
from keras_small.coding.files import check_model, encode_model
from keras_small.survey.copying import known_objects
from keras_small.survey.inventory import Inventory
from keras_tnattn_runtime.folders import checked_target, write_file

# HDF5 stores up to 64 kB of data, header included, in the header of a dataset.
_MAXIMUM_IN_HEADER = 60_000


def save_model(model: keras.Model, path: str | os.PathLike, overwrite: bool = False) -> int:
    """Writes a built model as one file, in one step, without an optimizer's state.

    If it is compiled, the loaded one is, too, with a new optimizer. A link stays, and the file is
    written where it leads. Arguments, result and errors are those of `CompressionResult.save`; a
    `.tnz` file also needs layers that save nothing but numbers.
    """
    path = Path(path)
    suffix = _suffix(path)
    target = checked_target(path, overwrite)
    content = _content(model, suffix)
    write_file(target, content)
    return len(content)


def _suffix(path: Path) -> str:
    if path.suffix == ".keras":  # Keras reads no other spelling
        return ".keras"
    if path.suffix.lower() == ".tnz":
        return ".tnz"
    raise ValueError(f"Expected a name that ends with .keras or .tnz. Received: path={path}")


def file_bytes(model: keras.Model, suffix: str = ".keras") -> int:
    """Returns the bytes of the file that `save_model` writes."""
    return len(_content(model, suffix))


def check_codable(model: keras.Model, known: Mapping[str, Any]) -> None:
    """Refuses a model that no `.tnz` file can hold.

    Args:
        model: The model.
        known: Its own classes and functions by name, as `known_objects` yields them.

    Raises:
        ValueError: If a layer saves other things than numbers, or cannot be built from its config.
    """
    with _new_optimizer(model):
        check_model(saved_files(model), known)


def _content(model: keras.Model, suffix: str) -> bytes:
    """Returns the bytes of a model's file."""
    with known_objects(Inventory.of(model)) as known, _new_optimizer(model):
        files = saved_files(model)
        if suffix == ".tnz":
            return encode_model(files, known)
    files[WEIGHTS] = _compact(files[WEIGHTS])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            small = len(files[name]) <= MAXIMUM_FOR_LZMA
            kind = zipfile.ZIP_LZMA if name == WEIGHTS and small else None
            archive.writestr(name, files[name], kind)
    return content.getvalue()


@contextlib.contextmanager
def _new_optimizer(model: keras.Model) -> Iterator[None]:
    """Gives a compiled model a new optimizer for a while, whose state is 0.

    It is built, as Keras builds that of a compiled model that it loads.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        yield
        return
    new = type(optimizer).from_config(optimizer.get_config())
    new.build(model.trainable_variables)
    model.optimizer = new
    try:
        yield
    finally:
        model.optimizer = optimizer


def _compact(content: bytes) -> bytes:
    """Returns an HDF5 file with its datasets alone, those that are small in their headers."""
    compact = io.BytesIO()
    with h5py.File(io.BytesIO(content)) as old, h5py.File(compact, "w", libver="latest") as new:

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                if item.nbytes <= _MAXIMUM_IN_HEADER:
                    properties.set_layout(h5py.h5d.COMPACT)
                dataset = new.create_dataset(name, data=item[()], dcpl=properties)
                dataset.attrs.update(item.attrs)

        old.visititems(copy)
    return compact.getvalue()
