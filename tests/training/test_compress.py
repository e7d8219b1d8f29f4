"""A run and a file made small from the command line."""

import dataclasses
import importlib.util
import io
import itertools
import json
import logging
import os
import re
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, relative_error
from run_folders import assert_refused
from translator_runs import make_run

import keras_small
from keras_small import Data, Keeping, Promise, Smaller, Within
from keras_small.asked.renumbering import Renumbering
from keras_small.formats.runtime_tables import RUNTIMES
from keras_small.runtimes import file_outputs
from keras_small.runtimes.exporting import FORMS
from keras_small.storage.sizes import byte_count
from keras_tnattn.errors import cause_of
from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.parts import Part
from keras_tnattn_train import compress
from keras_tnattn_train.classify.loading import ClassifierRun, thin_out
from keras_tnattn_train.cli import train
from keras_tnattn_train.compress import FILES, main
from keras_tnattn_train.data.numbers import halves
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import choices
from keras_tnattn_train.predict import main as predict
from keras_tnattn_train.runs.compressed_folder import check_output, write
from keras_tnattn_train.runs.saved_models import load_file, load_model
from keras_tnattn_train.system.files import WriteError
from keras_tnattn_train.translate.loading import load_translator


def saved(folder, *layers, size=32, rows=64):
    """Saves a model of some layers; returns the arguments that name it and random inputs."""
    path, inputs = folder / "model.keras", folder / "inputs.npy"
    keras.Sequential([keras.Input((size,)), *layers]).save(path)
    np.save(inputs, np.random.default_rng(0).normal(size=(rows, size)).astype("float32"))
    return [str(path), "--data", str(inputs)]


