"""Loads labeled images by the name of the data set."""

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import numpy as np

from keras_tnattn_train.data.texts.labeled import split_rows
from keras_tnattn_train.data.texts.libraries import downloaded
from keras_tnattn_train.options.errors import InputError

DIGITS_TEST_FRACTION = 0.25
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
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
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]

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


def load_images(dataset: str, data_dir: str | None = None, seed: int = 0) -> LabeledImages:
    """Reads a data set.

    Args:
        dataset: `digits`, which is split here, `mnist` or `fashion_mnist`.
        data_dir: The folder of `DATASET.npz`, with the uint8 arrays `x_train`, `y_train`, `x_test`
            and `y_test`. Default: Keras' loader and its cache.
        seed: Seed of the split of `digits`.

    Raises:
        InputError: If the data set cannot be read.
    """
    numbers = tuple(str(number) for number in range(10))
    if dataset == "digits":
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = (pixels / 16).astype("float32").reshape(-1, 8, 8)
        train, test = split_rows(labels, DIGITS_TEST_FRACTION, seed)
        return LabeledImages(images[train], labels[train], images[test], labels[test], numbers)
    if data_dir is not None:
        (images, labels), test_part = _read(Path(data_dir, f"{dataset}.npz"))
    else:
        (images, labels), test_part = downloaded(
            dataset, lambda: _keras_loader(dataset), "use --dataset digits"
        )
    test_images, test_labels = test_part
    return LabeledImages(
        (images / 255).astype("float32"),
        labels.astype("int32"),
        (test_images / 255).astype("float32"),
        test_labels.astype("int32"),
        numbers if dataset == "mnist" else CLOTHES,
    )


def _keras_loader(dataset: str) -> tuple:
    from keras import datasets

    return getattr(datasets, dataset).load_data()


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
            and 0 <= labels.min() <= labels.max() <= 9
            and 0 <= images.min() <= images.max() <= 255
        ):
            raise InputError(
                "Expected images (R, H, W) of 0 to 255, all of one size, and labels (R,) of 0 to 9."
                f" Received: {path} with {images.shape} and {labels.shape}"
            )
    return parts
