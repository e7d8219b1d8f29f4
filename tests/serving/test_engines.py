"""Classifiers computed by the engines that they were exported with."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from serving_servers import get, in_thread, post, wait_for

from keras_tnattn.export import export_classifier
from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import learn_words
from keras_tnattn_serving.__main__ import main
from keras_tnattn_serving.layout import ENGINES
from keras_tnattn_serving.servable import Servable
from keras_tnattn_serving.settings import Settings

TEXTS = ["A red fish!", "the blue bird flies, high", "", "\u0130STANBUL \u03a3\u0391\u03a3"]
MODULES = {"onnxruntime": "onnxruntime", "litert": "ai_edge_litert"}


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    for module in MODULES.values():
        pytest.importorskip(module)
    words = learn_words(TEXTS, 50, max_words=9)
    model = text_classifier(words.vocabulary_size(), 3, "tsa", embedding_dim=8)
    folder = tmp_path_factory.mktemp("models") / "pets"
    names = ["fish", "bird", "\u00e7ity"]
    return export_classifier(model, words.layer(), names, folder, engines=tuple(MODULES))


def copied(version, folder):
    return shutil.copytree(version, folder / "pets" / "1")


@pytest.mark.parametrize("engine", MODULES)
def test_engines_answer_as_tensorflow(version, engine):
    assert json.loads((version / "assets.extra/model_card.json").read_text())["engines"] == [
        *MODULES
    ]
    plain, fast = Servable(version), Servable(version, engine)
    assert (plain.engine, fast.engine) == ("tensorflow", engine)
    texts = [*(text.encode() for text in TEXTS), b"red fish\xff"]  # the last is not UTF-8
    arrays = {
        "serving_default": {"text": np.array(texts, object)},
        "ids": {"ids": np.array([[2, 5, 1], [3, 0, 0]], "int32")},
    }
    for name, inputs in arrays.items():
        expected, received = (x.signatures[name](inputs) for x in (plain, fast))
        assert received["label"].tolist() == expected["label"].tolist()
        np.testing.assert_allclose(received["probabilities"], expected["probabilities"], atol=1e-5)
        assert received["probabilities"].dtype == expected["probabilities"].dtype


def test_the_saved_model_works_alone(version, tmp_path):
    path = copied(version, tmp_path)
    shutil.rmtree(path / ENGINES)
    assert Servable(path, "auto").engine == "tensorflow"
    outputs = tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(TEXTS))
    assert outputs["probabilities"].shape == (4, 3)


def test_auto_serves_what_it_has(version, tmp_path, caplog):
    assert Servable(version, "auto").engine == "onnxruntime"
    path = copied(version, tmp_path)
    model = path / ENGINES / "onnxruntime" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-50])
    assert Servable(path, "auto").engine == "litert"
    assert "model.onnx" in caplog.text
    assert "Copy the file again" in caplog.text
    text = path / ENGINES / "litert" / "text.json"
    text.write_text(text.read_text("utf-8").replace('"format":1', '"format":99'), "utf-8")
    assert Servable(path, "auto").engine == "tensorflow"
    assert "version 99" in caplog.text


def test_an_engine_that_a_version_lacks_is_named(version, tmp_path):
    path = copied(version, tmp_path)
    shutil.rmtree(path / ENGINES / "litert")
    with pytest.raises(ValueError, match=r"engines/litert.*--engine auto"):
        Servable(path, "litert")


def test_bad_versions_have_one_line_and_the_old_one_serves(version, tmp_path, caplog):
    copied(version, tmp_path)
    with in_thread(tmp_path, poll_s=0.05, engine="onnxruntime") as (url, _):
        model = f"{url}/v1/models/pets"
        asked = {"instances": TEXTS[:2]}
        status, answer = post(f"{model}:predict", asked)
        assert status == 200
        bad = {"signature_name": "ids", "instances": [[2, 9999]]}
        status, error = post(f"{model}:predict", bad)
        largest = re.match(r"Expected ids of 0 to (\d+)\. ", error["error"])
        assert status == 400
        for token, expected in ((int(largest[1]), 200), (int(largest[1]) + 1, 400)):
            ids = {"signature_name": "ids", "instances": [[2, token]]}
            assert post(f"{model}:predict", ids)[0] == expected
        partial = shutil.copytree(version, tmp_path / "partial")
        next(partial.glob("variables/*.data-*")).write_bytes(b"?")
        partial.rename(tmp_path / "pets" / "2")

        def failed():
            versions = {x["version"]: x for x in get(model)[1]["model_version_status"]}
            new = versions.get("2", {"state": ""})
            return new["status"]["error_message"] if new["state"] == "END" else ""

        wait_for(failed)
        assert "Could not load" in failed()
        assert "Export the model again" in failed()
        assert "\n" not in failed()
        assert post(f"{model}:predict", asked) == (200, answer)


def test_an_engine_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([str(tmp_path), "--engine", "onnxruntime"]) == 2
    assert "pip install 'keras-tnattn[onnx]'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="engine='tvm'"):
        Settings(engine="tvm")