@pytest.mark.slow
def test_a_run_becomes_small_and_serves_texts(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [f"{' '.join(rng.choice(['x', 'y', 'ab'[i % 2]], 5))},{i % 2}" for i in range(80)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    folder = tmp_path / "run"
    command = ["classify", "--dataset", str(table), "--run-dir", str(folder), "--epochs", "2"]
    assert train([*command, "--attention", "sdpa", "--embedding-dim", "32"]) == 0
    served = tmp_path / "saved"
    export = ["--export", "saved_model", "--saved-models", str(served)]
    asked = ["--target", "2", "--bits", "8", "--heal-epochs", "1"]
    assert main([str(folder), *asked, *export]) == 0
    assert "times smaller" in capsys.readouterr().out
    small = folder / "compressed"
    model = keras.models.load_model(small / "model.keras")
    report = json.loads((small / "report.json").read_text())
    assert report["bytes_after"] == byte_count(model) <= report["bytes_before"] / 2
    results = json.loads((small / "results.json").read_text())
    assert 0 <= results["test_accuracy_after"] <= 1
    assert results["compressed"]["target"] == 2
    assert (small / "curves.png").exists()
    assert (small / "report.csv").read_text().startswith("path,kind,format")
    assert predict([str(small), "x a a"]) == 0
    from keras_tnattn.export import load

    (exported,) = served.iterdir()
    assert exported.name.endswith("-compressed")
    assert set(load(exported)(["x a a", "y b b"])["label"]) <= {"0", "1"}
    card = json.loads((exported / "1" / "assets.extra" / "model_card.json").read_text())
    assert card["scores"] == {"test_accuracy": round(results["test_accuracy_after"], 4)}
    assert card["examples"]

    assert main([str(folder)]) == 0  # only reports
    assert {path.name for path in (folder / "report").iterdir()} == {
        *("report.html", "report.txt", "report.csv", "report.json", "curves.png")
    }
    assert_refused(capsys, [str(folder), "--output", str(small)], "without a model", main=main)
    assert main([str(folder), *asked, *export]) == 0
    assert sorted(path.name for path in exported.iterdir()) == ["1", "2"]


@pytest.mark.slow
def test_a_translator_becomes_small_and_is_read_like_a_run(tmp_path, capsys):
    model, corpus = make_run(tmp_path / "run", "sdpa")
    asked = ["--target", "1.5", "--bits", "32", "--heal-epochs", "1"]
    export = ["--export", "saved_model", "--saved-models", str(tmp_path / "saved")]
    assert main([str(tmp_path / "run"), *asked, *export]) == 0
    small = tmp_path / "run" / "compressed"
    report = json.loads((small / "report.json").read_text())
    translator = load_translator(small)
    assert translator.corpus.digest == corpus.digest
    assert report["weights_after"] == translator.model.count_params() < model.count_params()
    assert report["bytes_after"] <= report["bytes_before"] / 1.5
    # The errors are those of outputs on the corpus.
    assert any("outputs on the data" in note for note in report["notes"])
    sentence = corpus.texts["test"][0][0]
    capsys.readouterr()
    assert predict([str(small), sentence]) == 0
    result = capsys.readouterr().out
    (exported,) = (tmp_path / "saved").iterdir()
    assert predict([str(exported), sentence]) == 0
    assert capsys.readouterr().out == result
    model_file = str(tmp_path / "run" / "model.keras")
    other_file = str(small / "model.keras")
    into_run = ["--target", "2", "--output", str(tmp_path / "run")]
    inputs = str(tmp_path / "inputs.npy")
    np.save(inputs, np.zeros((2, 3)))
    for arguments, message in (
        ([str(small), "--target", "2"], "Expected the original run"),
        ([str(tmp_path / "run"), "--data", inputs], "has its own data"),
        ([str(tmp_path / "run"), "--bits", "8", "--heal-epochs", "1", "--from-logits"], "own loss"),
        ([str(tmp_path / "run"), *into_run], "without a trained model"),
        ([model_file, *into_run], "without a trained model"),
        ([other_file, *into_run], "without a trained model"),
    ):
        assert_refused(capsys, arguments, message, main=main)
    assert main([str(tmp_path / "run"), "--max-drop", "0.1"]) == 2
    assert "--max-drop needs" in capsys.readouterr().err


def test_progress_is_printed(tmp_path, capsys):
    command = saved(tmp_path, keras.layers.Dense(32), keras.layers.Dense(3))
    command += ["--target", "2", "--heal-epochs", "2", "--bits", "32"]
    for _ in range(2):  # each line once, also in the second call
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("layers that can be replaced: 2, ")
        assert lines[1] == "running the model on the data"
        results = json.loads((tmp_path / "model-compressed" / "results.json").read_text())
        assert results["compressed"] == {
            **dict.fromkeys(("max_drop", "tolerance", "max_flips")),
            **dict.fromkeys(("for_runtime", "confidence")),
            **{"target": 2.0, "bits": 32, "coded": False},
            **{"keep_vocabulary": False, "data": str(tmp_path / "inputs.npy")},
            **{"heal_epochs": 2, "learning_rate": 1e-3, "from_logits": False, "healed_epochs": 2},
        }
        report = json.loads((tmp_path / "model-compressed" / "report.json").read_text())
        sizes = ("weights_before", "weights_after", "bytes_before", "bytes_after")
        assert {name: results[name] for name in sizes} == {name: report[name] for name in sizes}
        assert results["times_smaller"] == report["bytes_before"] / report["bytes_after"] >= 2
        steps = [line.split(":")[0] for line in lines[2:6]]
        assert steps[0] == "building the small model"
        assert steps[1].startswith("error with corrected biases ")
        assert steps[2:] == ["healing, epoch 1 of 2", "healing, epoch 2 of 2"]
        assert not any("healing, epoch" in line for line in lines[8:])
    assert not logging.getLogger("keras_small").handlers


def test_a_healing_that_would_harm_is_not_counted(tmp_path, caplog):
    command = saved(tmp_path, keras.layers.Dense(32))
    assert main([*command, "--target", "1.5", "--heal-epochs", "1", "--learning-rate", "9"]) == 0
    assert "the model stays as it is" in caplog.text
    results = json.loads((tmp_path / "model-compressed" / "results.json").read_text())
    assert (results["compressed"]["heal_epochs"], results["compressed"]["healed_epochs"]) == (1, 0)


def test_logits_are_healed_by_their_divergence(tmp_path, capsys):
    layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(3)]
    command = saved(tmp_path, *layers, rows=8)
    command += ["--target", "3", "--bits", "32", "--heal-epochs", "1", "--learning-rate", "1e-9"]
    losses = []
    for options in ((), ("--from-logits",)):
        assert main([*command, *options]) == 0
        losses.append(float(re.search(r"healing, .* loss ([\d.]+)", capsys.readouterr().out)[1]))
        small = tmp_path / "model-compressed"
        results = json.loads((small / "results.json").read_text())["compressed"]
        assert results["from_logits"] is bool(options)
    data = np.load(tmp_path / "inputs.npy")
    old, new = (keras.models.load_model(path) for path in (command[0], small / "model.keras"))
    targets, outputs = old.predict(data, verbose=0), new.predict(data, verbose=0)
    assert losses[0] == pytest.approx(np.mean((targets - outputs) ** 2), abs=2e-5)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (targets, outputs))
    assert losses[1] == pytest.approx(np.sum(p * np.log(p / q), axis=1).mean(), abs=2e-5)


