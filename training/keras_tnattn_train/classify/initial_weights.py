"""Starts a text classifier as a linear support vector machine (SVM) of TF-IDF weights.

The scores of an SVM are sums over the words of a text, as are those of a classifier that averages
embeddings of its words. So the embedding and the last layer can start from an SVM that was fitted
to the training part, and the training goes on from there.
"""

import warnings
from collections.abc import Callable

import keras
import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.data.stored import stored_array
from keras_tnattn_train.runs.training import outputs_of

# The first two were chosen with the recipe, on validation parts.
PENALTY = 0.3  # `C` of scikit-learn's `LinearSVC`
AVERAGE = 0.1  # root mean square of the averages of the embeddings of a text's words
RIDGE = 1e-3  # for each text
ROWS = 100_000  # which limits the memory and the time of the fits
CHUNK = 4096  # texts that are counted at once


def svm_weights(
    config: ClassifyConfig, build: Callable[[], keras.Model], ids: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Computes the initial weights without a distribution, as any process on its own would."""
    print("fitting the linear SVM from which the weights start", flush=True)
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        model = build()
        start_from_svm(config, model, ids, labels)
        return model.get_weights()
    finally:
        keras.distribution.set_distribution(distribution)


def start_from_svm(
    config: ClassifyConfig, model: keras.Model, ids: np.ndarray, labels: np.ndarray
) -> None:
    """Gives a classifier initial weights with which it scores texts about as a linear SVM does.

    The SVM's weights, multiplied by the inverse document frequencies, form a matrix of words by
    classes; the embedding becomes a factor of it, from its singular value decomposition. The last
    layer becomes a ridge regression from the features that reach it to the SVM's scores. All other
    weights stay as they are.

    If all texts have the same class, or their words say nothing about it, all weights stay.
    At most 100,000 texts, drawn by the config's seed, are used; their ids 0 and 1 are no words.
    """
    if len(labels) > ROWS:
        rows = np.sort(np.random.default_rng(config.seed).choice(len(labels), ROWS, replace=False))
        blocks = (ids[rows[start : start + CHUNK]] for start in range(0, ROWS, CHUNK))
        ids, labels = stored_array(blocks, (ROWS, ids.shape[1])), labels[rows]
    if len(np.unique(labels)) == 1:
        return
    embedding, last = model.get_layer("embedding"), model.get_layer("probabilities")
    counts, lengths = _counts(ids, embedding.embeddings.shape[0])
    transformer = TfidfTransformer()
    features = transformer.fit_transform(counts)
    svm = LinearSVC(
        C=PENALTY,
        class_weight=None if config.class_weights == "none" else config.class_weights,
        random_state=config.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is only a start
        svm.fit(features, labels)

    matrix = svm.coef_.T * transformer.idf_[:, None]
    vectors = _factor(matrix, config.embedding_dim, config.seed)
    size = np.sqrt(np.mean(np.square((counts @ vectors) / lengths)))
    if not size:
        return
    embedding.embeddings.assign((AVERAGE / size * vectors).astype("float32"))
    ridge = Ridge(RIDGE * len(labels))
    ridge.fit(
        outputs_of(keras.Model(model.input, last.input), ids), _scores(svm, features, last.units)
    )
    last.set_weights([ridge.coef_.T, ridge.intercept_])


def _counts(ids: np.ndarray, vocabulary_size: int) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Returns how often each text has each word `(R, V)`, and the lengths `(R, 1)`, at least 1.

    The lengths include unknown words.
    """
    counts, lengths = [], []
    for start in range(0, len(ids), CHUNK):
        block = np.asarray(ids[start : start + CHUNK])
        rows, places = np.nonzero(block > 1)
        ones = np.ones(len(rows), "float32")
        shape = (len(block), vocabulary_size)
        counts.append(scipy.sparse.csr_matrix((ones, (rows, block[rows, places])), shape))
        lengths.append(np.maximum(np.count_nonzero(block, axis=1, keepdims=True), 1))
    return scipy.sparse.vstack(counts, format="csr"), np.concatenate(lengths)


def _scores(svm: LinearSVC, features: scipy.sparse.csr_matrix, classes: int) -> np.ndarray:
    """Returns the scores `(R, C)` of all classes, with -1 for those that the SVM never saw."""
    known = svm.decision_function(features)
    if known.ndim == 1:  # two classes have a single score
        known = np.stack([-known, known], axis=1)
    scores = np.full((len(known), classes), -1.0)
    scores[:, svm.classes_] = known
    return scores


def _factor(matrix: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """Returns `A` of shape `(V, dim)`, such that `A B` is a best approximation of the matrix.

    The features have different mixtures of the singular vectors, and each row of `A` has a mean of
    0, so that a layer normalization after an average of rows only changes its scale.
    """
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = min(len(values), dim - 1)
    drawn = np.random.default_rng(seed).normal(size=(dim, rank))
    basis, _ = np.linalg.qr(np.concatenate([np.ones((dim, 1)), drawn], axis=1))
    return (left[:, :rank] * np.sqrt(values[:rank])) @ basis[:, 1:].T
