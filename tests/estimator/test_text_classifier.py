"""The estimator in scikit-learn's tools, and beside the command that trains it."""

import pickle
import random

import keras
import numpy as np
import pytest
from import_path import run_python
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from keras_tnattn import TensorizedSpectralAttention, TextClassifier
from keras_tnattn.estimator import text_classifier
from keras_tnattn.estimator.building import compiled_model
from keras_tnattn.estimator.settings import Settings
from keras_tnattn_train.classify.config import ATTENTIONS, ClassifyConfig
from keras_tnattn_train.cli import train as main
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.labeled import split_rows
from keras_tnattn_train.runs.training import reset_session

# The guide in docs/ and the tests of `classify` train it as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")
WORDS = {"fruit": ["apple", "pear", "plum", "fig"], "tool": ["saw", "axe", "file", "drill"]}


def labeled_texts(rows=80):
    rng = np.random.default_rng(0)
    labels = [["fruit", "tool"][i % 2] for i in range(rows)]
    return [" ".join(rng.choice([*WORDS[label], "the", "a"], 6)) for label in labels], labels


TEXTS, LABELS = labeled_texts()


def small(**arguments):
    return TextClassifier(**{"epochs": 1, "random_state": 0, **arguments})


@pytest.fixture(scope="module")
def fitted():
    return small().fit(TEXTS, LABELS)


def test_it_learns(fitted):
    assert fitted.classes_.tolist() == ["fruit", "tool"]
    assert fitted.predict(["a pear", "the axe", "THE PLUM!"]).tolist() == ["fruit", "tool", "fruit"]
    assert fitted.score(TEXTS, LABELS) == 1
    assert fitted.kept_.weights == "svm"
    probabilities = fitted.predict_proba(["a pear", "", "of no known word"])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert probabilities[0, 0] > 0.6
    np.testing.assert_allclose(probabilities[1], probabilities[2], atol=1e-6)
    ids = fitted.vectorizer_(["a pear"])
    np.testing.assert_allclose(
        fitted.model.predict(ids, verbose=0), probabilities[:1], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    "labels", [np.array([3, 7] * 40), [True, False] * 40, np.array(["a", "b"] * 40, object)]
)
def test_labels_come_back_as_they_were(labels):
    predicted = small().fit(TEXTS, labels).predict(TEXTS[:2])
    assert predicted.tolist() == list(labels[:2])
    assert predicted.dtype == np.asarray(labels).dtype


@pytest.mark.parametrize("attention", ["tsa", TensorizedSpectralAttention(num_heads=2)])
def test_an_attention_trains_and_stays_as_it_was(attention):
    classifier = small(attention=attention)
    assert classifier.fit(TEXTS, LABELS).score(TEXTS, LABELS) > 0.9
    layer = classifier.model.get_layer("attention")
    assert isinstance(layer, TensorizedSpectralAttention)
    assert layer is not attention
    assert attention == "tsa" or not attention.built
    assert classifier.kept_ is None


def test_a_random_state_repeats_it_and_leaves_the_generators_alone():
    random.seed(5)
    before = random.getstate()
    weights = [small(attention="rgtn").fit(TEXTS, LABELS).model.get_weights() for _ in range(2)]
    assert random.getstate() == before
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    other = small(attention="rgtn", random_state=1).fit(TEXTS, LABELS).model.get_weights()
    assert not np.array_equal(weights[0][0], other[0])
    seeds = {text_classifier._seed(None) for _ in range(3)}
    assert len(seeds) == 3
    generators = [np.random.RandomState(3) for _ in range(2)]
    assert len({text_classifier._seed(generator) for generator in generators}) == 1


def test_copies_predict_the_same(fitted, tmp_path):
    expected = fitted.predict_proba(TEXTS)
    fitted.save(tmp_path / "small.zip")
    loaded = TextClassifier.load(tmp_path / "small.zip")
    for copy in (pickle.loads(pickle.dumps(fitted)), loaded):
        np.testing.assert_allclose(copy.predict_proba(TEXTS), expected, rtol=1e-5)
        assert copy.get_params() == fitted.get_params()
        assert copy.classes_.tolist() == fitted.classes_.tolist()
        assert copy.classes_.dtype == fitted.classes_.dtype
        assert copy.kept_ == fitted.kept_
    assert loaded.fit(TEXTS, [1, 2] * 40).predict(TEXTS[:1]).tolist() == [1]


def test_a_layer_is_saved_with_the_classifier(tmp_path):
    layer = TensorizedSpectralAttention(num_heads=2, tt_ranks=3)
    classifier = small(attention=layer, random_state=np.random.RandomState(0))
    classifier.fit(TEXTS, LABELS).save(tmp_path / "small.zip")
    loaded = TextClassifier.load(tmp_path / "small.zip")
    assert loaded.attention.get_config() == layer.get_config()
    assert loaded.random_state is None
    np.testing.assert_allclose(
        loaded.predict_proba(TEXTS), classifier.predict_proba(TEXTS), rtol=1e-5
    )