def test_a_file_needs_no_run(tmp_path, capsys):
    file, *data = saved(tmp_path, keras.layers.Dense(32), keras.layers.Dense(3), rows=5)
    assert main([file, "--target", "2", "--bits", "32", *data]) == 0
    small = keras.models.load_model(tmp_path / "model-compressed" / "model.keras")
    assert 2 * small.count_params() <= 33 * 32 + 33 * 3
    results = json.loads((tmp_path / "model-compressed" / "results.json").read_text())["compressed"]
    assert results["target"] == 2
    assert results["data"].endswith("inputs.npy")
    assert results["heal_epochs"] == 0
    assert "learning_rate" not in results
    # Reports of another choice would not fit the model.
    folder = tmp_path / "model-compressed"
    assert_refused(capsys, [file, "--output", str(folder)], "without a model", main=main)
    # The files of an earlier model would not fit the new one.
    earlier = {"config.json": "{}", "data.json": "{}"}
    for name, text in earlier.items():
        (folder / name).write_text(text)
    export = ["--export", "saved_model", "--saved-models", str(tmp_path / "saved")]
    for version in ("1", "2"):
        assert main([file, "--target", "2", "--coded", *export]) == 0
        assert not any((folder / name).exists() for name in earlier)
        (exported,) = (tmp_path / "saved").iterdir()
        assert (exported / version / "saved_model.pb").is_file()
    small = keras.models.load_model(folder / "model.keras")
    assert_same_arrays(keras_small.load(folder / "model.tnz").get_weights(), small.get_weights())
    for arguments, message in (
        ([str(tmp_path / "none.keras")], "which does not exist"),
        ([file, "--target", "1000"], "factor of at most"),
        ([file, "--target", "0.5"], "target=0.5"),
        ([file, "--max-drop", "0.1"], "--max-drop needs"),
        ([file, "--target", "2", "--data", str(tmp_path / "none.npy")], "a file of inputs"),
        ([file, "--max-drop", "5"], "max_drop=5"),
        ([file, "--tolerance", "8"], "tolerance=8"),
        ([file, "--coded", "--bits", "8"], "coded=True, bits=8"),
        ([file, "--max-flips", "0.1"], "--max-flips needs --data"),
        ([file, "--max-flips", "0.1", "--bits", "8", "--target", "2"], "target=2.0"),
        ([file, "--max-flips", "0.1", "--heal-epochs", "1"], "end the promise"),
        ([file, "--bits", "8", "--confidence", "0.9"], "--confidence with --max-flips"),
        ([file, "--export", "onnx"], "without them nothing is replaced"),
        ([file, "--max-drop", "0.1", "--export", "onnx"], "--max-drop needs"),
        ([file, "--target", "2", "--output", f"{file}/x"], "Could not write"),
        ([file, "--tolerance", "0.1", "--target", "2"], "Received: tolerance=0.1, target=2.0\n"),
        ([file, "--bits", "8", "--learning-rate", "0.1"], "Received: learning_rate=0.1\n"),
        ([file, "--bits", "8", "--from-logits"], "Received: from_logits=True\n"),
        ([file, "--bits", "8", "--label-column", "y"], "label_column=y\n"),
    ):
        assert_refused(capsys, arguments, message, main=main)
    assert main([file]) == 0
    assert "only the report: for a small model add --target" in capsys.readouterr().out


class Interrupt(BaseException):
    pass


def interrupted(monkeypatch, step, failure):
    """Raises `failure` in the step-th change of a file; returns the list of the changes."""
    changes = []

    def interrupting(function):
        def change(*arguments, **options):
            changes.append(arguments)
            if len(changes) == step + 1:
                raise failure
            return function(*arguments, **options)

        return change

    monkeypatch.setattr(os, "replace", interrupting(os.replace))
    monkeypatch.setattr(Path, "mkdir", interrupting(Path.mkdir))
    return changes


