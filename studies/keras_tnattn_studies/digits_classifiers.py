"""The classifiers of digits: tensor networks, and what they stand beside."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from keras_tnattn.layers import LocalEmbedding
from keras_tnattn.models import deep_tensor_network
from keras_tnattn_studies.digits_data import LabeledImages
from keras_tnattn_train.runs.predictions import predict
from keras_tnattn_train.runs.training import reset_session

CLASSES = 10
EPOCHS = 40
BATCH_SIZE = 64
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 1e-2
BOND_DIM = 10
# The best of 0.1, 0.2, 0.4 and 0.8 on a part of the digits' training part.
INITIAL_DEVIATION = 0.2


def svm(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Fits a support vector machine with an RBF kernel; cross-validation chooses `C` and `gamma`.

    Returns:
        `weights`, `train_accuracy`, `test_accuracy` and `seconds`.
    """
    grid = {"C": [1.0, 10.0, 100.0], "gamma": [0.01, 0.03, 0.1]}
    return _best_of_grid(
        SVC(),
        grid,
        data,
        lambda c: c.support_vectors_.size + c.dual_coef_.size + c.intercept_.size,
    )


def logistic_regression(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Fits a logistic regression of the pixels; cross-validation chooses `C`.

    Arguments and result are those of `svm`.
    """
    classifier = LogisticRegression(max_iter=1_000)
    grid = {"C": [0.1, 1.0, 10.0]}
    return _best_of_grid(classifier, grid, data, lambda c: c.coef_.size + c.intercept_.size)


def tensor_network_of_rows(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Trains a deep tensor network whose sites are the rows of pixels."""
    width = data.images.shape[2]
    return _trained(lambda: _tensor_network(data, (1, width)), data, seed)


def tensor_network_of_patches(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Trains a deep tensor network whose sites are patches of 2 by 2 pixels."""
    return _trained(lambda: _tensor_network(data, (2, 2)), data, seed)


def cnn(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Trains a small convolutional network as the tensor networks."""
    return _trained(lambda: _convolutional_network(data.images.shape[1:]), data, seed)


def _tensor_network(data: LabeledImages, patch: tuple[int, int]) -> keras.Model:
    """Returns a network from images `(B, H, W)` to logits, whose sites are patches of pixels."""
    height, width = data.images.shape[1:]
    high, wide = patch
    num_sites = (height // high) * (width // wide)
    network = deep_tensor_network(
        CLASSES,
        LocalEmbedding("trigonometric"),
        bond_dim=BOND_DIM,
        num_sites=num_sites,
        num_features=high * wide,
        initial_deviation=INITIAL_DEVIATION,
        skip=True,
    )
    images = keras.Input((height, width))
    x = keras.layers.Reshape((height // high, high, width // wide, wide))(images)
    x = keras.layers.Permute((1, 3, 2, 4))(x)
    patches = keras.layers.Reshape((num_sites, high * wide), name="patches")(x)
    return keras.Model(images, network(patches))


def _convolutional_network(shape: tuple[int, ...]) -> keras.Model:
    """Returns a small convolutional network from images `(B, H, W)` to logits."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Reshape((*shape, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(CLASSES),
        ]
    )


def _trained(make: Callable[[], keras.Model], data: LabeledImages, seed: int) -> dict[str, Any]:
    """Trains a network by AdamW with cosine decay.

    Returns:
        `weights`, `train_accuracy`, `test_accuracy` and `seconds`.
    """
    reset_session(seed)
    model = make()
    steps = EPOCHS * -(-len(data.labels) // BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=WEIGHT_DECAY),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    started = time.perf_counter()
    model.fit(data.images, data.labels, BATCH_SIZE, EPOCHS, verbose=0)
    seconds = time.perf_counter() - started
    return {
        "weights": model.count_params(),
        "train_accuracy": float(np.mean(predict(model, data.images) == data.labels)),
        "test_accuracy": float(np.mean(predict(model, data.test_images) == data.test_labels)),
        "seconds": seconds,
    }


CLASSIFIERS: dict[str, Callable[[LabeledImages, int], dict[str, Any]]] = {
    "tn-rows": tensor_network_of_rows,
    "tn-patches": tensor_network_of_patches,
    "svm": svm,
    "logistic-regression": logistic_regression,
    "cnn": cnn,
}


def _best_of_grid(
    classifier: BaseEstimator,
    grid: dict[str, list[float]],
    data: LabeledImages,
    count: Callable[[Any], int],
) -> dict[str, Any]:
    """Fits with the best options of a grid by threefold cross-validation in the training part."""
    pixels, test_pixels = (x.reshape(len(x), -1) for x in (data.images, data.test_images))
    started = time.perf_counter()
    search = GridSearchCV(classifier, grid, cv=3).fit(pixels, data.labels)
    seconds = time.perf_counter() - started
    return {
        "weights": int(count(search.best_estimator_)),
        "train_accuracy": float(search.score(pixels, data.labels)),
        "test_accuracy": float(search.score(test_pixels, data.test_labels)),
        "seconds": seconds,
    }
