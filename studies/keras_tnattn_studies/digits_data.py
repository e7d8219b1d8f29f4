"""scikit-learn's digits, in parts for training and for the test."""

import dataclasses

import numpy as np

from keras_tnattn_train.data.texts.labeled import split_rows

TEST_FRACTION = 0.25


@dataclasses.dataclass(frozen=True)
class LabeledImages:
    """Images with one label each, in a training and a test part.

    Args:
        images: The training images, floats `(R, H, W)` in [0, 1].
        labels: Their classes, integers `(R,)`.
        test_images: The test images, `(S, H, W)`.
        test_labels: Their classes, `(S,)`.
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_images(seed: int) -> LabeledImages:
    """Reads the digits, 8 by 8 pixels, and splits them, stratified, as the seed decides."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 8, 8)
    train, test = split_rows(labels, TEST_FRACTION, seed)
    return LabeledImages(images[train], labels[train], images[test], labels[test])