def test_numbers_of_numpy_are_saved(tmp_path):
    arguments = {"epochs": np.int64(1), "random_state": np.int32(7), "verbose": np.int64(0)}
    small(**arguments).fit(TEXTS, LABELS).save(tmp_path / "small.zip")
    loaded = TextClassifier.load(tmp_path / "small.zip")
    assert {name: loaded.get_params()[name] for name in arguments} == arguments


def test_a_file_is_replaced_only_if_asked_for(fitted, tmp_path, monkeypatch):
    path = tmp_path / "small.zip"
    path.write_text("before")
    with pytest.raises(FileExistsError, match=r"small\.zip, which exists. Pass overwrite=True"):
        fitted.save(path)
    with pytest.raises(FileExistsError, match=r"which exists$"):
        fitted.save(tmp_path, overwrite=True)
    with pytest.raises(FileNotFoundError, match="a folder that exists"):
        fitted.save(tmp_path / "none" / "small.zip")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(OSError, match=r"No space left.*Make room: '.*test_a_file"):
            fitted.save(path, overwrite=True)
    assert path.read_text() == "before"
    link = tmp_path / "link.zip"
    link.symlink_to(path)
    fitted.save(str(link), overwrite=True)
    assert link.is_symlink()
    assert TextClassifier.load(path).predict(["a pear"]).tolist() == ["fruit"]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["link.zip", "small.zip"]


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.zip").write_text("something else")
    with pytest.raises(ValueError, match=r"a file that TextClassifier\.save wrote"):
        TextClassifier.load(tmp_path / "other.zip")


def test_scikit_learn_searches_and_validates_it():
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [t.upper() for t in texts]), small())
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).min() > 0.9
    search = GridSearchCV(small(), {"class_weight": [None, "balanced"]}, cv=2, error_score="raise")
    search.fit(np.array(TEXTS), np.array(LABELS))
    assert search.best_score_ > 0.9
    assert search.predict(["a pear"]).tolist() == ["fruit"]
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


class Unknown:
    """A missing value whose comparisons have no truth, as that of pandas."""

    def __ne__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value is ambiguous")

    def __repr__(self):
        return "unknown"


def test_texts_and_labels_may_be_read_once():
    classifier = small().fit(iter(TEXTS), iter(LABELS))
    assert classifier.predict(iter(TEXTS[:2])).tolist() == LABELS[:2]


@pytest.mark.parametrize(
    ("texts", "labels", "error", "said"),
    [
        ([], [], ValueError, "at least one text"),
        (["", "?!"] * 5, [0, 1] * 5, ValueError, "at least one word"),
        (TEXTS, ["x"] * 80, ValueError, "two classes.*one class, 'x', for all of 80 texts"),
        (TEXTS, np.array(["x"] * 80), ValueError, "one class, 'x', for"),
        (TEXTS[:9], list(range(9)), ValueError, "of two texts.*different labels as texts, 9"),
        (TEXTS, ["a", 1] * 40, ValueError, r"of one type.*labels\[0\]='a' and labels\[1\]=1$"),
        (TEXTS, [True, "a"] * 40, ValueError, r"labels\[0\]=True and labels\[1\]='a'$"),
        (TEXTS, ["a", Unknown()] * 40, ValueError, r"labels\[1\]=unknown. Leave out"),
        (TEXTS, LABELS[:-1], ValueError, "as many labels as texts.*80 texts, 79 labels"),
        (TEXTS, [["a"], ["b"]] * 40, ValueError, r"labels\[0\]=\['a'\] of type list"),
        (TEXTS, [["a"], ["b", "c"]] * 40, ValueError, r"labels\[0\]=\['a'\] of type list"),
        (TEXTS, np.ones((80, 2)), ValueError, r"an array of shape \(80, 2\)"),
        (TEXTS, "ab" * 40, ValueError, "one label for each text"),
        (TEXTS, [None, "a"] * 40, ValueError, r"labels\[0\]=None"),
        (TEXTS, ["a", float("nan")] * 40, ValueError, r"labels\[1\]=nan"),
        (TEXTS, np.linspace(0, 1, 80), ValueError, "Unknown label type"),
        (set(TEXTS), LABELS, TypeError, r"list. Received: texts=\{.*a set, whose order is not"),
        (frozenset(TEXTS), LABELS, TypeError, "texts=.*a frozenset, whose order is not"),
        (dict(enumerate(TEXTS)), LABELS, TypeError, r"a dict. Pass list\(texts.values\(\)\)"),
        (TEXTS, set(LABELS), TypeError, r"list. Received: labels=\{.*a set, whose order is not"),
        (TEXTS, dict(enumerate(LABELS)), TypeError, r"a dict. Pass list\(labels.values\(\)\)"),
        (TEXTS[0], LABELS, TypeError, "a list of texts"),
        (None, LABELS, TypeError, "a list of texts. Received: texts=None"),
        (5, LABELS, TypeError, "texts=5"),
        (TEXTS, None, ValueError, "one label for each text. Received: None"),
        ([1.5] * 80, LABELS, TypeError, r"texts\[0\]=1.5 of type float"),
        ([b"bytes"] * 80, LABELS, TypeError, r"texts\[0\]=b'bytes' of type bytes"),
        (np.array([TEXTS, TEXTS]).T, LABELS, TypeError, r"an array of shape \(80, 2\)"),
    ],
)
def test_what_it_cannot_learn_from(texts, labels, error, said):
    with pytest.raises(error, match=said):
        small().fit(texts, labels)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"attention": "self"}, ValueError, "attention='self'"),
        ({"attention": 3}, TypeError, "attention=3"),
        ({"class_weight": "equal"}, ValueError, "class_weight='equal'$"),
        ({"class_weight": {"tool": 2}}, ValueError, "class_weight={'tool': 2}. Repeat the texts"),
        ({"verbose": "x"}, ValueError, "0, 1 or 2. Received: verbose='x'"),
        ({"random_state": -1}, ValueError, "Seed must be between 0"),
        ({"split": "lines"}, ValueError, "split='lines'"),
        ({"vocabulary_size": 2}, ValueError, "vocabulary_size=2"),
        ({"epochs": 0}, ValueError, "epochs=0"),
        ({"random_state": "x"}, ValueError, "'x' cannot be used to seed"),
    ],
)
def test_arguments_out_of_range(arguments, error, said):
    with pytest.raises(error, match=said):
        small(**arguments).fit(TEXTS, LABELS)


