import keras
import numpy as np
import pytest
from conformance import assert_same_arrays
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from keras_tnattn.estimator import initial_weights
from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.initial_weights import start_from_svm, svm_weights
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError

WORDS = 60
SIZES = {"vocabulary_size": WORDS, "max_words": 16, "embedding_dim": 16}


def labeled_ids(classes=3, rows=150):
    """Texts of 4 to 14 tokens: words that are more frequent in a class, and unknown ones (id 1).

    The word with id `n` is about `n` times rarer than the first, so that the inverse document
    frequencies differ.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    ids = np.zeros((rows, 16), "int32")
    shares = 1 / np.arange(2, WORDS)
    for row, label in zip(ids, labels, strict=True):
        weights = shares * np.where(np.arange(2, WORDS) % classes == label, 4, 1)
        length = rng.integers(4, 15)
        row[:length] = rng.choice(np.arange(2, WORDS), length, p=weights / weights.sum())
        row[: length // 4] = 1
    return ids, labels


def made(classes=3, **options):
    settings = ClassifyConfig(**{**SIZES, **options}).settings
    keras.utils.set_random_seed(0)
    return settings, compiled_model(settings, WORDS, classes, 10)


def started(ids, labels, classes=3, **options):
    config, model = made(classes, **options)
    start_from_svm(config, model, ids, labels)
    return model


def fitted_svm(ids, labels):
    """scikit-learn's own TF-IDF and SVM, on texts whose words are the ids: matrix and scores."""
    texts = [" ".join(f"w{i}" for i in row if i > 1) for row in ids]
    vectorizer = TfidfVectorizer()
    features = vectorizer.fit_transform(texts)
    svm = LinearSVC(C=0.3, random_state=0).fit(features, labels)
    matrix = np.zeros((WORDS, len(svm.coef_)))
    for word, place in vectorizer.vocabulary_.items():
        matrix[int(word[1:])] = svm.coef_[:, place] * vectorizer.idf_[place]
    return matrix, svm.decision_function(features)