class Result:
    """What `compress` returns, as far as it is written."""

    def __init__(self, name):
        self.name, self.report = name, self
        self.save = lambda path: path.write_text(name)

    def __str__(self):
        return self.name

    def to_csv(self):
        return self.name

    to_json = to_csv

    def to_html(self, name):
        return name

    def plot(self, path):
        path.write_text(self.name)

    def write(self, folder):
        files = {"config.json": self.name, "data.json": self.name}
        results = {"results.json": json.dumps({"compressed": True})}
        write(self, folder, ("model.keras",), {**files, **results}, (self.name,))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def an_evaluated_model(folder):
    """Writes a model with what `evaluate.py` and `explain.py` say about it, and a user's files."""
    folder.mkdir()
    Result("old").write(folder)
    (folder / "explained").mkdir()
    (folder / "evaluation-mine").mkdir()
    names = ("model.onnx", "model.tnz", "evaluation-test-beam4.json", "n_best-test-beam4.tsv")
    for name in (*names, "explained/a.png"):
        (folder / name).write_text("old")
    for name in ("mine.txt", "evaluation-notes.md", "evaluation-mine/thesis.txt"):
        (folder / name).write_text("mine")
    return contents(folder)


@pytest.mark.parametrize("failure", [Interrupt, OSError])
def test_a_write_that_fails_changes_nothing(failure, tmp_path, monkeypatch):
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        before = an_evaluated_model(folder)
        with monkeypatch.context() as patch:
            changes = interrupted(patch, steps, failure)
            try:
                Result("new").write(folder)
            except (Interrupt, WriteError):
                assert contents(folder) == before
            else:
                assert len(changes) == steps
                break
        check_output(folder, tmp_path / "model.keras", True)  # the command can be tried again
        steps += 1
    assert steps > 10
    after = contents(folder)
    assert set(after) == {
        *("model.keras", "config.json", "data.json", "results.json"),
        *("report.html", "report.txt", "report.csv", "report.json", "curves.png"),
        *("mine.txt", "evaluation-notes.md", "evaluation-mine/thesis.txt"),
    }
    assert after["model.keras"] == "new"


def test_a_write_that_ends_anywhere_can_be_undone(tmp_path, monkeypatch):
    # As if the process were killed after some moves: none is undone.
    replace, moves = os.replace, []

    def broken_disk(source, target):
        if len(moves) == count:
            raise OSError(5, "Input/output error")
        moves.append(source)
        replace(source, target)

    for count in itertools.count():
        folder = tmp_path / str(count)
        before = an_evaluated_model(folder)
        moves.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", broken_disk)
            try:
                Result("new").write(folder)
            except WriteError:
                # What cannot be moved back now is not deleted by another attempt that fails.
                with pytest.raises(WriteError, match="input/output error"):
                    Result("new").write(folder)
            else:
                break
        check_output(folder, tmp_path / "model.keras", True)
        assert contents(folder) == before
        Result("new").write(folder)
        assert "old" not in contents(folder).values()
    assert count > 10


def test_an_interrupted_compression_leaves_no_empty_folder(tmp_path, monkeypatch):
    file, *_ = saved(tmp_path, keras.layers.Dense(2))
    (tmp_path / "empty").mkdir()

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_small.compress", interrupt)
    for name in ("new", "new/er", "empty"):
        output = ["--output", str(tmp_path / name)]
        assert main([file, "--bits", "8", *output]) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"model.keras", "inputs.npy", "empty"}


@pytest.mark.parametrize("name", ["data.json", "report.txt", "explained", "n_best-a-beam1.tsv"])
def test_a_folder_with_other_files_of_these_names_is_refused(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"names: {name}. Received: output=.*--output"):
        check_output(tmp_path, tmp_path / "net.keras", True)


def test_a_trained_run_is_not_overwritten(tmp_path, capsys):
    file, *_ = saved(tmp_path, keras.layers.Dense(32))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    for output in (run, tmp_path):
        message = f"without a trained model, which would be overwritten. Received: output={output}"
        arguments = [file, "--target", "2", "--output", str(output)]
        assert_refused(capsys, arguments, message, main=main)
    assert_refused(capsys, [file, "--output", str(run)], "without a model", main=main)
    assert [path.name for path in run.iterdir()] == ["config.json"]


def a_run_of_known_answers(**parts):
    """A run whose model says class 1 for texts that begin with the id 3, else class 0."""
    inputs = keras.Input((None,), dtype="int32")
    hits = keras.ops.cast(keras.ops.equal(inputs[:, 0], 3), "float32")
    model = keras.Model(inputs, keras.ops.stack([1 - hits, hits], axis=-1))
    run = object.__new__(ClassifierRun)
    vars(run)["parts"] = {
        name: Part(np.arange(len(ids)), ids, labels) for name, (ids, labels) in parts.items()
    }
    return run, model


