"""The command `keras-tnattn export`."""

import json

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("texts are exported on TensorFlow", allow_module_level=True)

from translator_runs import make_run

import keras_small
from keras_tnattn_runtime import reader
from keras_tnattn_train import compress, export, predict
from keras_tnattn_train.cli import main
from keras_tnattn_train.exports import pages
from keras_tnattn_train.language import generate

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        f"{'good' if i % 2 else 'bad'} film {i},{'plus' if i % 2 else 'minus'}" for i in range(60)
    ]
    (folder / "mine.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    arguments = f"classify --dataset {folder / 'mine.csv'} --attention tsa --embedding-dim 8"
    assert main([*arguments.split(), "--epochs", "2", "--run-dir", str(folder / "mine")]) == 0
    return folder / "mine"


def test_folders_say_what_the_run_says(run, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    folders = {kind: tmp_path / kind for kind in ("onnx", "litert")}
    options = [word for kind, folder in folders.items() for word in (f"--{kind}", str(folder))]
    assert export.main([str(run), *options]) == 0
    printed = capsys.readouterr().out
    assert f"{(tmp_path / 'onnx' / 'model.onnx').stat().st_size:,} bytes  model.onnx" in printed
    texts = ["a good film", "a BAD film!", "?"]
    assert predict.main([str(run), *texts, "--format", "jsonl"]) == 0
    expected = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    for folder in folders.values():
        assert reader.load(folder)(texts) == expected


@pytest.mark.slow
def test_a_translator_translates_as_predict_does(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    make_run(tmp_path / "run", "sdpa")
    folder = tmp_path / "onnx"
    assert export.main([str(tmp_path / "run"), "--onnx", str(folder)]) == 0
    assert "bytes  step.onnx" in capsys.readouterr().out
    texts = ["Eu, vi três gatos.", "rios"]
    assert predict.main([str(tmp_path / "run"), *texts, "--format", "jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert reader.load(folder)(texts) == [json.loads(line)["translation"] for line in lines]


@pytest.mark.slow
def test_a_language_model_continues_as_generate_does(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    (tmp_path / "a.txt").write_text("the cat sat.\n\nthe dog sat.\n\nthe cow ran.\n\n" * 9, "utf-8")
    sizes = ["--length", "16", "--model-dim", "8", "--num-layers", "1", "--epochs", "1"]
    language = ["language", "--corpus", str(tmp_path / "a.txt"), *sizes, "--name", "songs"]
    served = ["--export", "--saved-models", str(tmp_path / "served")]
    assert main([*language, "--run-dir", str(tmp_path / "run"), *served]) == 0
    assert export.main([str(tmp_path / "run"), "--onnx", str(tmp_path / "onnx")]) == 0
    capsys.readouterr()
    options = ["--max-tokens", "9", "--temperature", "1", "--seed", "3"]
    assert generate.main([str(tmp_path / "run"), "the c", *options]) == 0
    sampled = {"max_tokens": 9, "temperature": 1, "seed": 3}
    text = reader.load(tmp_path / "onnx")("the c", **sampled)
    assert capsys.readouterr().out == f"the c{text}\n"
    assert compress.main([str(tmp_path / "run"), "--bits", "8", *served]) == 0
    assert (
        f"exported to {tmp_path / 'served' / 'songs-compressed' / '1'}" in capsys.readouterr().out
    )
    cards = {}
    for name in ("songs", "songs-compressed"):
        version = tmp_path / "served" / name / "1" / "assets.extra"
        cards[name] = card = json.loads((version / "model_card.json").read_text())
        assert (card["task"], card["data"]["name"]) == ("language", "a.txt")
        assert all(example in (tmp_path / "a.txt").read_text() for example in card["examples"])
        loaded = reader.load(version / "engines" / "onnxruntime")
        assert len(next(loaded.logits(loaded.prompt("the c"), 1))) == loaded.tokens.size
    whole = tmp_path / "served" / "songs" / "1" / "assets.extra" / "engines" / "onnxruntime"
    assert reader.load(whole)("the c", **sampled) == text
    measured = json.loads((tmp_path / "run" / "results.json").read_text())["test"]["bits_per_byte"]
    assert cards["songs"]["scores"]["bits_per_byte"] == round(measured, 4)
    assert cards["songs-compressed"]["scores"] != cards["songs"]["scores"]
    assert export.main([str(tmp_path / "run"), "--web", str(tmp_path / "page")]) == 2
    assert "which has no page" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_bad_input(run, tmp_path, capsys):
    def refused(*arguments):
        assert export.main([str(argument) for argument in arguments]) == 2
        return capsys.readouterr().err

    assert "Expected --onnx, --litert, --web or --saved-models" in refused(run)
    assert "does not exist" in refused(tmp_path / "none", "--onnx", tmp_path / "new")
    assert "which exists" in refused(run, "--onnx", tmp_path)
    assert "only with --web" in refused(run, "--onnx", "new", "--onnxruntime-web", "folder")
    missing = refused(run, "--web", tmp_path / "new" / "page", "--onnxruntime-web", tmp_path)
    assert "onnxruntime-web" in missing
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_classifier_of_the_package_is_exported(tmp_path, capsys):
    folder, page, served = (tmp_path / name for name in ("onnx", "a page", "saved"))
    for name in pages._RUNTIME_FILES:
        (tmp_path / name).touch()
    options = ["--onnx", folder, "--saved-models", served, "--web", page]
    options = [str(x) for x in (*options, "--onnxruntime-web", tmp_path)]
    assert export.main(["docstrings", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"look at it: python -m http.server --directory '{page}'\n")
    text = "Draws a line with markers on the axes of the figure."
    assert reader.load(folder)(text) == "matplotlib"
    for model in ("docstrings", str(served / "docstrings")):
        assert predict.main([model, text, "--format", "lines"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("matplotlib\t0.9")
    assert export.main(["dates-and-names", "--onnx", str(tmp_path / "other")]) == 2
    assert "Expected docstrings or minilm" in capsys.readouterr().err


@pytest.mark.slow
def test_the_sentence_encoder_of_the_package_is_exported(tmp_path, capsys):
    pytest.importorskip("constriction")
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "onnx"
    assert export.main(["minilm", "--onnx", str(folder)]) == 0
    assert "bytes  model.onnx" in capsys.readouterr().out
    texts = ["A cat sits on the mat.", "", "Interest rates rose again. " * 9]
    vectors = reader.load(folder).encode(texts)
    cosines = np.sum(vectors * keras_small.load("minilm").encode(texts), axis=1)
    assert cosines.min() > 0.99
    assert export.main(["minilm", "--saved-models", str(tmp_path / "served")]) == 2
    assert "which the server does not take" in capsys.readouterr().err
    for model in ("minilm", str(folder)):
        assert predict.main([model, "a text"]) == 2
        assert "Use its function encode" in capsys.readouterr().err
