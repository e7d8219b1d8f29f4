import keras
import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from training.base.errors import InputError
from training.classify import initial_weights
from training.classify.config import ClassifyConfig
from training.classify.initial_weights import weights_from_svm
from training.classify.reports import outputs_of
from training.classify.train import compiled_model

WORDS = 60
SIZES = {"vocabulary_size": WORDS, "max_words": 12, "embedding_dim": 16}


def labeled_ids(classes=3, rows=120):
    """Texts in which each class has words of its own, and words that all share."""
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % classes
    own = 2 + 10 * labels[:, None] + rng.integers(0, 10, size=(rows, 5))
    shared = rng.integers(2 + 10 * classes, WORDS, size=(rows, 5))
    ids = np.concatenate([own, shared, np.zeros((rows, 2), int)], axis=1)
    return ids.astype("int32"), labels


def started(ids, labels, classes=3, **options):
    config = ClassifyConfig(**SIZES, **options)
    keras.utils.set_random_seed(0)
    model = compiled_model(config, WORDS, classes, 10)
    weights = weights_from_svm(config, model, ids, labels)
    model.set_weights(weights)
    return model


def svm_scores(ids, labels):
    """The scores of scikit-learn's own TF-IDF and SVM, on texts whose words are the ids."""
    texts = [" ".join(f"w{i}" for i in row if i > 1) for row in ids]
    features = TfidfVectorizer().fit_transform(texts)
    svm = LinearSVC(C=initial_weights.PENALTY, random_state=0)
    return svm.fit(features, labels).decision_function(features)


@pytest.mark.parametrize("attention", ["none", "tsa", "tga", "dpa", "rgtn", "sdpa"])
def test_a_classifier_starts_as_the_svm(attention):
    ids, labels = labeled_ids()
    probabilities = outputs_of(started(ids, labels, attention=attention), ids)
    expected = svm_scores(ids, labels)
    assert np.mean(probabilities.argmax(-1) == expected.argmax(-1)) > 0.97
    # The logarithms of the probabilities are the scores but for a number in each row.
    logits = np.log(probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    expected -= expected.mean(axis=1, keepdims=True)
    assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.25 * expected.std()


def test_only_the_embedding_and_the_last_layer_change():
    ids, labels = labeled_ids()
    config = ClassifyConfig(**SIZES)
    keras.utils.set_random_seed(0)
    model = compiled_model(config, WORDS, 3, 10)
    before = model.get_weights()
    changed = [
        not np.array_equal(old, new)
        for old, new in zip(before, weights_from_svm(config, model, ids, labels), strict=True)
    ]
    names = [weight.path.split("/")[0] for weight in model.weights]
    assert {name for name, moved in zip(names, changed, strict=True) if moved} == {
        "embedding",
        "probabilities",
    }


def test_averages_of_the_embedding_have_one_size_and_no_mean():
    ids, labels = labeled_ids()
    vectors = started(ids, labels, attention="none").get_layer("embedding").embeddings
    vectors = keras.ops.convert_to_numpy(vectors)
    averages = np.stack([vectors[row[row > 1]].mean(axis=0) for row in ids])
    assert np.sqrt(np.mean(averages**2)) == pytest.approx(initial_weights.AVERAGE, rel=1e-4)
    np.testing.assert_allclose(vectors.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(vectors[:2], 0, atol=1e-7)  # padding and unknown words


def test_two_classes_and_a_class_without_texts():
    ids, labels = labeled_ids(classes=2)
    probabilities = outputs_of(started(ids, labels, classes=2, attention="none"), ids)
    np.testing.assert_array_equal(probabilities.argmax(-1), labels)
    # Classes 0 and 2 of three: class 1 is never the answer.
    probabilities = outputs_of(started(ids, 2 * labels, attention="none"), ids)
    np.testing.assert_array_equal(probabilities.argmax(-1), 2 * labels)
    assert (probabilities[:, 1] < probabilities.min(axis=1) + 1e-6).mean() > 0.9


def test_a_single_class_keeps_the_drawn_weights():
    ids, labels = labeled_ids()
    config = ClassifyConfig(**SIZES)
    model = compiled_model(config, WORDS, 3, 10)
    before = model.get_weights()
    for old, new in zip(before, weights_from_svm(config, model, ids, 0 * labels), strict=True):
        np.testing.assert_array_equal(old, new)


def test_more_classes_than_the_embedding_can_hold():
    ids, labels = labeled_ids(classes=5)
    config = ClassifyConfig(**{**SIZES, "embedding_dim": 3}, attention="none")
    model = compiled_model(config, WORDS, 5, 10)
    vectors = weights_from_svm(config, model, ids, labels)[0]
    assert np.linalg.matrix_rank(vectors) == 2  # the third dimension is that of the mean, 0
    probabilities = outputs_of(model, ids)
    assert np.mean(probabilities.argmax(-1) == labels) > 0.4  # by chance 0.2


def test_large_tables_are_sampled(monkeypatch):
    ids, labels = labeled_ids()
    monkeypatch.setattr(initial_weights, "ROWS", 60)
    seen = []
    original = LinearSVC.fit

    def fit(self, features, targets, *more):
        seen.append(len(targets))
        return original(self, features, targets, *more)

    monkeypatch.setattr(LinearSVC, "fit", fit)
    probabilities = outputs_of(started(ids, labels, attention="none"), ids)
    assert seen == [60]
    assert np.mean(probabilities.argmax(-1) == labels) > 0.9


def test_balanced_classes_reach_the_svm(monkeypatch):
    ids, labels = labeled_ids()
    seen = []
    original = LinearSVC.__init__

    def init(self, **options):
        seen.append(options["class_weight"])
        original(self, **options)

    monkeypatch.setattr(LinearSVC, "__init__", init)
    started(ids, labels, attention="none", class_weights="balanced")
    assert seen == ["balanced"]


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "paper"},
        {"embedding": "tensor_train"},
        {"hidden_units": 5},
        {"embedding_dim": 1},
    ],
)
def test_the_default_is_random_where_an_svm_does_not_fit(options):
    assert ClassifyConfig().initial_weights == "svm"
    assert ClassifyConfig(**options).initial_weights == "random"
    if options == {"recipe": "paper"}:
        options = {"recipe": "paper", "hidden_units": 20}
    with pytest.raises(InputError, match="initial_weights='svm'"):
        ClassifyConfig(**options, initial_weights="svm")
