import json

import keras
import numpy as np
import pytest
from run_folders import EXPORTS, exporting, interrupted_after
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from keras_tnattn.estimator import keeping
from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.initial_weights import _words_of_scikit_learn, become_svm
from keras_tnattn.estimator.keeping import best_scale, keep_better
from keras_tnattn.estimator.settings import Settings
from keras_tnattn.text.words import learn_words
from keras_tnattn_train.classify import train
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.cli import train as main
from keras_tnattn_train.runs.run import Run

WORDS = 400
VOCABULARY = ["", "[UNK]", *(f"w{i}" for i in range(2, WORDS))]
SETTINGS = Settings(max_words=40, vocabulary_size=WORDS)


def labeled_ids(rows, seed, classes=3):
    """Texts of 3 to 40 words, of frequencies like those of a language; classes of unequal size."""
    rng = np.random.default_rng(seed)
    labels = np.minimum(rng.geometric(0.5, rows) - 1, classes - 1)
    shares = 1 / np.arange(2, WORDS)
    ids = np.zeros((rows, 40), "int32")
    for row, label in zip(ids, labels, strict=True):
        weights = shares * np.where(np.arange(2, WORDS) % (2 * classes) == label, 5, 1)
        length = rng.integers(3, 41)
        row[:length] = rng.choice(np.arange(2, WORDS), length, p=weights / weights.sum())
    return ids, labels


def built(classes=3):
    return compiled_model(SETTINGS, WORDS, classes, 10)


def fitted_svm(ids, labels):
    """scikit-learn's own TF-IDF and SVM with their defaults; returns a function from ids."""
    vectorizer, svm = TfidfVectorizer(), LinearSVC(random_state=0)

    def texts(ids):
        return [" ".join(f"w{i}" for i in row if i) for row in ids]

    svm.fit(vectorizer.fit_transform(texts(ids)), labels)
    return lambda ids: svm.decision_function(vectorizer.transform(texts(ids)))


