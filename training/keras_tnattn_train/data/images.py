"""Loads labeled images by the name of the data set, or from pictures."""

import dataclasses
import hashlib
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np

from keras_tnattn_train.data.names import Labels
from keras_tnattn_train.data.opening import suffix_of
from keras_tnattn_train.data.reading import unknown_source
from keras_tnattn_train.data.tables import (
    SUFFIXES,
    BadRows,
    EmptyFolders,
    open_table,
    problem_of,
    quantity,
)
from keras_tnattn_train.data.texts.labeled import split_rows
from keras_tnattn_train.data.texts.libraries import load_from_library
from keras_tnattn_train.data.texts.tables import doubtful_labels
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

DIGITS_TEST_FRACTION = 0.25
TEST_FRACTION = 0.2
IMAGE_SETS = ("digits", "mnist", "fashion_mnist")
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
LARGEST_LABEL = 100_000
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@dataclasses.dataclass(frozen=True)
class LabeledImages:
    """Images with one label each, in a training and a test part.

    Args:
        images: The training images, floats `(R, H, W)` in [0, 1].
        labels: Their classes, integers `(R,)`, positions in `class_names`.
        test_images: The test images, `(S, H, W)`.
        test_labels: Their classes, `(S,)`.
        class_names: The names of the classes.
        notes: Sentences that describe how the images were read.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def check_patches(self, size: int) -> None:
        """Raises `InputError` if patches of `size` by `size` pixels do not fill the images."""
        height, width = self.images.shape[1:]
        if height % size or width % size:
            raise InputError(
                f"Expected patches that fill images of {height} by {width} pixels. "
                f"Received: patch_size={size}"
            )

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any image or label, or with their order."""
        digest = hashlib.sha256()
        for array in (self.images, self.labels, self.test_images, self.test_labels):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def load_images(
    dataset: str,
    data_dir: str | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    image_size: int | None = None,
) -> LabeledImages:
    """Reads a data set.

    Args:
        dataset: `digits`, which is split here; `mnist` or `fashion_mnist`; the path of a folder
            with one subfolder of pictures for each class; or the path of a table with the columns
            `path` and `label`, whose paths start at the table's folder.
        data_dir: The folder of `DATASET.npz`, with the uint8 arrays `x_train`, `y_train`, `x_test`
            and `y_test`; labels count from 0. Default: Keras' loader and its cache.
        seed: Seed of the split of `digits` and of pictures.
        test_fraction: The share of `digits` or of pictures that is for the test. Default: 0.25 of
            the digits, 0.2 of pictures.
        image_size: Height and width to which pictures are resized. Default: their own, which must
            be the same for all.
    """
    numbers = tuple(str(number) for number in range(10))
    if dataset == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = (pixels / 16).astype("float32").reshape(-1, 8, 8)
        train, test = split_rows(labels, test_fraction or DIGITS_TEST_FRACTION, seed)
        return LabeledImages(images[train], labels[train], images[test], labels[test], numbers)
    if dataset not in IMAGE_SETS:
        return _load_pictures(Path(dataset), seed, test_fraction or TEST_FRACTION, image_size)
    if data_dir is not None:
        (images, labels), test_part = _read(Path(data_dir, f"{dataset}.npz"))
    else:
        (images, labels), test_part = load_from_library(
            dataset,
            lambda: import_module(f"keras.datasets.{dataset}").load_data(),
            "use --dataset digits",
        )
    test_images, test_labels = test_part
    classes = 10 if data_dir is None else 1 + int(max(labels.max(), test_labels.max()))
    names = tuple(map(str, range(classes)))
    return LabeledImages(
        (images / 255).astype("float32"),
        labels.astype("int32"),
        (test_images / 255).astype("float32"),
        test_labels.astype("int32"),
        CLOTHES if dataset == "fashion_mnist" and classes == len(CLOTHES) else names,
    )


