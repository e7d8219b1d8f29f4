"""The classifiers of digits beside which the tensor networks stand."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from keras_tnattn_train.data.images import LabeledImages
from keras_tnattn_train.images.train import convolutional_network
from keras_tnattn_train.runs.predictions import predict
from keras_tnattn_train.runs.training import reset_session

EPOCHS, BATCH_SIZE, LEARNING_RATE = 40, 64, 5e-3


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


def cnn(data: LabeledImages, seed: int) -> dict[str, Any]:
    """Trains a small convolutional network as the tensor networks: AdamW with cosine decay.

    Returns:
        `weights`, `train_accuracy`, `test_accuracy` and `seconds`.
    """
    reset_session(seed)
    model = convolutional_network(data.images.shape[1:], len(data.class_names))
    steps = EPOCHS * -(-len(data.labels) // BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=1e-2),
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


BASELINES: dict[str, Callable[[LabeledImages, int], dict[str, Any]]] = {
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
