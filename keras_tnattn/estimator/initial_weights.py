"""Gives a text classifier the weights of a linear support vector machine (SVM) of TF-IDF weights.

The scores of an SVM are sums over the words of a text, as are those of a classifier that averages
embeddings of its words. So the embedding and the last layer can start from an SVM that was fitted
to the training part, and the training goes on from there. A classifier without an attention can
also be the SVM itself, for texts that teach it nothing beyond that.
"""

import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence

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
SCORED = 0.2
# As `AVERAGE`, where nothing is trained: the layer normalization adds 0.001 to the mean square, and
# the averages of long texts are small.
LARGE_AVERAGE = 10.0
WORD = re.compile(r"\b\w\w+\b")  # scikit-learn's own
UNKNOWN = 2  # ids of padding and of unknown words come before those of words
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
    words = _each_word(model.get_layer("embedding").embeddings.shape[0])
    fit = _fit(settings, ids, labels, words, PENALTY)
    if fit is None:
        return
    vectors = _factor(fit.matrix, settings.embedding_dim, settings.seed)
    if _set_embedding(model, fit, vectors, AVERAGE):
        last = model.get_layer("probabilities")
        regression = Ridge(RIDGE * len(fit.ids))
        regression.fit(_features(model, fit.ids), fit.of_all_classes(fit.scores, last.units, -1))
        last.set_weights([regression.coef_.T, regression.intercept_])


def become_svm(
    settings: Settings,
    model: keras.Model,
    ids: np.ndarray,
    labels: np.ndarray,
    vocabulary: Sequence[str],
) -> bool:
    """Gives a new classifier without an attention the scores of scikit-learn's default linear SVM.

    Its words are those of scikit-learn, of two letters or more: `a` counts for nothing, and so does
    the `s` of `it's`.

    An SVM divides the sum over the words of a text by the norm of the text's TF-IDF weights; the
    classifier, in its layer normalization, by the norm of its features. So most features are random
    projections of the TF-IDF weights, which keep norms nearly, and the last layer reads the scores
    from the few that are left, with the SVM's biases. How many texts are used is said of
    `start_from_svm`. With as many classes as features there is no room for the projections.

    Args:
        settings: The settings.
        model: The classifier.
        ids: The texts, integers `(R, L)`.
        labels: Their classes `(R,)`.
        vocabulary: The words of all ids.

    Returns:
        Whether there is an SVM: not if all texts have one class, or their words say nothing about
        it. All weights stay then.
    """
    words = _words_of_scikit_learn(vocabulary, settings.split)
    fit = _fit(settings, ids, labels, words, DEFAULT_PENALTY)
    if fit is None or not fit.matrix.any():
        return False
    vectors = _factor_with_norms(fit, settings.embedding_dim, settings.seed)
    if not _set_embedding(model, fit, vectors, LARGE_AVERAGE):
        return False
    # The sums over a text times this are its scores without the biases, but for the norm.
    kernel = np.linalg.lstsq(vectors, fit.matrix, rcond=None)[0]
    products = _features(model, fit.ids) @ kernel
    scores = fit.scores - fit.bias
    scale = np.sum(products * scores) / np.sum(np.square(products))
    last = model.get_layer("probabilities")
    kernel = fit.of_all_classes(scale * kernel, last.units, 0)
    bias = fit.of_all_classes(fit.bias[None], last.units, -1)
    last.set_weights([kernel, bias[0]])
    return True


@dataclasses.dataclass(frozen=True)
class _Fit:
    """An SVM, fitted to texts. Its `K` scores are those of the classes, or one for two classes.

    Attributes:
        ids: The texts, integers `(R, L)`.
        counts: How often each text has each id, sparse `(R, V)`.
        lengths: The lengths of the texts `(R, 1)`.
        words: How often each id has each word of the SVM, sparse `(V, W)`.
        idf: The inverse document frequencies of these `(W,)`, 0 for those that no text has.
        matrix: What each id adds to the scores of a text, but for the norm, `(V, K)`.
        bias: The biases `(K,)`.
        scores: The scores `(R, K)`.
        classes: The numbers of the classes of the texts.
    """

    ids: np.ndarray
    counts: scipy.sparse.csr_matrix
    lengths: np.ndarray
    words: scipy.sparse.csr_matrix
    idf: np.ndarray
    matrix: np.ndarray
    bias: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def of_all_classes(self, columns: np.ndarray, number: int, missing: float) -> np.ndarray:
        """Returns columns `(N, K)` as those of all classes, with a value for the missing ones."""
        if len(self.classes) == 2:
            columns = np.concatenate([-columns, columns], axis=1)
        values = np.full((len(columns), number), float(missing))
        values[:, self.classes] = columns
        return values


