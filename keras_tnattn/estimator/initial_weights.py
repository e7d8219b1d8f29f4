"""Gives a text classifier the weights of a linear support vector machine (SVM) of TF-IDF weights.

The scores of an SVM are sums over the words of a text, as are those of a classifier that averages
embeddings of its words. So the embedding and the last layer can start from an SVM that was fitted
to the training part, and the training goes on from there. A classifier without an attention can
also be the SVM itself, for texts that teach it nothing beyond that.
"""

import dataclasses
import warnings
from collections.abc import Callable

import keras
import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.settings import Settings
from keras_tnattn_runtime.stored import stored_array

# The first two were chosen with the recipe, on validation parts.
PENALTY = 0.3  # `C` of scikit-learn's `LinearSVC`
AVERAGE = 0.1  # root mean square of the averages of the embeddings of a text's words
RIDGE = 1e-3  # for each text
DEFAULT_PENALTY = 1.0  # scikit-learn's own
# Size of the features that the SVM's scores are read from, beside those that measure the norm of a
# text's TF-IDF weights.
SCORED = 0.5
ROWS = 100_000  # which limits the memory and the time of the fits
CHUNK = 4096  # texts that are counted at once


def svm_weights(
    settings: Settings, build: Callable[[], keras.Model], ids: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Computes the initial weights without a distribution, as any process on its own would."""
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        model = build()
        start_from_svm(settings, model, ids, labels)
        return model.get_weights()
    finally:
        keras.distribution.set_distribution(distribution)


def start_from_svm(
    settings: Settings, model: keras.Model, ids: np.ndarray, labels: np.ndarray
) -> None:
    """Gives a classifier initial weights with which it scores texts about as a linear SVM does.

    The SVM's weights, multiplied by the inverse document frequencies, form a matrix of words by
    classes; the embedding becomes a factor of it, from its singular value decomposition. The last
    layer becomes a ridge regression from the features that reach it to the SVM's scores. All other
    weights stay as they are.

    If all texts have the same class, or their words say nothing about it, all weights stay.
    At most 100,000 texts, drawn by the seed, are used; their ids 0 and 1 are no words.
    """
    fit = _fit(settings, model, ids, labels, PENALTY)
    if fit is not None:
        _set_weights(model, fit, _factor(fit.matrix, settings.embedding_dim, settings.seed), RIDGE)


def become_svm(settings: Settings, model: keras.Model, ids: np.ndarray, labels: np.ndarray) -> bool:
    """Gives a new classifier without an attention the scores of scikit-learn's default linear SVM.

    An SVM divides the sum over the words of a text by the norm of the text's TF-IDF weights; the
    classifier, in its layer normalization, by the norm of its features. So most features are random
    projections of the TF-IDF weights, which keep norms nearly, and the scores are read from the few
    that are left. The last layer is fitted as in `start_from_svm`, which lists when all weights
    stay and how many texts are used.

    With as many classes as features there is no room for the projections, and the scores are those
    of `start_from_svm`. Returns whether there is an SVM: not if all texts have one class.
    """
    fit = _fit(settings, model, ids, labels, DEFAULT_PENALTY)
    if fit is None:
        return False
    vectors = _factor_with_norms(fit, settings.embedding_dim, settings.seed)
    _set_weights(model, fit, vectors, RIDGE * SCORED**2)
    return True


@dataclasses.dataclass(frozen=True)
class _Fit:
    """An SVM, fitted to texts.

    Attributes:
        ids: The texts, integers `(R, L)`.
        counts: How often each text has each word, sparse `(R, V)`.
        lengths: The lengths of the texts `(R, 1)`.
        idf: The inverse document frequencies `(V,)`.
        matrix: The SVM's weights times these, `(V, C)`, or `(V, 1)` for two classes.
        scores: The SVM's scores `(R, C)`.
    """

    ids: np.ndarray
    counts: scipy.sparse.csr_matrix
    lengths: np.ndarray
    idf: np.ndarray
    matrix: np.ndarray
    scores: np.ndarray


def _fit(
    settings: Settings,
    model: keras.Model,
    ids: np.ndarray,
    labels: np.ndarray,
    penalty: float,
) -> _Fit | None:
    """Fits an SVM to the TF-IDF weights of at most `ROWS` texts; `None` if all have one class."""
    if len(labels) > ROWS:
        rng = np.random.default_rng(settings.seed)
        rows = np.sort(rng.choice(len(labels), ROWS, replace=False))
        blocks = (ids[rows[start : start + CHUNK]] for start in range(0, ROWS, CHUNK))
        ids, labels = stored_array(blocks, (ROWS, ids.shape[1])), labels[rows]
    if len(np.unique(labels)) == 1:
        return None
    counts, lengths = _counts(ids, model.get_layer("embedding").embeddings.shape[0])
    transformer = TfidfTransformer()
    features = transformer.fit_transform(counts)
    svm = LinearSVC(
        C=penalty,
        class_weight=settings.class_weight,
        random_state=settings.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is only a start
        svm.fit(features, labels)
    matrix = svm.coef_.T * transformer.idf_[:, None]
    scores = _scores(svm, features, model.get_layer("probabilities").units)
    return _Fit(ids, counts, lengths, transformer.idf_, matrix, scores)


def _set_weights(model: keras.Model, fit: _Fit, vectors: np.ndarray, ridge: float) -> None:
    """Sets the embedding to vectors `(V, dim)`, but for their scale, and fits the last layer."""
    embedding, last = model.get_layer("embedding"), model.get_layer("probabilities")
    size = np.sqrt(np.mean(np.square((fit.counts @ vectors) / fit.lengths)))
    if not size:
        return
    embedding.embeddings.assign((AVERAGE / size * vectors).astype("float32"))
    regression = Ridge(ridge * len(fit.ids))
    regression.fit(outputs_of(keras.Model(model.input, last.input), fit.ids), fit.scores)
    last.set_weights([regression.coef_.T, regression.intercept_])


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
    factor = _left_factor(matrix, dim)
    return factor @ _directions(dim, factor.shape[1], np.random.default_rng(seed))


def _factor_with_norms(fit: _Fit, dim: int, seed: int) -> np.ndarray:
    """Returns vectors `(V, dim)` of words, whose sums over a text have a norm that is about that of
    the text's TF-IDF weights; a matrix times these sums are the scores of the SVM without bias."""
    factor = _left_factor(fit.matrix, dim)
    rng = np.random.default_rng(seed)
    size, rank = factor.shape
    # A sign for each word and feature: the squares of a text's sums add up to those of its weights.
    norms = fit.idf[:, None] * rng.choice([-1.0, 1.0], (size, dim - 1 - rank))
    norms[fit.counts.getnnz(axis=0) == 0] = 0  # padding, unknown and unseen words
    parts = [SCORED * _scaled(factor, fit.counts), _scaled(norms, fit.counts)]
    return np.concatenate(parts, axis=1) @ _directions(dim, dim - 1, rng)


def _left_factor(matrix: np.ndarray, dim: int) -> np.ndarray:
    """Returns the left factor `(V, R)` of a singular value decomposition, `R` at most `dim - 1`."""
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = min(len(values), dim - 1)
    return left[:, :rank] * np.sqrt(values[:rank])


def _directions(dim: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns orthonormal rows `(count, dim)`, each with a mean of 0."""
    drawn = rng.normal(size=(dim, count))
    basis, _ = np.linalg.qr(np.concatenate([np.ones((dim, 1)), drawn], axis=1))
    return basis[:, 1:].T


def _scaled(vectors: np.ndarray, counts: scipy.sparse.csr_matrix) -> np.ndarray:
    """Returns vectors of words, scaled such that their sums over a text have a mean norm of 1."""
    norm = np.sqrt(np.mean(np.sum(np.square(counts @ vectors), axis=1)))
    return vectors / norm if norm else vectors
