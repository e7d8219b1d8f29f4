"""Starts a text classifier as a linear support vector machine (SVM) of TF-IDF weights.

The scores of an SVM are sums over the words of a text, as are those of a classifier that averages
embeddings of its words. So the embedding and the last layer can start from an SVM that was fitted
to the training part, and the training goes on from there.
"""

import keras
import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from training.classify.config import ClassifyConfig
from training.classify.reports import outputs_of

# Chosen with the recipe, on validation parts.
PENALTY = 0.3  # `C` of scikit-learn's `LinearSVC`
AVERAGE = 0.1  # root mean square of the averages of the embeddings of a text's words
RIDGE = 1e-3  # for each text
ROWS = 100_000  # which limits the memory and the time of the fits


def weights_from_svm(
    config: ClassifyConfig, model: keras.Model, ids: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Returns initial weights with which a classifier scores texts about as a linear SVM does.

    With the SVM's kernel `W` (words by classes), the embedding is a factor of `diag(idf) W`, from
    its singular value decomposition. The last layer is a ridge regression from the features that
    reach it to the SVM's scores. All other weights are drawn as usual.

    Args:
        config: The options.
        model: The classifier, whose weights change.
        ids: The training texts `(R, L)`; the ids 0 and 1 are no words. At most 100,000 of them,
            drawn by the config's seed, are used.
        labels: Their classes `(R,)`. If all are the same, nothing can be fitted, and the weights
            stay as they are.

    Returns:
        The weights in the order of `model.get_weights()`.
    """
    if len(labels) > ROWS:
        rows = np.sort(np.random.default_rng(config.seed).choice(len(labels), ROWS, replace=False))
        ids, labels = ids[rows], labels[rows]
    if len(np.unique(labels)) == 1:
        return model.get_weights()
    embedding, last = model.get_layer("embedding"), model.get_layer("probabilities")
    counts = _counts(ids, embedding.embeddings.shape[0])
    transformer = TfidfTransformer()
    svm = LinearSVC(
        C=PENALTY,
        class_weight=None if config.class_weights == "none" else config.class_weights,
        random_state=config.seed,
    ).fit(transformer.fit_transform(counts), labels)
    kernel, scores = _of_all_classes(svm, transformer.transform(counts), last.units)

    vectors = _factor(kernel * transformer.idf_[:, None], config.embedding_dim, config.seed)
    averages = (counts @ vectors) / np.maximum(counts.sum(axis=1), 1).reshape(-1, 1)
    vectors *= AVERAGE / np.sqrt(np.mean(np.square(averages)))
    embedding.embeddings.assign(vectors.astype("float32"))

    features = outputs_of(keras.Model(model.input, last.input), ids)
    ridge = Ridge(RIDGE * len(labels)).fit(features, scores)
    last.set_weights([ridge.coef_.T, ridge.intercept_])
    return model.get_weights()


def _counts(ids: np.ndarray, vocabulary_size: int) -> scipy.sparse.csr_matrix:
    """Returns how often each text has each word `(R, V)`."""
    rows, places = np.nonzero(ids > 1)
    words = ids[rows, places]
    shape = (len(ids), vocabulary_size)
    return scipy.sparse.csr_matrix((np.ones(len(words), "float32"), (rows, words)), shape)


def _of_all_classes(
    svm: LinearSVC, features: scipy.sparse.csr_matrix, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns kernel `(V, C)` and scores `(R, C)` of all classes, with -1 for those never seen."""
    kernel, scores = svm.coef_.T, svm.decision_function(features)
    if len(svm.classes_) == 2:  # a single score
        kernel, scores = kernel * [-0.5, 0.5], np.stack([-scores, scores], axis=1)
    all_kernels = np.zeros((len(kernel), classes))
    all_scores = np.full((len(scores), classes), -1.0)
    all_kernels[:, svm.classes_], all_scores[:, svm.classes_] = kernel, scores
    return all_kernels, all_scores


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
