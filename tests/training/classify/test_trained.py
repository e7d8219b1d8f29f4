"""What `evaluate` and `explain` say of a classifier and of its compressed model."""

import json
import re
import shutil

import numpy as np
import pytest
from import_path import run_python
from run_folders import assert_refused
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC

from keras_tnattn_train.classify.evaluate import _scores
from keras_tnattn_train.cli import main
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.labeled import split_rows

# test_train.py trains as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")
WORDS = {"a": ["red", "blue", "green"], "b": ["one", "two", "three"], "c": ["cat", "dog", "cow"]}
OPTIONS = "--embedding-dim 8 --epochs 1 --batch-size 16 --jit-compile off"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a table whose labels are wrong in one of five rows, with its compressed model."""
    folder = tmp_path_factory.mktemp("classifier")
    rng = np.random.default_rng(0)
    lines = ["body,topic"]
    for i in range(150):
        words = rng.choice([*WORDS["abc"[i % 3]], "the", "of"], 5)
        lines.append(f"{' '.join(words)},{rng.choice(list('abc')) if i % 5 == 0 else 'abc'[i % 3]}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    table = ["--dataset", str(folder / "table.csv"), "--text-column", "body"]
    options = [*table, "--label-column", "topic", *OPTIONS.split(), "--attention", "tsa"]
    assert main(["classify", *options, "--run-dir", str(folder / "run")]) == 0
    assert main(["compress", str(folder / "run"), "--bits", "8"]) == 0
    return folder


def report(folder, name="test"):
    return json.loads((folder / f"evaluation-{name}.json").read_text("utf-8"))


def test_the_macro_f1_counts_predictions_of_absent_classes():
    labels, predictions = np.array([0, 0, 1]), np.array([0, 2, 1])
    scores = _scores(labels, predictions, ["a", "b", "c", "d"])
    # The F1 of a is 2/3, that of b 1, and that of c, which no text has, 0; d does not occur.
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert list(scores["classes"]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("which", ["run", "run/compressed"])
def test_the_test_part_is_measured_beside_an_svm(run, which, capsys):
    assert main(["evaluate", str(run / which)]) == 0
    printed = capsys.readouterr().out
    results = report(run / which)
    trained = json.loads((run / which / "results.json").read_text())
    accuracy = trained["test_accuracy" if which == "run" else "test_accuracy_after"]
    assert results["accuracy"] == accuracy
    assert f"accuracy: {accuracy:.1%} of 30 texts" in printed
    confusion = np.array(results["confusion"])
    assert np.trace(confusion) / 30 == accuracy
    for i, (name, scores) in enumerate(results["classes"].items()):
        assert name == "abc"[i]
        assert scores["texts"] == confusion[i].sum()
        assert scores["recall"] == confusion[i, i] / confusion[i].sum()
        assert scores["precision"] == confusion[i, i] / confusion[:, i].sum()
    data = load_texts(str(run / "table.csv"), text_column="body", label_column="topic")
    train, test = split_rows(data.labels, 0.2, 0)
    tfidf, texts = TfidfVectorizer(), np.array(list(data.texts))
    svm = LinearSVC(random_state=0).fit(tfidf.fit_transform(texts[train]), data.labels[train])
    predicted = svm.predict(tfidf.transform(texts[test]))
    assert results["baseline"]["accuracy"] == np.mean(predicted == data.labels[test])
    assert results["baseline"]["macro_f1"] == pytest.approx(
        f1_score(data.labels[test], predicted, average="macro")
    )
    assert f"TF-IDF + SVM: {results['baseline']['accuracy']:.1%}" in printed
    assert all((run / which / file).exists() for file in results["files"])


def test_other_texts_are_measured_also_without_those_of_the_training(run, tmp_path, capsys):
    shutil.copytree(run / "run", tmp_path / "run")
    (tmp_path / "new.csv").write_text("body,topic\nred blue green,a\none two two,b\n")
    arguments = ["evaluate", str(tmp_path / "run"), "--dataset", str(tmp_path / "new.csv")]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'new.csv'}: 2 texts\n")
    results = report(tmp_path / "run", "on-new")
    assert (results["texts"], results["accuracy"], results["macro_f1"]) == (2, 1.0, 1.0)
    assert results["classes"]["c"]["texts"] == 0
    assert results["baseline"]["accuracy"] == 1.0
    table = (run / "table.csv").read_text()
    for path, change in ((run / "table.csv", "red,a\n"), (None, None)):
        try:
            (run / "table.csv").write_text(table + change) if path else (run / "table.csv").unlink()
            assert main(arguments) == 0
            assert main(["evaluate", str(tmp_path / "run")]) == 2  # whose own part is gone
        finally:
            (run / "table.csv").write_text(table)
        out, error = capsys.readouterr()
        assert "note: no baseline: " in out
        assert "measure on other labeled texts, with --dataset" in error
        assert report(tmp_path / "run", "on-new")["baseline"] is None


def test_labels_of_other_classes_are_refused_or_left_out(run, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("body,topic\nred blue green,a\nfour,d\nfive,d\n")
    arguments = ["evaluate", str(run / "run"), "--dataset", str(tmp_path / "new.csv")]
    parts = ("the run's classes, a, b, c. Received: ", "with 'd' (2)")
    assert_refused(capsys, arguments, *parts, main=main)
    assert main([*arguments, "--skip-bad-rows"]) == 0
    assert "note: texts of unknown classes left out: 'd' (2)" in capsys.readouterr().out
    assert_refused(capsys, [*arguments, "--label-column", "none"], "column 'none'", main=main)
    assert main([*arguments[:3], str(run / "table.csv")]) == 0
    assert "note: most of these texts were trained on; leave out" in capsys.readouterr().out
    (tmp_path / "data.json").write_text('{"class_names": 3}')
    shutil.copy(run / "run/config.json", tmp_path)
    assert main(["evaluate", str(tmp_path), str(tmp_path / "new.csv")]) == 2
    assert "Expected class_names in" in capsys.readouterr().err
    assert main(["evaluate", str(run / "run"), "--text-column", "body"]) == 2
    assert "no text_column without a dataset" in capsys.readouterr().err


@pytest.mark.parametrize("which", ["run", "run/compressed"])
def test_a_text_is_explained(run, which, tmp_path, capsys):
    text = "The red, <cat> zebra red"
    assert main(["explain", str(run / which), text, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    explanation = json.loads((tmp_path / "explanation.json").read_text("utf-8"))
    words = explanation["words"]
    assert [word["word"] for word in words] == ["the", "red", "cat", "zebra", "red"]
    assert [word["known"] for word in words] == [True, True, True, False, True]
    assert max(word["attention"] for word in words) == 1.0
    assert printed.startswith(f"label: {explanation['label']} (")
    assert "zebra (unknown)" in printed
    # Without a word, the probability of the label is less by its influence.
    arguments = ["predict", str(run / which), text, "The red, <cat> red", "--format", "jsonl"]
    assert main(arguments) == 0
    whole, without = map(json.loads, capsys.readouterr().out.splitlines())
    label = explanation["label"]
    assert whole["label"] == label
    influence = whole["probabilities"][label] - without["probabilities"][label]
    assert words[3]["influence"] == pytest.approx(influence, abs=1e-5)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<span") == 2 * len(words)
    assert "Blue words support the label, red words oppose it" in page
    for word in words:
        color = "47,91,199" if word["influence"] >= 0 else "192,47,29"
        influence = rf"influence {word['influence']:+.4f}".replace("+", r"\+")
        assert re.search(rf'rgba\({color},[\d.]+\)" title="{influence}"', page)
    assert (tmp_path / "attention.png").exists()
    assert main(["explain", str(run / which), "red", "--out", str(tmp_path)]) == 0
    (word,) = json.loads((tmp_path / "explanation.json").read_text("utf-8"))["words"]
    assert word["attention"] in (0.0, 1.0)
    assert main(["explain", str(run / which), " !? ", "--out", str(tmp_path)]) == 2
    assert "Expected a text with words. Received: ' !? '" in capsys.readouterr().err


def test_a_model_without_attention_has_influences(run, tmp_path, capsys):
    table = ["--dataset", str(run / "table.csv"), "--text-column", "body"]
    options = [*table, "--label-column", "topic", *OPTIONS.split(), "--attention", "none"]
    assert main(["classify", *options, "--run-dir", str(tmp_path / "run")]) == 0
    assert "TF-IDF + SVM: " in capsys.readouterr().out  # beside the result
    assert main(["explain", str(tmp_path / "run"), "one red"]) == 0
    printed = capsys.readouterr().out
    assert "influence" in printed
    assert "attention |" not in printed
    assert not list((tmp_path / "run/explained").glob("*.png"))


def test_a_run_of_another_kind_is_refused_before_imports(tmp_path):
    (tmp_path / "config.json").write_text('{"command": "rules"}')
    for program in ("evaluate", "explain"):
        code = f"import sys; from keras_tnattn_train.cli import main; main(['{program}', "
        code += f"'{tmp_path}', 'x']); print(sorted({{'keras', 'tensorflow'}} & set(sys.modules)))"
        done = run_python("-c", code)
        assert done.stdout == "[]\n"
        assert "a run of classify or translate" in done.stderr
        assert "a run of rules" in done.stderr