def test_the_drop_is_measured_on_the_validation_part():
    ids = np.array([[3, 5], [4, 6], [3, 2], [7, 7]], "int32")
    right = np.array([1, 0, 1, 0])
    parts = {"train": (ids, right), "test": (ids, right)}
    run, model = a_run_of_known_answers(**parts, validation=(ids, np.array([1, 1, 1, 0])))
    assert run.accuracy()(model) == 0.75


def test_without_a_validation_part_it_is_measured_on_a_tenth_of_the_training_rows():
    ids = np.full((30, 2), 3, "int32")
    labels = np.zeros(30, int)
    labels[[0, 20]] = 1  # the rows 0, 10 and 20 are measured
    run, model = a_run_of_known_answers(train=(ids, labels), test=(ids, labels))
    assert run.accuracy()(model) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_max_drop_is_respected_on_the_validation_part(tmp_path, capsys):
    rng = np.random.default_rng(0)
    words = ["x", "y", "z", "a", "b", "c"]
    rows = [f"{' '.join(rng.choice([*words, 'abc'[i % 3]], 4))},{i % 3}" for i in range(150)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    folder = tmp_path / "run"
    command = ["classify", "--dataset", str(table), "--run-dir", str(folder), "--epochs", "4"]
    command += ["--attention", "none", "--embedding-dim", "32", "--early-stopping", "4"]
    assert train([*command, "--learning-rate", "0.01"]) == 0
    drop = 0.02
    capsys.readouterr()
    assert main([str(folder), "--max-drop", str(drop)]) == 0
    printed = capsys.readouterr().out
    run = ClassifierRun(folder)
    part = run.parts["validation"]
    small = keras.models.load_model(folder / "compressed" / "model.keras")
    before, after = (
        np.mean(outputs_of(model, part.ids).argmax(-1) == part.labels)
        for model in (run.model, small)
    )
    assert after >= before - drop - 1e-9
    told = re.findall(r"metric ([\d.]+) instead of ([\d.]+)", printed)
    assert told
    assert all(float(value) == pytest.approx(before, rel=1e-5) for _, value in told)
    allowed = [float(value) for value, _ in told if float(value) >= before - drop - 1e-6]
    assert any(value == pytest.approx(after, rel=1e-5) for value in allowed)
    results = json.loads((folder / "compressed" / "results.json").read_text())
    assert results["compressed"]["max_drop"] == drop
    assert results["times_smaller"] > 1


@pytest.mark.parametrize(
    ("options", "renumbers", "has_metric"),
    [
        ({"heal_epochs": 1}, True, False),
        ({"heal_epochs": 1, "keep_vocabulary": True}, False, False),
        ({"heal_epochs": 1, "max_drop": 0.1}, False, True),
        ({"target": None, "max_flips": 0.1}, False, False),
    ],
)
def test_what_compress_and_heal_get_of_a_run(
    options, renumbers, has_metric, tmp_path, monkeypatch, capsys
):
    calls = {}
    run = SimpleNamespace(
        model="model",
        loss="loss",
        kept_ids=7,
        inputs=lambda: "inputs",
        new_inputs=lambda: "new inputs",
        healing_inputs=lambda: "thinned",
        accuracy=lambda: "metric",
    )

    def called(model, args, data, metric):
        calls.update(model=model, data=data, metric=metric)
        return SimpleNamespace(report="the report")

    monkeypatch.setattr(compress, "_call", called)
    monkeypatch.setattr(compress, "_heal", lambda _, inputs, args, loss: calls.update(heal=inputs))
    monkeypatch.setattr(compress, "write", lambda *written: None)
    args = compress.CompressOptions(**{"model": str(tmp_path), "target": 2.0, **options})
    monkeypatch.setattr(compress.CompressOptions, "replaces", False)
    compress._compress_texts(run, tmp_path, tmp_path, args)
    assert calls == {
        "model": "model",
        "data": Data(
            "new inputs" if "max_flips" in options else "inputs",
            kept_ids=7 if renumbers else None,
        ),
        "metric": "metric" if has_metric else None,
        **({"heal": "thinned"} if "heal_epochs" in options else {}),
    }
    assert capsys.readouterr().out == "the report\n"


@pytest.mark.parametrize(
    ("options", "metric", "goal"),
    [
        ({}, None, Smaller(1.0)),
        ({"bits": 8}, len, Smaller(1.0, len)),
        ({"target": 4.0}, len, Smaller(4.0, len)),
        ({"tolerance": 0.1}, len, Within(0.1, len)),
        ({"max_drop": 0.1}, len, Keeping(len, 0.1)),
        ({"max_drop": 0.1, "target": 3.0}, len, Keeping(len, 0.1, 3.0)),
        ({"max_flips": 0.1}, None, Promise(max_flips=0.1)),
        ({"max_flips": 0.1, "confidence": 0.9}, None, Promise(max_flips=0.1, confidence=0.9)),
    ],
)
def test_options_are_goals(options, metric, goal):
    assert compress._goal(compress.CompressOptions(model="model", **options), metric) == goal


def test_a_promise_is_of_texts_that_were_not_trained_on():
    parts = {
        name: (np.full((2, 3), n, "int32"), np.zeros(2, int))
        for n, name in enumerate(("train", "test", "validation"))
    }
    run, _ = a_run_of_known_answers(**parts)
    assert sorted(run.new_inputs()[:, 0]) == [1, 1, 2, 2]
    del run.parts["validation"]
    assert set(run.new_inputs()[:, 0]) == {1}


def test_a_promise_is_printed_and_recorded(tmp_path, capsys):
    layers = [keras.layers.Dense(24), keras.layers.Dense(3, activation="softmax")]
    command = saved(tmp_path, *layers, size=24, rows=80)
    command += ["--max-flips", "0.1", "--confidence", "0.9"]
    assert main(command) == 0
    results = json.loads((tmp_path / "model-compressed" / "results.json").read_text())
    count = results["promise"]["count"]
    assert (results["promise"]["limit"], count["confidence"], count["rows"]) == (0.1, 0.9, 40)
    assert f"{count['flips']} of 40 held-out rows did" in capsys.readouterr().out


def test_the_runtime_reaches_compress(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("keras_small.compress", lambda *_, **given: calls.append(given))
    field = compress.CompressOptions.model_fields["for_runtime"]
    assert choices(field) == tuple(RUNTIMES)
    for runtime in (None, *RUNTIMES):
        args = compress.CompressOptions(model=str(tmp_path), target=2.0, for_runtime=runtime)
        compress._call("model", args, None, None)
    assert [given["for_runtime"] for given in calls] == [None, *RUNTIMES]


def test_the_vocabulary_follows_the_new_ids():
    words = ["", "[UNK]", "a", "b", "c"]
    run = SimpleNamespace(
        vectorizer=SimpleNamespace(get_vocabulary=lambda: words),
        class_names=["x"],
        _max_words=7,
        fingerprint="of the texts",
    )
    # Each new id's old one; the sixth row of the embedding stands for no word.
    renumbering = Renumbering("embedding", np.array([0, 1, 3, 4, 5, 2]))
    found = ClassifierRun.description(run, SimpleNamespace(renumbering=renumbering))
    assert found["vocabulary"] == ["", "[UNK]", "b", "c", "a"]


def test_thinned_texts_keep_some_words_in_order():
    ids = np.arange(1, 1001)[None] * np.array([[1], [1]])
    ids[1, 500:] = 0
    result = thin_out(ids)
    for row, limit in zip(result, (1000, 500), strict=True):
        words = row[row != 0]
        assert 0.2 * limit < len(words) < 0.4 * limit
        assert (np.diff(words) > 0).all()
        assert words.max() <= limit
        assert (row[len(words) :] == 0).all()
    # The first word is kept as often as any other.
    assert 20 < np.count_nonzero(thin_out(np.tile(np.arange(1, 11), (100, 1)))[:, 0] == 1) < 40


@pytest.mark.parametrize("damage", ["empty.npy", "truncated.npz", "checksum.npz"])
def test_damaged_inputs_are_reported_in_one_line(damage, tmp_path, capsys):
    file, *_ = saved(tmp_path, keras.layers.Dense(64))
    path = tmp_path / damage
    np.savez(path.with_suffix(".npz"), a=np.ones((8, 64)))
    content = path.with_suffix(".npz").read_bytes()
    broken = bytearray(content)
    broken[200] ^= 1
    path.write_bytes({"e": b"", "t": content[:100], "c": bytes(broken)}[damage[0]])
    command = [file, "--data", str(path), "--target", "2"]
    assert_refused(capsys, command, f"error: Could not read the inputs {path}: ", main=main)


def test_a_table_measures_a_file_which_is_exported(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 16)).astype("float32")
    layers = [keras.layers.Reshape((16,)), keras.layers.Dense(32), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((4, 4)), *layers])
    labels = model.predict(x.reshape(60, 4, 4), verbose=0).argmax(axis=1)
    rows = [",".join(map(str, [label, *row])) for label, row in zip(labels, x, strict=True)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["class," + ",".join(f"x{n}" for n in range(16)), *rows]))
    model.save(tmp_path / "model.keras")
    options = [str(tmp_path / "model.keras"), "--data", str(table), "--max-drop", "0.1"]
    options += ["--bits", "8"]
    assert main([*options, "--label-column", "class", "--export", "onnx"]) == 0
    report = json.loads((tmp_path / "model-compressed" / "report.json").read_text())
    assert (report["metric_before"], report["rows"]) == (1.0, 30)  # half of the rows each
    assert report["metric_after"] >= 0.9
    assert report["bytes_after"] < report["bytes_before"]
    page = (tmp_path / "model-compressed" / "report.html").read_text()
    facts = [f"{tmp_path}/model.keras, on 20", f"accuracy on half of {table} was 1.0000, and is"]
    assert all(text in page for text in (*facts, "smaller", "data:image/png;base64,", "dense"))
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model-compressed" / "model.onnx")
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x.reshape(60, 4, 4)})
    assert (outputs.argmax(axis=1) == labels).mean() >= 0.9
    for text, column, message in (
        ("class,x0\n1,2\n", "other", "with the columns class, x0."),
        ("class,x0\n1,2\nb,3\n", "class", "row 3: Expected the number of a class: 0, 1,"),
        ("class,x0\n1,2\n0,3\n", "class", "1 columns beside the label"),
        ("class,x0\n1,2\n", "class", "with 1"),
        ("class,x0\n1e10,2\ninf,3\n", "class", "outputs. Received: '1e10'; row 3: Expected"),
        ("class,x0\n1,2\n-1,3\n", "class", "model's outputs. Received: '-1'"),
        ("class,x0\n1,2\n0.5,3\n", "class", "model's outputs. Received: '0.5'"),
    ):
        table.write_text(text)
        assert_refused(capsys, [*options, "--label-column", column], message, main=main)
    message = "Expected --label-column NAME with a table"
    assert_refused(capsys, [*options[:3], "--bits", "8"], message, main=main)


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_output_tells_two_classes(activation):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype("float32")
    dense = keras.layers.Dense(1, activation, use_bias=False)
    model = keras.Sequential([keras.Input((3,)), dense])
    dense.set_weights([np.array([[3.0], [0.0], [0.0]])])
    labels = (x[:, 0] > 0).astype(int)
    for classes, expected in ((labels, 1.0), (1 - labels, 0.0)):
        assert halves(x, classes, (None, 3), "float32")[1](model) == expected
    with pytest.raises(InputError, match=r"the classes 0 to 2\. Received: outputs \(30, 1\)"):
        halves(x, 2 * labels, (None, 3), "float32")[1](model)


