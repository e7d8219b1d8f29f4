"""Writes a model as a `.keras` file that is hardly larger than its weights, or as a `.tnz` file.

Keras stores some hundred bytes with each weight, and the state of an optimizer. Here the same HDF5
file has its small weights inside their headers, and the archive is compressed.
"""

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import keras

from keras_small import coding
from keras_small.survey.copying import custom_objects
from keras_small.survey.inventory import Inventory

_WEIGHTS = "model.weights.h5"
# HDF5 stores up to 64 kB of data, header included, in the header of a dataset.
_MAXIMUM_IN_HEADER = 60_000


def save_model(model: keras.Model, path: str | os.PathLike, overwrite: bool = False) -> int:
    """Writes a built model as one file, in one step, without an optimizer's state.

    If it is compiled, the loaded one is, too, with a new optimizer. Arguments, result and errors
    are those of `CompressionResult.save`; a `.tnz` file also needs layers with no more than arrays.
    """
    path = Path(path)
    if path.suffix not in (".keras", ".tnz"):
        raise ValueError(f"Expected a name that ends with .keras or .tnz. Received: path={path}")
    if path.is_dir() or (os.path.lexists(path) and not overwrite):
        way_out = "" if path.is_dir() else ". Pass overwrite=True to replace it"
        raise FileExistsError(f"Expected a new file. Received: path={path}, which exists{way_out}")
    # Of a link the file to which it points.
    target = path.resolve() if path.is_symlink() else path
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"Expected a folder that exists. Received: path={path}, without {target.parent}"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as folder:
        small = Path(folder, path.name)
        size = _write(model, small, Path(folder, "model"))
        os.replace(small, target)
    return size


def file_bytes(model: keras.Model, suffix: str = ".keras") -> int:
    """Returns the bytes of the file that `save_model` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return _write(model, Path(folder, f"small{suffix}"), Path(folder, "model"))


def _write(model: keras.Model, path: Path, folder: Path) -> int:
    known = custom_objects(Inventory.of(model))
    with keras.saving.custom_object_scope(known), _new_optimizer(model):
        model.save(folder, zipped=False)
    if path.suffix == ".tnz":
        return coding.write_model(folder, path, known)
    weights = folder / _WEIGHTS
    _make_compact(weights)
    lzma = weights.stat().st_size <= coding.arrays.MOST_FOR_LZMA
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                kind = zipfile.ZIP_LZMA if lzma and file == weights else None
                archive.write(file, file.relative_to(folder), kind)
    return path.stat().st_size


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


def _make_compact(path: Path) -> None:
    """Rewrites an HDF5 file with its datasets alone, those that are small in their headers."""
    large = path.with_suffix(".large")
    os.replace(path, large)
    with h5py.File(large) as old, h5py.File(path, "w", libver="latest") as new:

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                if item.nbytes <= _MAXIMUM_IN_HEADER:
                    how.set_layout(h5py.h5d.COMPACT)
                new.create_dataset(name, data=item[()], dcpl=how).attrs.update(item.attrs)

        old.visititems(copy)
    large.unlink()