def test_what_needs_a_fit_says_so(fitted, tmp_path):
    calls = [
        lambda classifier: classifier.predict(TEXTS),
        lambda classifier: classifier.predict_proba(TEXTS),
        lambda classifier: classifier.model,
        lambda classifier: classifier.save(tmp_path / "small.zip", overwrite=True),
    ]
    for call in calls:
        call(fitted)
        with pytest.raises(NotFittedError):
            call(clone(fitted))


def test_an_interrupted_training_leaves_no_classifier(monkeypatch):
    classifier = small().fit(TEXTS, LABELS)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(TEXTS, LABELS)
    with pytest.raises(NotFittedError):
        classifier.predict(TEXTS)


def test_a_diverging_training_is_an_error(monkeypatch):
    monkeypatch.setattr(
        TextClassifier,
        "_start_from_svm",
        lambda self, model, training: model.set_weights(
            [np.full_like(weight, np.nan) for weight in model.get_weights()]
        ),
    )
    with pytest.raises(FloatingPointError, match="diverged"):
        small().fit(TEXTS, LABELS)


def test_it_is_silent_unless_asked(capsys):
    small().fit(TEXTS, LABELS)
    assert capsys.readouterr().out == ""
    small(verbose=2).fit(TEXTS, LABELS)
    printed = capsys.readouterr().out
    assert "texts are read whole" in printed
    assert "val_accuracy" in printed
    assert "kept: the linear SVM" in printed


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_it_has_the_settings_of_the_command(attention):
    settings = TextClassifier(
        None if attention == "none" else attention, random_state=0
    )._settings()
    of_command = ClassifyConfig(attention=attention).settings
    configs = []
    for one in (settings, of_command):
        reset_session(0)  # the seeds of initializers are in the configs, and names are numbered
        configs.append(compiled_model(one, 30, 2, 5).get_config())
    assert configs[0] == configs[1]
    ours, theirs = (dict(vars(s), attention_options=None) for s in (settings, of_command))
    assert ours == theirs


def test_the_defaults_are_those_of_the_command():
    assert Settings() == ClassifyConfig().settings


@pytest.mark.parametrize("attention", ["none", "rgtn"])
def test_the_command_trains_the_same_classifier(attention, tmp_path):
    lines = [f"{text},{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *lines]) + "\n")
    options = ["--epochs", "1", "--attention", attention, "--run-dir", str(tmp_path / "run")]
    assert main(["classify", "--dataset", str(table), *options]) == 0
    data = load_texts(str(table))
    rows = split_rows(data.labels, 0.2, seed=0)[0]
    keras.utils.clear_session()
    classifier = small(attention=None if attention == "none" else attention)
    classifier.fit([data.texts[row] for row in rows], data.labels[rows])
    of_command = keras.models.load_model(tmp_path / "run/model.keras")
    for ours, theirs in zip(classifier.model.get_weights(), of_command.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_it_needs_no_tensorflow(backend):
    pytest.importorskip(backend)
    code = (
        "import sys; sys.modules['tensorflow'] = None; from keras_tnattn import TextClassifier; "
        "c = TextClassifier(epochs=1).fit(['yes a', 'no b'] * 9, [1, 0] * 9); "
        "print(c.predict(['yes', 'no']))"
    )
    assert run_python("-c", code, backend=backend).stdout.strip() == "[1 0]"


def test_the_package_needs_no_scikit_learn():
    code = "import sys; sys.modules['sklearn'] = None; import keras_tnattn"
    run_python("-c", code, backend="numpy")
    done = run_python("-c", f"{code}; keras_tnattn.TextClassifier", backend="numpy", status=1)
    assert "TextClassifier needs sklearn, which is not installed" in done.stderr
    assert "pip install '.[train]'" in done.stderr