@pytest.mark.parametrize("runtime", ["litert", "openvino"])
def test_a_small_model_is_written_for_a_runtime(runtime, tmp_path):
    if keras.backend.backend() not in FORMS[".tflite"].writers:
        pytest.skip("these files are written on TensorFlow")
    pytest.importorskip({"litert": "ai_edge_litert"}.get(runtime, runtime))
    keras.Sequential([keras.Input((16,)), keras.layers.Dense(64)]).save(tmp_path / "net.keras")
    assert main([str(tmp_path / "net.keras"), "--target", "2", "--export", runtime]) == 0
    folder = tmp_path / "net-compressed"
    inputs = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")
    (outputs,) = file_outputs(folder / FILES[runtime])(inputs)
    expected = keras.models.load_model(folder / "model.keras").predict(inputs, verbose=0)
    assert relative_error(outputs, expected) < 0.02
    sizes = [path.stat().st_size for path in folder.glob("model.[tbx]*")]
    assert 1100 < sum(sizes) < 12_000  # OpenVINO's XML is text


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch, capsys):
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]).save(tmp_path / "net.keras")
    monkeypatch.setitem(FORMS, ".onnx", dataclasses.replace(FORMS[".onnx"], writers={"torch": ""}))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert main([str(tmp_path / "net.keras"), "--bits", "8", "--export", "onnx"]) == 2
    error = capsys.readouterr().err
    assert (
        "Exporting to ONNX works on torch only: start again with KERAS_BACKEND=torch, which"
        in error
    )
    assert ("pip install '.[torch]'" in error) == (importlib.util.find_spec("torch") is None)
    assert [path.name for path in tmp_path.iterdir()] == ["net.keras"]


