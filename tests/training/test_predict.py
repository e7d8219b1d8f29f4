import csv
import importlib.util
import io
import json
import os
import shutil
import sys

import keras
import numpy as np
import pytest
from run_folders import EXPORTS, assert_refused, exporting, predicted
from translator_runs import CORPUS, make_run

from keras_tnattn_train.cli import train
from keras_tnattn_train.data.pairs.prepared import Preparing, prepare
from keras_tnattn_train.data.sentences import Row
from keras_tnattn_train.predict import PredictOptions, _write, _Writer, main
from keras_tnattn_train.runs.predictions import Prediction, Predictor
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.translate.loading import load_translator
from keras_tnattn_train.translate.predicting import pieces_in

tensorflow_only = pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
TEXTS = ["red blue", "one two three", "the grey"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A run folder, and the folder of the exported model."""
    folder = tmp_path_factory.mktemp("classifier")
    rng = np.random.default_rng(0)
    words = {"a": ["red", "blue", "green", "grey"], "b": ["one", "two", "three", "four"]}
    lines = [f"{' '.join(rng.choice(words['ab'[i % 2]], 6))},{'ab'[i % 2]}" for i in range(60)]
    (folder / "table.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    options = "--max-words 8 --embedding-dim 6 --attention dpa --epochs 8 --learning-rate 0.05"
    arguments = ["classify", "--dataset", str(folder / "table.csv"), "--name", "small"]
    arguments += ["--run-dir", str(folder / "run"), *options.split()]
    assert train([*arguments, *exporting(folder / "saved")]) == 0
    return folder / "run", folder / "saved/small"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator") / "run"
    make_run(folder)
    return folder


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_of_a_run(classifier, capsys):
    assert main([str(classifier[0]), *TEXTS]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    rows = table(out)
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    assert [row["text"] for row in rows] == TEXTS
    assert [row["label"] for row in rows] == ["a", "b", "a"]
    for row in rows:
        shares = {name: float(row[f"probability of {name}"]) for name in "ab"}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert float(row["probability"]) == shares[row["label"]] == max(shares.values())


@tensorflow_only
def test_an_exported_model_says_the_same(classifier, tmp_path):
    said, output = [], tmp_path / "out.jsonl"
    for path in (*classifier, classifier[1] / "1"):
        assert main([str(path), *TEXTS, "--output", str(output)]) == 0
        said.append([json.loads(line) for line in output.read_text("utf-8").splitlines()])
    for one, *others in zip(*said, strict=True):
        for other in others:
            assert {**one, "probabilities": 0, "probability": 0} == {
                **other,
                "probabilities": 0,
                "probability": 0,
            }
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)


@tensorflow_only
def test_an_export_is_read_by_its_runtime_as_in_the_server(classifier, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    (row,), modules = predicted([str(classifier[1]), "red blue"])
    assert row["label"] == "a"
    assert not {"keras", "tensorflow", "jax", "sklearn", "matplotlib"} & modules
    folder = classifier[1] / "1/assets.extra/engines/onnxruntime"
    assert main([str(folder), "red blue", "zzz"]) == 0
    out, error = capsys.readouterr()
    assert table(out)[0] == row
    assert error == "row 2: no word is known, so that the label says nothing\n"
    # Without the runtime TensorFlow takes its place.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([str(classifier[1]), "red blue"]) == 0
    (other,) = table(capsys.readouterr().out)
    assert float(other["probability"]) == pytest.approx(float(row["probability"]), abs=2e-6)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "onnxruntime", None)
        assert_refused(capsys, [str(folder), "a"], "needs the package onnxruntime", main=main)


def test_a_few_texts_need_no_other_backend_than_numpy(classifier, capsys):
    pytest.importorskip("jax")
    (row,), modules = predicted([str(classifier[0]), "red blue"])
    assert row["label"] == "a"
    assert not {"tensorflow", "torch", "sklearn", "matplotlib", "pandas"} & modules
    assert main([str(classifier[0]), "red blue"]) == 0  # on the backend of the tests
    (same,) = table(capsys.readouterr().out)
    assert float(same["probability"]) == pytest.approx(float(row["probability"]), abs=2e-6)


def test_a_sentence_needs_no_tensorflow(translator, capsys):
    pytest.importorskip("jax")
    (row,), modules = predicted([str(translator), "Eu, vi um gatos."])
    assert row["score"]
    assert not {"tensorflow", "torch", "sklearn", "matplotlib", "pandas"} & modules
    assert main([str(translator), "Eu, vi um gatos."]) == 0  # on the backend of the tests
    (same,) = table(capsys.readouterr().out)
    assert same["translation"] == row["translation"]
    assert float(same["score"]) == pytest.approx(float(row["score"]), rel=1e-5)


@tensorflow_only
@pytest.mark.parametrize("tokenizer", ["joiners", "bert"])
@pytest.mark.parametrize("lower_case", [False, True])
def test_a_run_cuts_sentences_as_its_training_did(tokenizer, lower_case, tmp_path):
    preparing = Preparing(80, lower_case=lower_case, tokenizer=tokenizer)
    corpus = prepare(CORPUS, tmp_path / "prepared", preparing)
    for tokenizer, pieces in zip(corpus.tokenizers, pieces_in(corpus.folder), strict=True):
        for text in ("Eu, vi três gatos.", "I, saw CATS", "Três, c\u00c3es: 3.5"):
            (ids,) = tokenizer.tokenize([text]).to_list()
            assert pieces.ids(text) == ids


def test_a_table_has_its_header_without_rows(classifier, tmp_path, capsys):
    header = "row,text,label,probability,probability of a,probability of b\n"
    for content, status in (("text,id\n", 0), ("text,id\n,1\n", 1)):
        (tmp_path / "in.csv").write_text(content)
        for model in classifier if EXPORTS else classifier[:1]:
            assert main([str(model), "--input", str(tmp_path / "in.csv")]) == status
            assert capsys.readouterr().out == header
    (tmp_path / "in.csv").write_text("text,id\n")
    arguments = [str(classifier[0]), "--input", str(tmp_path / "in.csv")]
    for form in ("jsonl", "lines"):
        assert main([*arguments, "--format", form]) == 0
        assert capsys.readouterr().out == ""


def test_bad_rows_do_not_stop_the_rest(classifier, tmp_path, capsys):
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,red blue\n2\n3,\xff\n4,one two\n")
    arguments = [str(classifier[0]), "--input", str(tmp_path / "in.csv"), "--batch-size", "1"]
    assert main([*arguments, "--output", str(tmp_path / "out.csv")]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "row 3: 1 field instead of 2" in error
    assert "row 4: not UTF-8" in error
    assert "bad rows left out: 2" in error
    rows = table((tmp_path / "out.csv").read_text(encoding="utf-8"))
    assert [(row["row"], row["label"]) for row in rows] == [("2", "a"), ("5", "b")]
    assert main([*arguments, "--format", "lines"]) == 1
    lines = capsys.readouterr().out.split("\n")
    assert [line.partition("\t")[0] for line in lines] == ["a", "", "", "b", ""]


def test_texts_that_are_cut_or_unknown_are_told(classifier, capsys):
    assert main([str(classifier[0]), "red " * 8, "a", "a red"]) == 0
    told = "row 2: no word is known, so that the label says nothing\n"
    assert capsys.readouterr().err == told
    assert main([str(classifier[0]), "red " * 9, "a", "red " * 9]) == 0
    assert capsys.readouterr().err == (
        "note: the first 8 words of a text are read, and some texts have more (--max-words of "
        "classify)\n" + told
    )


def test_the_rows_are_counted(classifier, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("red\nblue\none\n")
    arguments = [str(classifier[0]), "--input", str(tmp_path / "in.txt"), "--batch-size", "2"]
    assert main(arguments) == 0
    counts = [line.partition(" rows")[0] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["2"]  # then each time the count has doubled


def test_a_file_in_place_of_a_sentence_is_refused(classifier, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("text\nred\n")
    assert main([str(classifier[0]), "red", str(tmp_path / "in.csv")]) == 2
    assert capsys.readouterr().err.endswith("in.csv, a file: use --input\n")
    assert main([str(classifier[0]), "red" * 200, "in.csv"]) == 0


def test_the_column_of_the_training_data_is_the_default(classifier, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(classifier[0], run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "text_column": "body"}))
    (tmp_path / "in.csv").write_text("text,body\nred,two three\n")
    for arguments, label in (([], "b"), (["--column", "text"], "a")):
        assert main([str(run), "--input", str(tmp_path / "in.csv"), *arguments]) == 0
        assert table(capsys.readouterr().out)[0]["label"] == label


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="minutes of compiling")
@pytest.mark.slow
def test_translations_of_a_run(translator, capsys):
    texts = ["Eu, vi um gatos.", "rios", "dois \u2603", "\u2603"]
    expected = load_translator(translator).with_beam(2).n_best(texts)
    arguments = [str(translator), *texts, "--beam", "2"]
    assert main([*arguments, "--n-best", "2", "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["row"], line["rank"], line["translation"]) for line in lines] == [
        (row, rank, result.text)
        for row, translations in enumerate(expected, start=1)
        for rank, result in enumerate(translations, start=1)
    ]
    assert main([*arguments, "--format", "lines"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines == [*(" ".join(result[0].text.split()) for result in expected), ""]


@tensorflow_only
@pytest.mark.slow
def test_translations_of_an_exported_model(translator, tmp_path, capsys):
    from keras_tnattn_train.exports import Translator, export

    loaded = load_translator(translator)
    tokenizers = (loaded.source_tokenizer, loaded.target_tokenizer)
    export(Translator(loaded.model, *tokenizers), tmp_path / "saved")
    texts = ["Eu, vi um gatos.", "rios"]
    said = []
    for path in (translator, tmp_path / "saved"):
        assert main([str(path), *texts]) == 0
        said.append(table(capsys.readouterr().out))
    of_the_run, exported = said
    assert [row["text"] for row in of_the_run] == texts
    for row, expected in zip(exported, of_the_run, strict=True):
        assert row["translation"] == expected["translation"] != ""
        assert float(row["score"]) == pytest.approx(float(expected["score"]), rel=1e-4)
    assert main([str(tmp_path / "saved"), "rios", "--beam", "2"]) == 2
    assert "an exported model, beam=2" in capsys.readouterr().err


def test_a_reader_that_stops_ends_it_quietly(classifier, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", closed)
        assert main([str(classifier[0]), *TEXTS]) == 141
    assert capsys.readouterr().err == ""


def test_bad_input(classifier, translator, tmp_path, capsys):
    def refused(part, *arguments):
        assert_refused(capsys, list(map(str, arguments)), part, main=main)

    for part in ("which is not a folder", "dates-and-names, digits, docstrings, minilm"):
        refused(part, tmp_path / "none", "a")
    refused("which holds neither", tmp_path, "a")
    refused("n_best=2", translator, "a", "--n-best", "2")
    refused("a run of classify, beam=2", classifier[0], "a", "--beam", "2")
    refused("batch_size=0", classifier[0], "a", "--batch-size", "0")
    refused("Received: both", classifier[0], "a", "--input", "x.txt")
    refused("which does not exist", classifier[0], "--input", tmp_path / "x.txt")
    refused("Could not write", classifier[0], "a", "--output", tmp_path / "no/such.csv")
    other = Run(tmp_path / "rules")
    other.folder.mkdir()
    (other.folder / "config.json").write_text("{}")
    (other.folder / "data.json").write_text('{"trained_lengths": [4]}')
    refused("which predict", other.folder, "a")


def test_tables_have_quotes_where_needed_and_plain_line_ends():
    def written(form, rows):
        file = io.StringIO(newline="")
        columns = ("label", "probability", "probability of a", "probability of b, c")
        writer = _Writer(file, form, columns)
        for number, text, predictions in rows:
            writer.write(Row(number, text), predictions)
        return file.getvalue()

    def label(name, share):
        shares = {"a": share, "b, c": round(1 - share, 6)}
        cells = {"label": name, "probability": max(shares.values()), "probabilities": shares}
        return [Prediction((name, f"{share:.4f}"), cells)]

    rows = [(1, 'say "x"', label("a", 0.75)), (2, "bad", []), (4, "plain", label("b, c", 0.25))]
    assert written("csv", rows) == (
        'row,text,label,probability,probability of a,"probability of b, c"\n'
        '1,"say ""x""",a,0.75,0.75,0.25\n'
        '4,plain,"b, c",0.75,0.25,0.75\n'
    )
    assert written("lines", rows) == "a\t0.7500\n\nb, c\t0.2500\n"
    assert written("jsonl", rows[2:]) == (
        '{"row": 4, "text": "plain", "label": "b, c", "probability": 0.75, '
        '"probabilities": {"a": 0.25, "b, c": 0.75}}\n'
    )
    assert written("jsonl", [(1, "é", [Prediction(("ü",), {"translation": "ü"})])]) == (
        '{"row": 1, "text": "é", "translation": "ü"}\n'
    )


def test_rows_of_similar_length_are_predicted_together_and_written_in_their_order():
    lengths = [9, 1, 8, 2, 7, 3]
    rows = [Row(number, "x" * length, None) for number, length in enumerate(lengths, 1)]
    batches = []

    def predictor(texts):
        batches.append([len(text) for text in texts])
        return [[Prediction((str(len(text)),), {})] for text in texts]

    file = io.StringIO(newline="")
    args = PredictOptions(model="run", batch_size=2)
    assert _write(iter(rows), Predictor(predictor, ()), args, file) == 0
    assert batches == [[1, 2], [3, 7], [8, 9]]
    _, *written = csv.reader(io.StringIO(file.getvalue()))
    assert [(cells[0], len(cells[1])) for cells in written] == [
        (str(number), length) for number, length in enumerate(lengths, 1)
    ]
