"""The baselines beside which every comparison stands.

They are TF-IDF with a linear support vector machine, and the most frequent class.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.texts.labeled import LabeledTexts, split_rows
from keras_tnattn_train.options.errors import InputError

SVM, MOST_FREQUENT = BASELINES = ("TF-IDF + SVM", "most frequent class")


def fitted_svm(config: ClassifyConfig, data: LabeledTexts, rows: np.ndarray) -> Any:
    """Returns scikit-learn's `LinearSVC`, fitted to the TF-IDF weights of the words of some rows.

    It sees whole texts; the maximum size of the vocabulary, the class weights and whether words or
    characters are counted are those of the config. Everything else is scikit-learn's default;
    nothing is tuned. It predicts numbers of classes for texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    unit = "word" if config.split == "words" else "char"
    weights = None if config.class_weights == "none" else config.class_weights
    classifier = make_pipeline(
        TfidfVectorizer(max_features=config.vocabulary_size, analyzer=unit),
        LinearSVC(class_weight=weights, random_state=config.seed),
    )
    try:
        return classifier.fit(texts_of(data, rows), data.labels[rows])
    except ValueError as error:  # no words of two letters, or a single class
        raise InputError(f"Could not fit {SVM}: {error}") from error


def linear_svms(configs: Iterable[ClassifyConfig], data: LabeledTexts) -> dict[int, dict[str, Any]]:
    """Fits `fitted_svm` to the training part of each config; returns what it reaches, by seed.

    That is `train_accuracy`, `test_accuracy`, `seconds` of the fit, and the number of `parameters`.
    """
    results = {}
    for config in {config.seed: config for config in configs}.values():
        train, test = split_rows(data.labels, config.test_fraction, config.seed)
        started = time.perf_counter()
        classifier = fitted_svm(config, data, train)
        seconds = time.perf_counter() - started
        words = classifier[0]
        machine = classifier[1]
        results[config.seed] = {
            "train_accuracy": classifier.score(texts_of(data, train), data.labels[train]),
            "test_accuracy": classifier.score(texts_of(data, test), data.labels[test]),
            "seconds": seconds,
            "parameters": words.idf_.size + machine.coef_.size + machine.intercept_.size,
        }
    return results


def most_frequent_class(
    configs: Iterable[ClassifyConfig], data: LabeledTexts
) -> dict[int, dict[str, Any]]:
    """Measures, as `linear_svms`, the answer that is always the most frequent class."""
    results = {}
    for config in {config.seed: config for config in configs}.values():
        train, test = (
            data.labels[rows] for rows in split_rows(data.labels, config.test_fraction, config.seed)
        )
        answer = np.bincount(train).argmax()
        results[config.seed] = {
            "train_accuracy": float(np.mean(train == answer)),
            "test_accuracy": float(np.mean(test == answer)),
            "seconds": 0.0,
            "parameters": 0,
        }
    return results


def texts_of(data: LabeledTexts, rows: np.ndarray) -> Iterator[str]:
    """Reads the texts of some rows one by one."""
    return (data.texts[row] for row in rows)