def _fit(
    settings: Settings,
    ids: np.ndarray,
    labels: np.ndarray,
    words: scipy.sparse.csr_matrix,
    penalty: float,
) -> _Fit | None:
    """Fits an SVM to the TF-IDF weights of at most `ROWS` texts; `None` if all have one class."""
    if len(labels) > ROWS:
        rng = np.random.default_rng(settings.seed)
        rows = np.sort(rng.choice(len(labels), ROWS, replace=False))
        blocks = (ids[rows[start : start + CHUNK]] for start in range(0, ROWS, CHUNK))
        ids, labels = stored_array(blocks, (ROWS, ids.shape[1])), labels[rows]
    if len(np.unique(labels)) == 1 or not words.nnz:
        return None
    counts, lengths = _counts(ids, words.shape[0])
    transformer = TfidfTransformer()
    features = transformer.fit_transform(counts @ words)
    svm = LinearSVC(
        C=penalty,
        class_weight=settings.class_weight,
        random_state=settings.seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is only a start
        svm.fit(features, labels)
    idf = np.where(features.getnnz(axis=0) > 0, transformer.idf_, 0)
    return _Fit(
        ids=ids,
        counts=counts,
        lengths=lengths,
        words=words,
        idf=idf,
        matrix=words @ (svm.coef_.T * idf[:, None]),
        bias=svm.intercept_,
        scores=svm.decision_function(features).reshape(len(ids), -1),
        classes=svm.classes_,
    )


def _set_embedding(model: keras.Model, fit: _Fit, vectors: np.ndarray, average: float) -> bool:
    """Sets the embedding to vectors `(V, dim)`, scaled so that the averages over the words of texts
    have this root mean square. Returns whether they can: not if all are 0."""
    size = np.sqrt(np.mean(np.square((fit.counts @ vectors) / fit.lengths)))
    if size:
        table = (average / size * vectors).astype("float32")
        model.get_layer("embedding").embeddings.assign(table)
    return bool(size)


def _features(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """Returns what reaches the last layer `(R, dim)`."""
    return outputs_of(keras.Model(model.input, model.get_layer("probabilities").input), ids)


def _each_word(vocabulary_size: int) -> scipy.sparse.csr_matrix:
    """Returns the identity: each id is a word."""
    return scipy.sparse.identity(vocabulary_size, "float32", "csr")


def _words_of_scikit_learn(vocabulary: Sequence[str], split: str) -> scipy.sparse.csr_matrix:
    """Returns how often each of `V` ids has each word that scikit-learn finds, `(V, W)`.

    Where each character is a word, and for a letter of a script that has more than ASCII's, where
    it may be one, scikit-learn's rule does not hold.
    """
    if split == "characters":
        return _each_word(len(vocabulary))
    places: dict[str, int] = {}
    rows, columns = [], []
    for row, word in enumerate(vocabulary):
        if row < UNKNOWN:
            continue
        found = WORD.findall(word)
        if not found and not word.isascii():
            found = [word]
        rows += [row] * len(found)
        columns += [places.setdefault(one, len(places)) for one in found]
    ones = np.ones(len(rows), "float32")
    return scipy.sparse.csr_matrix((ones, (rows, columns)), (len(vocabulary), len(places)))


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


def _factor(matrix: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """Returns `A` of shape `(V, dim)`, such that `A B` is a best approximation of the matrix.

    The features have different mixtures of the singular vectors, and each row of `A` has a mean of
    0, so that a layer normalization after an average of rows only changes its scale.
    """
    factor = _left_factor(matrix, dim)
    return factor @ _directions(dim, factor.shape[1], np.random.default_rng(seed))


def _factor_with_norms(fit: _Fit, dim: int, seed: int) -> np.ndarray:
    """Returns vectors `(V, dim)` of ids, whose sums over a text have a norm that is about that of
    the text's TF-IDF weights; a matrix times these sums are the scores of the SVM without bias."""
    factor = _left_factor(fit.matrix, dim)
    rng = np.random.default_rng(seed)
    rank = factor.shape[1]
    # A sign for each word and feature: the squares of a text's sums add up to those of its weights.
    signs = rng.choice([-1.0, 1.0], (len(fit.idf), dim - 1 - rank))
    norms = fit.words @ (fit.idf[:, None] * signs)
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