def read_picture(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Reads a picture as floats `(H, W)`: 0 for black, 1 for white; colors become grays, on white.

    Raises:
        ValueError: If the file is no picture; the message says why.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            deep = image.mode == "I" and image.format in ("PNG", "PPM")  # of 16 bits
            image = ImageOps.exif_transpose(image)
            if deep or image.mode.startswith("I;16"):  # `convert` would cut off what is above 255
                image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
            elif image.mode in ("I", "F"):
                raise ValueError("of 32 bits for a pixel, not 8 or 16")
            elif image.has_transparency_data:  # on white
                white = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(white, image.convert("RGBA"))
            gray = image.convert("L")
            if size is not None and gray.size != size[::-1]:
                gray = gray.resize(size[::-1], Image.Resampling.LANCZOS)
            return np.asarray(gray, "float32") / 255
    except UnidentifiedImageError as error:
        raise ValueError("not a picture") from error
    except Image.DecompressionBombError as error:
        raise ValueError("too large") from error
    except OSError as error:
        raise ValueError(reason(error)) from error


def _load_pictures(
    source: Path, seed: int, test_fraction: float, image_size: int | None
) -> LabeledImages:
    bad = BadRows(source, None)
    if source.is_dir():
        rows, notes = _pictures_of_folders(source)
    elif suffix_of(source) in SUFFIXES and source.is_file():
        rows, notes = _pictures_of_table(source, bad)
    else:
        raise unknown_source("dataset", str(source), IMAGE_SETS)
    size = (image_size, image_size) if image_size else None
    images, names = [], []
    shapes: dict[tuple[int, ...], object] = {}
    for place, path, name in rows:
        try:
            image = read_picture(path, size)
        except ValueError as error:
            bad.add(place, f"{path}: {error}" if place != path else str(error))
            continue
        shapes.setdefault(image.shape, place)
        images.append(image)
        names.append(name)
    bad.notes()
    if len(shapes) > 1:
        sizes = ", ".join(f"{h} by {w} ({place})" for (h, w), place in list(shapes.items())[:3])
        raise InputError(
            f"Expected pictures of one size. Received: {source} with {len(shapes)} sizes: {sizes}. "
            "Name one to resize them to with --image-size"
        )
    classes = sorted(set(names))
    if len(classes) < 2:
        raise InputError(
            f"Expected pictures of two classes or more. Received: {source} with {len(images)} "
            f"pictures in the classes {classes}"
        )
    number = {name: i for i, name in enumerate(classes)}
    pixels, labels = np.stack(images), np.array([number[name] for name in names], "int32")
    counts = np.bincount(labels).tolist()
    notes += doubtful_labels(dict(zip(classes, counts, strict=True)))
    train, test = split_rows(labels, test_fraction, seed)
    return LabeledImages(
        pixels[train], labels[train], pixels[test], labels[test], tuple(classes), tuple(notes)
    )


def _pictures_of_folders(source: Path) -> tuple[list[tuple[object, Path, str]], list[str]]:
    """Returns place, path and class of each picture, and sentences about the files."""
    rows: list[tuple[object, Path, str]] = []
    others, labels, empty = 0, Labels(), EmptyFolders("pictures")
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        name, before = labels(folder.name), len(rows)
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            if path.suffix.lower() in PICTURES:
                rows.append((path, path, name))
            else:
                others += 1
        if len(rows) == before:
            empty.add(folder)
    notes = [f"{quantity(others, 'file')} that is not a picture left out"] if others else []
    return rows, [*notes, *empty.notes(), *labels.notes()]


def _pictures_of_table(
    source: Path, bad: BadRows
) -> tuple[list[tuple[object, Path, str]], list[str]]:
    rows: list[tuple[object, Path, str]] = []
    labels = Labels()
    with open_table(source) as table:
        places = [i for name in ("path", "label") if (i := table.place(name)) is not None]
        if len(places) < 2:
            raise InputError(
                f"Expected {source} to have the columns path and label. Received: "
                f"columns={table.columns}"
            )
        for row in table:
            if row.problem is not None:
                bad.add(row, row.problem)
                continue
            if problem := problem_of(row, places):
                bad.add(row, problem)
                continue
            path, name = row.fields[places[0]].strip(), labels(row.fields[places[1]])
            if not path or not name:
                bad.add(row, f"an empty {'label' if path else 'path'}")
            else:
                rows.append((row, source.parent / path, name))
        return rows, [*table.notes(), *labels.notes()]


def _read(path: Path) -> tuple:
    try:
        with np.load(path) as file:
            parts = tuple((file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test"))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"Expected a file with x_train, y_train, x_test and y_test. Received: {path} ({error})"
        ) from error
    for images, labels in parts:
        if not (
            images.ndim == 3
            and images.shape[1:] == parts[0][0].shape[1:]
            and labels.shape == images.shape[:1]
            and len(labels)
            and np.issubdtype(labels.dtype, np.integer)
            and 0 <= labels.min() <= labels.max() < LARGEST_LABEL
            and 0 <= images.min() <= images.max() <= 255
        ):
            raise InputError(
                "Expected images (R, H, W) of 0 to 255, all of one size, and integers as "
                f"labels (R,) from 0 on. Received: {path} with {images.shape} and {labels.shape}"
            )
    return parts