def test_a_classifier_is_the_svm_on_new_texts():
    ids, labels = labeled_ids(300, seed=0)
    new, _ = labeled_ids(500, seed=1)
    model = built()
    become_svm(SETTINGS, model, ids, labels, VOCABULARY)
    expected = fitted_svm(ids, labels)(new)
    probabilities = outputs_of(model, new)
    assert np.mean(probabilities.argmax(-1) == expected.argmax(-1)) > 0.95
    logits = np.log(probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    expected -= expected.mean(axis=1, keepdims=True)
    # The scores themselves, with their biases, also for long and short texts.
    for part in (np.count_nonzero(new, axis=1) < 12, np.count_nonzero(new, axis=1) > 30):
        assert np.corrcoef(logits[part].ravel(), expected[part].ravel())[0, 1] > 0.97
        assert logits[part].std() == pytest.approx(expected[part].std(), rel=0.1)


def test_a_classifier_of_two_classes_is_the_svm():
    ids, labels = labeled_ids(300, seed=0, classes=2)
    new, _ = labeled_ids(500, seed=1, classes=2)
    model = built(classes=2)
    become_svm(SETTINGS, model, ids, labels, VOCABULARY)
    expected = fitted_svm(ids, labels)(new) > 0
    assert np.mean(outputs_of(model, new).argmax(-1) == expected) > 0.95


def sentences(rows, seed):
    """Texts of words with and without apostrophes, of one letter and of many, short and long."""
    rng = np.random.default_rng(seed)
    common = ["it's", "don't", "'tis", "a", "I", "7", "the", "of", "café", "o'clock's"]
    labels = rng.integers(0, 3, rows)
    texts = []
    for label in labels:
        topic = [f"t{label}{i}{suffix}" for i in range(20) for suffix in ("", "'s")]
        length = rng.choice([4, 20, 300])
        words = rng.choice([*topic, *(f"w{i}" for i in range(300)), *(common * 20)], length)
        texts.append(" ".join(words))
    return texts, labels


def test_its_words_are_those_of_scikit_learn():
    (texts, labels), (new, _) = sentences(300, seed=0), sentences(600, seed=1)
    vectorizer = learn_words(texts, max_words=300)
    settings = Settings(vocabulary_size=1000)
    model = compiled_model(settings, vectorizer.vocabulary_size(), 3, 10)
    become_svm(settings, model, vectorizer(texts), labels, vectorizer.get_vocabulary())
    svm = make_pipeline(TfidfVectorizer(), LinearSVC(random_state=0)).fit(texts, labels)
    expected = svm.decision_function(new)
    logits = np.log(outputs_of(model, vectorizer(new)))
    assert np.mean(logits.argmax(-1) == expected.argmax(-1)) > 0.97
    logits -= logits.mean(axis=1, keepdims=True)
    expected -= expected.mean(axis=1, keepdims=True)
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.98


def test_a_letter_may_be_a_word_of_other_scripts():
    vocabulary = ["", "[UNK]", "a", "it\u2019s", "it", "\u6211", "don", "_"]
    words = _words_of_scikit_learn(vocabulary, "words").toarray().tolist()
    assert words == [[0] * 3, [0] * 3, [0] * 3, [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0] * 3]
    assert _words_of_scikit_learn(vocabulary, "characters").diagonal().tolist() == [1] * 8


def test_a_class_without_texts_is_not_predicted():
    ids, labels = labeled_ids(300, seed=0)
    for missing in (0, 2):
        model = built(classes=4 - missing)
        kept = labels != missing
        become_svm(SETTINGS, model, ids[kept], labels[kept], VOCABULARY)
        predicted = outputs_of(model, ids).argmax(-1)
        assert missing not in predicted
        assert len(np.unique(predicted)) == 2


def test_texts_without_words_leave_finite_weights():
    ids, labels = labeled_ids(40, seed=0)
    model = built()
    assert not become_svm(SETTINGS, model, np.ones_like(ids), labels, VOCABULARY)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    ("gained", "lost", "weights"),
    [
        (5, 0, "trained"),  # 5 > 2 * sqrt(5)
        (4, 0, "svm"),  # 4 is not more than 2 * sqrt(4)
        (8, 1, "trained"),  # 7 > 2 * sqrt(9)
        (7, 1, "trained"),  # 6 > 2 * sqrt(8)
        (7, 2, "svm"),  # 5 < 2 * sqrt(9)
        (0, 20, "svm"),
        (0, 0, "svm"),
    ],
)
def test_training_has_to_be_clearly_better(monkeypatch, gained, lost, weights):
    ids, labels = labeled_ids(60, seed=2)
    train_part = labeled_ids(200, seed=0)
    trained = object()
    rows = np.arange(60)
    wrong_by_svm, wrong_by_training = rows < gained, rows >= 60 - lost

    def outputs(model, ids):
        wrong = wrong_by_training if model is trained else wrong_by_svm
        return np.eye(3)[(labels + wrong) % 3]

    monkeypatch.setattr(keeping, "outputs_of", outputs)
    model, kept = keep_better(SETTINGS, built, trained, train_part, (ids, labels), VOCABULARY)
    assert kept.weights == weights
    assert (model is trained) == (weights == "trained")
    assert kept.svm_validation_accuracy == pytest.approx(1 - gained / 60, abs=1e-4)
    assert kept.trained_validation_accuracy == pytest.approx(1 - lost / 60, abs=1e-4)


def test_texts_of_one_class_keep_the_trained_weights():
    ids, labels = labeled_ids(40, seed=0)
    trained = built()
    parts = (ids, np.zeros_like(labels)), (ids, labels)
    model, kept = keep_better(SETTINGS, built, trained, *parts, VOCABULARY)
    assert model is trained
    assert kept is None


