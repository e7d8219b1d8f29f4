"""Classifiers computed by the engines that they were exported with."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from serving_servers import as_process, get, in_thread, post, wait_for

from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import learn_words, split_words
from keras_tnattn_runtime import reader
from keras_tnattn_runtime.layout import ENGINES, SIGNATURES
from keras_tnattn_serving.__main__ import main
from keras_tnattn_serving.servable import LazyModel, Servable
from keras_tnattn_serving.settings import Settings
from keras_tnattn_train.exports import Classifier, Version, export

ROOT = Path(__file__).resolve().parents[2]
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
    task = Classifier(model, words.layer(), names, split_words)
    return export(task, folder, Version(engines=tuple(MODULES)))


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
    requests = [
        ("serving_default", {"text": np.array(texts, object)}),
        *(
            ("ids", {"ids": np.array(ids, "int32").reshape(len(ids), -1)})
            for ids in ([[2, 5, 1], [3, 0, 0]], [[]], [[], []], [[0]])
        ),
    ]
    for name, inputs in requests:
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
    content = reader.read_sealed(text)
    text.write_bytes(reader.sealed({**content, "format": 99}))
    assert Servable(path, "auto").engine == "tensorflow"
    assert "version 99" in caplog.text


def test_an_engine_that_a_version_lacks_is_named(version, tmp_path):
    path = copied(version, tmp_path)
    shutil.rmtree(path / ENGINES / "litert")
    with pytest.raises(ValueError, match=r"engines/litert.*--engine auto"):
        Servable(path, "litert")


# What a message says of a file with another bit.
DAMAGED = {
    "variables/*.data-*": "Export the model again",
    "saved_model.pb": "Export the model again",
    "assets.extra/signatures.json": "Export the model again",
    "assets.extra/engines/onnxruntime/model.onnx": "Copy it again",
    "assets.extra/engines/onnxruntime/text.json": "Copy it again",
}


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
        for number, (name, said) in enumerate(DAMAGED.items(), start=2):
            partial = shutil.copytree(version, tmp_path / "partial")
            file = next(partial.glob(name))
            damaged = bytearray(file.read_bytes())
            damaged[len(damaged) // 2] ^= 1  # of the size that is expected
            file.write_bytes(damaged)
            partial.rename(tmp_path / "pets" / str(number))

            def failed(number=str(number)):
                versions = {x["version"]: x for x in get(model)[1]["model_version_status"]}
                new = versions.get(number, {"state": ""})
                return new["status"]["error_message"] if new["state"] == "END" else ""

            wait_for(failed)
            assert "damaged" in failed()
            assert said in failed()
            assert "\n" not in failed()
            assert post(f"{model}:predict", asked) == (200, answer)


# A server, asked once by the classifier's default signature and for all that is told about it.
ALONE = """
import json, sys
from serving_servers import as_process, get, in_thread, post
folder, engine, text = sys.argv[1:]
with in_thread(folder, engine=engine, deadline_s=110) as (url, inference):
    model = f"{url}/v1/models/pets"
    answers = [get(url + path) for path in ("/v2", "/v2/models/pets", "/page/main.js", "/metrics")]
    answers += [get(model), get(model + "/metadata"), get(model + "/card")]
    answers.append(post(model + ":predict", {"instances": [text]}))
    loaded = {"tensorflow", "keras", "keras_tnattn"} & set(sys.modules)
    later = post(model + ":predict", {"signature_name": "explain", "inputs": [text]})
    print(json.dumps([sorted(loaded), answers[1], answers[5], answers[-1], later]))