def test_versions_in_names_are_kept_apart(tmp_path):
    for name in ("net.v1", "net.v2"):
        file, *_ = saved(tmp_path, keras.layers.Dense(4))
        path = Path(file).rename(tmp_path / f"{name}.keras")
        assert main([str(path), "--bits", "8"]) == 0
        assert (tmp_path / f"{name}-compressed" / "model.keras").is_file()


def test_other_formats_of_keras_are_read(tmp_path):
    path = tmp_path / "model.h5"
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.save(path)
    np.testing.assert_array_equal(load_file(path).get_weights()[0], model.get_weights()[0])
    path = tmp_path / "other.weights.h5"
    model.save_weights(path)
    with pytest.raises(InputError, match=r"without other\.json\. Write it with"):
        load_file(path)
    (tmp_path / "other.json").write_text(model.to_json())
    np.testing.assert_array_equal(load_file(path).get_weights()[0], model.get_weights()[0])


def test_a_saved_model_is_refused(tmp_path, capsys):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.export(tmp_path / "exported", verbose=False)
    expected = "a SavedModel, which has operations and no layers. Save the model with model.save"
    assert_refused(capsys, [str(tmp_path / "exported")], expected, main=main)
    assert os.listdir(tmp_path) == ["exported"]


def test_a_preset_is_read(tmp_path):
    hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    backbone = hub.models.BertBackbone(**sizes, intermediate_dim=8, max_sequence_length=6)
    for model in (backbone, hub.models.BertTextClassifier(backbone=backbone, num_classes=2)):
        folder = tmp_path / type(model).__name__
        model.save_to_preset(str(folder))
        read = load_file(folder)
        assert_same_arrays(model.get_weights(), read.get_weights())