def test_a_kept_svm_has_seen_the_validation_part_and_knows_how_sure_it_is():
    ids, labels = labeled_ids(200, seed=0)
    validation = labeled_ids(100, seed=2)
    model, kept = keep_better(SETTINGS, built, built(), (ids, labels), validation, VOCABULARY)
    assert kept.weights == "svm"
    whole = (np.concatenate([ids, validation[0]]), np.concatenate([labels, validation[1]]))
    expected = fitted_svm(*whole)(validation[0])
    probabilities = outputs_of(model, validation[0])
    assert np.mean(probabilities.argmax(-1) == expected.argmax(-1)) > 0.97
    # Of new texts it is right about as often as it says.
    new, truth = labeled_ids(1000, seed=3)
    probabilities = outputs_of(model, new)
    right = np.mean(probabilities.argmax(-1) == truth)
    assert probabilities.max(-1).mean() == pytest.approx(right, abs=0.08)


def test_the_scale_is_that_of_the_scores():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_000, 3))
    labels = np.array([rng.choice(3, p=p) for p in softmax(4 * scores, axis=1)])
    assert best_scale(scores, labels) == pytest.approx(4, rel=0.05)


def test_scores_that_are_always_right_do_not_become_certain():
    labels = np.arange(18) % 3
    scale = best_scale(np.eye(3)[labels], labels)
    assert softmax(scale * np.eye(3)[0])[0] == pytest.approx(19 / 20, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "tsa"},
        {"validation_fraction": 0.0},
        {"initial_weights": "random"},
        {"recipe": "paper", "attention": "none", "validation_fraction": 0.1},
        {"position_encoding": "sinusoidal"},
    ],
)
def test_what_is_no_svm_keeps_the_trained_weights(options):
    assert ClassifyConfig().settings.may_keep_svm
    assert not ClassifyConfig(**options).settings.may_keep_svm


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    words = {"a": ["red", "blue", "green", "grey"], "b": ["one", "two", "three", "four"]}
    rows = [
        " ".join(rng.choice([*words["ab"[i % 2]], "the"], 6)) + f",{'ab'[i % 2]}"
        for i in range(200)
    ]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return str(path)


def arguments(table, folder, *more):
    sizes = ["--epochs", "2", "--vocabulary-size", "20", "--embedding-dim", "8"]
    return ["classify", "--dataset", table, "--run-dir", str(folder), *sizes, *more]


def test_a_run_says_what_it_keeps(table, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(arguments(table, folder, *exporting(tmp_path / "saved"))) == 0
    assert "kept: the linear SVM as the weights of the model" in capsys.readouterr().out
    results = Run(folder).results
    kept = results["kept"]
    assert kept["weights"] == "svm"
    assert kept["svm_validation_accuracy"] > 0.9
    assert results["test_accuracy"] > 0.9
    if EXPORTS:
        (card,) = (tmp_path / "saved").glob("*/1/assets.extra/model_card.json")
        assert json.loads(card.read_text())["kept"] == kept


def test_weights_that_are_clearly_better_are_kept(table, tmp_path, monkeypatch, capsys):
    def answer_one_class(settings, model, ids, labels, vocabulary):
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
        return True

    monkeypatch.setattr(keeping, "become_svm", answer_one_class)
    folder = tmp_path / "run"
    assert main(arguments(table, folder)) == 0
    assert "kept: the trained weights" in capsys.readouterr().out
    results = Run(folder).results
    assert results["kept"]["weights"] == "trained"
    assert results["test_accuracy"] > 0.9


def test_a_resumed_run_keeps_the_same(table, tmp_path, monkeypatch):
    assert main(arguments(table, tmp_path / "whole")) == 0
    folder = tmp_path / "run"
    interrupted_after(1, arguments(table, folder), monkeypatch)
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    models = [keras.models.load_model(tmp_path / name / "model.keras") for name in ("whole", "run")]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    kept = [Run(tmp_path / name).results["kept"] for name in ("whole", "run")]
    assert kept[0] == kept[1]


def test_words_of_the_validation_part_are_known_to_an_svm(table):
    data = train.LabeledTexts.from_rows([(f"common word{i}", "ab"[i % 2]) for i in range(40)])
    sizes = []
    for attention in ("none", "dpa"):
        config = ClassifyConfig(attention=attention)
        sizes.append(train.prepare_parts(config, data)[0].vocabulary_size())
    assert sizes == [3 + 32, 3 + 28]