assert [status for status, _ in answers] == [200] * 8, answers
assert "tensorflow" in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", MODULES)
def test_a_server_loads_tensorflow_when_a_signature_needs_it(version, tmp_path, engine):
    copied(version, tmp_path)
    paths = [str(ROOT), str(ROOT / "tests/support")]
    command = [sys.executable, "-c", ALONE, str(tmp_path), engine, TEXTS[0]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded, tensors, metadata, labels, explained = json.loads(done.stdout)
    assert loaded == []
    with in_thread(tmp_path, engine="tensorflow") as (url, _):
        model = f"{url}/v1/models/pets"
        assert tensors == list(get(f"{url}/v2/models/pets"))
        assert metadata == list(get(f"{model}/metadata"))
        assert (
            labels[1]["predictions"][0]["label"]
            == (post(f"{model}:predict", {"instances": TEXTS[:1]})[1]["predictions"][0]["label"])
        )
        explain = {"signature_name": "explain", "inputs": TEXTS[:1]}
        assert explained == list(post(f"{model}:predict", explain))


def test_a_version_without_a_description_of_its_signatures_is_loaded_at_once(version, tmp_path):
    path = copied(version, tmp_path)  # as older exports
    described = Servable(path, "onnxruntime")
    (path / SIGNATURES).unlink()
    loaded = Servable(path, "onnxruntime")
    assert loaded.engine == "onnxruntime"
    assert loaded.metadata == described.metadata
    assert loaded.signatures["explain"].model_to_load() is None


def test_a_damaged_description_is_named(version, tmp_path):
    path = copied(version, tmp_path)
    file = path / SIGNATURES
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"signatures\.json is damaged.* Export the model again"):
        Servable(path, "auto")


def test_what_tensorflow_cannot_load_later_is_named_once_it_is_asked_for(version, tmp_path):
    path = copied(version, tmp_path)
    file = path / "saved_model.pb"
    file.write_bytes(b"?" * 1000)  # of another version of TensorFlow, say
    content = reader.read_sealed(path / SIGNATURES)
    content["files"][file.name] = reader.describe_file(file)
    (path / SIGNATURES).write_bytes(reader.sealed(content))
    with in_thread(tmp_path, engine="onnxruntime") as (url, _):
        model = f"{url}/v1/models/pets:predict"
        explain = {"signature_name": "explain", "inputs": TEXTS}
        for _ in range(2):
            status, answer = post(model, explain)
            assert status == 500
            assert "explain needs the SavedModel: Could not load" in answer["error"]
            assert "Export the model again" in answer["error"]
            assert "\n" not in answer["error"]
            assert post(model, {"instances": TEXTS})[0] == 200


def test_who_asks_while_the_saved_model_loads_is_told_to_ask_again(version, tmp_path, monkeypatch):
    copied(version, tmp_path)
    loading = Future()
    monkeypatch.setattr(LazyModel, "start_loading", lambda self: loading)
    with in_thread(tmp_path, engine="onnxruntime", deadline_s=0.3) as (url, _):
        model = f"{url}/v1/models/pets:predict"
        explain = {"signature_name": "explain", "inputs": TEXTS}
        status, answer = post(model, explain)
        assert (status, "still loading: ask again" in answer["error"]) == (503, True)
        assert post(model, {"instances": TEXTS})[0] == 200


def test_an_engine_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([str(tmp_path), "--engine", "onnxruntime"]) == 2
    assert "pip install '.[onnx]'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="engine='tvm'"):
        Settings(engine="tvm")


def test_workers_share_a_port_and_are_replaced(version, tmp_path, capsys):
    copied(version, tmp_path)
    body, options = {"instances": TEXTS[:1]}, ("--engine", "onnxruntime", "--workers", "2")
    with as_process(tmp_path, *options, "--poll-s", 0.1) as (url, process):
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        sockets, port = Path("/proc/net/tcp"), url.rpartition(":")[2]
        listening = f":{int(port):04X} 00000000:0000 0A"
        wait_for(lambda: sockets.read_text().count(listening) == 2)
        asked = 30
        for _ in range(asked):
            assert post(f"{url}/v1/models/pets:predict", body)[0] == 200
        counted = 'keras_tnattn_serving_requests_total{code="200",method="POST",model="pets"}'
        assert f"{counted} {asked}.0" in get(f"{url}/metrics")[1]
        assert main([str(tmp_path), *options, "--port", port]) == 2
        assert "Could not listen" in capsys.readouterr().err
        before = set(path.read_text().split())
        os.kill(int(min(before)), signal.SIGKILL)
        wait_for(lambda: len(set(path.read_text().split()) - before) == 1)
        wait_for(lambda: sockets.read_text().count(listening) == 2)
        for _ in range(asked):
            assert post(f"{url}/v1/models/pets:predict", body)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_workers_end_with_the_process_that_began_them(version, tmp_path):
    copied(version, tmp_path)
    options = ("--engine", "onnxruntime", "--workers", 2, "--drain-s", 0)
    with as_process(tmp_path, *options) as (_, process):
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = [Path("/proc", number) for number in path.read_text().split()]
        process.kill()
        wait_for(lambda: not any(worker.exists() for worker in workers))