@pytest.mark.parametrize("attention", ["none", "tsa", "tga", "dpa", "rgtn", "sdpa"])
def test_a_classifier_starts_as_the_svm(attention):
    ids, labels = labeled_ids()
    probabilities = outputs_of(started(ids, labels, attention=attention), ids)
    _, expected = fitted_svm(ids, labels)
    assert np.mean(probabilities.argmax(-1) == expected.argmax(-1)) > 0.9
    # The logarithms of the probabilities are the scores but for a number in each row.
    logits = np.log(probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    expected -= expected.mean(axis=1, keepdims=True)
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.9
    assert logits.std() == pytest.approx(expected.std(), rel=0.15)


def test_the_embedding_is_a_factor_of_the_weighted_kernel():
    ids, labels = labeled_ids()
    vectors = started(ids, labels, attention="none").get_weights()[0]
    matrix, _ = fitted_svm(ids, labels)
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    factor = left * np.sqrt(values)
    # Up to a rotation and a scale, so with the same products of rows.
    products, expected = vectors @ vectors.T, factor @ factor.T
    scale = np.sum(products * expected) / np.sum(expected**2)
    np.testing.assert_allclose(products, scale * expected, atol=1e-4 * np.abs(products).max())


def test_the_embedding_of_two_classes():
    ids, labels = labeled_ids(classes=2)
    model = started(ids, labels, classes=2, attention="none")
    matrix, scores = fitted_svm(ids, labels)
    left, values, _ = np.linalg.svd(model.get_weights()[0])
    np.testing.assert_allclose(values[1:], 0, atol=1e-5)
    expected = matrix[:, 0] / np.linalg.norm(matrix)
    np.testing.assert_allclose(np.abs(left[:, 0]), np.abs(expected), atol=1e-4)
    probabilities = outputs_of(model, ids)
    assert np.mean(probabilities.argmax(-1) == (scores > 0)) > 0.95


def test_only_the_embedding_and_the_last_layer_change():
    ids, labels = labeled_ids()
    config, model = made(attention="tsa")
    before = model.get_weights()
    start_from_svm(config, model, ids, labels)
    moved = {
        weight.path.split("/")[0]
        for weight, old, new in zip(model.weights, before, model.get_weights(), strict=True)
        if not np.array_equal(old, new)
    }
    assert moved == {"embedding", "probabilities"}


def test_the_averages_have_one_size_and_no_mean():
    ids, labels = labeled_ids()
    model = started(ids, labels, attention="none")
    vectors = model.get_weights()[0]
    np.testing.assert_allclose(vectors.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(vectors[:2], 0, atol=1e-7)  # padding and unknown words
    # Unknown words count as tokens, in the model as well.
    averages = keras.Model(model.input, model.get_layer("pooling").output)
    size = np.sqrt(np.mean(outputs_of(averages, ids) ** 2))
    assert size == pytest.approx(0.1, rel=1e-4)


def test_a_class_without_texts_is_not_the_answer():
    ids, labels = labeled_ids(classes=2)
    probabilities = outputs_of(started(ids, 2 * labels, attention="none"), ids)
    assert np.mean(probabilities.argmax(-1) == 2 * labels) > 0.8
    assert 1 not in probabilities.argmax(-1)


@pytest.mark.parametrize("case", ["one class", "unknown words", "one text", "no words"])
def test_what_tells_nothing_leaves_finite_weights(case):
    ids, labels = labeled_ids()
    if case == "one class":
        labels = np.zeros_like(labels)
    elif case == "one text":
        ids = np.broadcast_to(ids[:1], ids.shape)
    else:
        ids = np.full_like(ids, case == "unknown words")
    config, model = made(attention="none")
    before = model.get_weights()
    start_from_svm(config, model, ids, labels)
    after = model.get_weights()
    assert all(np.isfinite(weight).all() for weight in after)
    if case != "one text":  # whose kernel may be rounding errors instead of zeros
        assert_same_arrays(before, after)


def test_large_tables_are_sampled_and_counted_in_blocks(monkeypatch):
    ids, labels = labeled_ids()
    order = np.argsort(labels, kind="stable")  # the first rows are of one class
    monkeypatch.setattr(initial_weights, "ROWS", 90)
    monkeypatch.setattr(initial_weights, "CHUNK", 20)
    sizes = []
    fit = LinearSVC.fit

    def spy(self, features, targets):
        sizes.append((features.shape, np.bincount(targets)))
        return fit(self, features, targets)

    monkeypatch.setattr(LinearSVC, "fit", spy)
    model = started(ids[order], labels[order], attention="none")
    ((shape, classes),) = sizes
    assert shape == (90, WORDS)
    assert classes.min() > 15
    assert np.mean(outputs_of(model, ids).argmax(-1) == labels) > 0.7


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_the_options_of_the_svm(monkeypatch, class_weights):
    ids, labels = labeled_ids()
    calls = []
    init = LinearSVC.__init__

    def spy(self, **options):
        calls.append(options)
        init(self, **options)

    monkeypatch.setattr(LinearSVC, "__init__", spy)
    started(ids, labels, attention="none", class_weights=class_weights, seed=5)
    expected = None if class_weights == "none" else "balanced"
    assert calls == [{"C": 0.3, "class_weight": expected, "random_state": 5}]


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "paper", "feedforward_dim": 20},
        {"embedding": "tensor_train"},
        {"feedforward_dim": 5},
        {"embedding_dim": 1},
    ],
)
def test_the_default_is_random_where_an_svm_does_not_fit(options):
    assert ClassifyConfig().initial_weights == "svm"
    assert ClassifyConfig(**options).initial_weights == "random"
    with pytest.raises(InputError, match="initial_weights='svm'"):
        ClassifyConfig(**options, initial_weights="svm")


def test_a_distribution_is_set_aside_for_the_fit_alone():
    ids, labels = labeled_ids()
    config, model = made()
    during = []

    def build():
        during.append(keras.distribution.distribution())
        return made()[1]

    distribution = object()  # what the devices are does not matter
    keras.distribution.set_distribution(distribution)
    try:
        weights = svm_weights(config, build, ids, labels)
        assert keras.distribution.distribution() is distribution
    finally:
        keras.distribution.set_distribution(None)
    assert during == [None]
    start_from_svm(config, model, ids, labels)
    assert_same_arrays(weights, model.get_weights(), rtol=1e-5, atol=1e-6)