@keras.saving.register_keras_serializable("tests")
class Nested(keras.layers.Layer):
    """Holds a layer in a list in a list, whose weights Keras can leave out with a warning."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.blocks = [[keras.layers.Dense(4)]]

    def build(self, shape):
        self.blocks[0][0].build(shape)

    def call(self, inputs):
        return self.blocks[0][0](inputs)


@pytest.mark.filterwarnings("ignore")  # as for a user
def test_weights_that_are_not_loaded_are_an_error(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((4,)), Nested(name="nested")]).save(path)
    assert load_file(path).count_params() == load_model(path, "").count_params() == 20
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    weights = io.BytesIO(files["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        del file["layers/nested/blocks/container"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, "model.weights.h5": weights.getvalue()}.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=r"without a warning.*Skipping nested container"):
        load_model(path, "")
    with pytest.raises(InputError, match=r"Could not load the model.*Skipping nested container"):
        load_file(path)


@keras.saving.register_keras_serializable("test_compress")
class Unnamed(Nested):
    """Cannot be made anew, because it takes no name."""

    def __init__(self):
        super().__init__(name="unnamed")


def test_the_cause_of_a_failed_loading_is_told(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((4,)), Unnamed()]).save(path)
    for load in (load_file, lambda path: load_model(path, "")):
        with pytest.raises(InputError, match=r"__init__.* got an unexpected keyword"):
            load(path)
    error = ValueError("Exception encountered: \x1b[1mwrong\x1b[0m\n\nArguments received by A")
    assert cause_of(error) == "wrong"


def test_a_wrong_checksum_is_named(tmp_path):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.save(path)
    content, weights = path.read_bytes(), keras.ops.convert_to_numpy(model.layers[0].kernel)
    assert content.count(weights.tobytes()) == 1
    path.write_bytes(content.replace(weights.tobytes(), (2 * weights).tobytes()))
    for load in (load_file, lambda path: load_model(path, "")):
        with pytest.raises(InputError, match="a checksum is wrong"):
            load(path)


@pytest.mark.filterwarnings("ignore")
def test_a_harmless_warning_is_refused_in_a_run_only(tmp_path, monkeypatch):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)]).save(path)
    load = keras.models.load_model

    def warned(path, compile):
        warnings.warn("Something harmless.", stacklevel=2)
        return load(path, compile=compile)

    monkeypatch.setattr(keras.models, "load_model", warned)
    with pytest.raises(InputError, match=r"with the warning: Something harmless\."):
        load_model(path, "")
    with pytest.warns(UserWarning, match="harmless"):
        assert load_file(path).count_params() == 20
