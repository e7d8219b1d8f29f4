"""Continuations of texts over HTTP, whole and as they are written."""

import contextlib
import http.client
import json
import re
import shutil
import threading
import time
import urllib.parse

import pytest
from import_path import run_python

pytest.importorskip("onnxruntime")

from serving_servers import get, in_thread, post, wait_for

from keras_tnattn_runtime import reader
from keras_tnattn_serving.__main__ import _hint
from keras_tnattn_serving.servable import Servable


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tales):
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(tales, folder / "tales")
    return folder


@pytest.fixture(scope="module")
def served(folder):
    with in_thread(folder) as (url, inference):
        yield f"{url}/v2/models/tales", inference


@pytest.fixture
def url(served):
    return served[0]


@pytest.fixture(scope="module")
def alone(folder):
    """The model, read without a server."""
    return reader.load(folder / "tales" / "1" / "assets.extra" / "engines" / "onnxruntime")


@contextlib.contextmanager
def streamed(url, body):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("POST", f"{parts.path}/generate_stream", json.dumps(body))
    yield connection.getresponse()
    connection.close()


def events(url, body):
    """Returns the status, the type and the events of a stream."""
    with streamed(url, body) as answer:
        text = answer.read().decode()
    kind = answer.getheader("content-type").partition(";")[0]
    if kind != "text/event-stream":
        return answer.status, kind, json.loads(text)
    assert text.endswith("\n\n")
    found = text[:-2].split("\n\n")
    return answer.status, kind, [json.loads(event.removeprefix("data: ")) for event in found]


def test_the_whole_continuation(url, alone):
    head = {"model_name": "tales", "model_version": "1"}
    body = {"text_input": "bad ", "parameters": {"max_tokens": 20}}
    assert post(f"{url}/generate", body) == (
        200,
        {**head, "text_output": alone("bad ", max_tokens=20)},
    )
    options = {"max_tokens": 20, "temperature": 2, "top_k": 5, "top_p": 0.9, "min_p": 0.01}
    options |= {"seed": 3, "repetition_penalty": 1.5, "stop": "e"}
    answer = post(f"{url}/versions/1/generate", {"text_input": "bad ", "parameters": options})
    assert answer == (200, {**head, "text_output": alone("bad ", **options)})
    status, answer = post(f"{url}/generate", {"text_input": "", "parameters": {"max_tokens": None}})
    assert (status, answer["text_output"]) == (200, alone(""))


def test_one_event_for_each_token(url, alone):
    body = {"text_input": "bad ", "parameters": {"max_tokens": 20, "temperature": 1.0}}
    status, kind, found = events(url, body)
    assert (status, kind) == (200, "text/event-stream")
    expected = list(alone.stream("bad ", 20, 1.0))
    assert found == [
        {"model_name": "tales", "model_version": "1", "text_output": text} for text in expected
    ]


def test_a_text_that_ends_at_once_has_an_event(served, monkeypatch):
    url, inference = served
    with inference.repository.use("tales") as used:
        model = used.servable.language_model
    monkeypatch.setattr(model, "stream", lambda *_, **__: iter(()))
    nothing = {"model_name": "tales", "model_version": "1", "text_output": ""}
    status, kind, found = events(url, {"text_input": "a"})
    assert (status, kind, found) == (200, "text/event-stream", [nothing])
    assert post(f"{url}/generate", {"text_input": "a"}) == (200, nothing)


def test_the_first_token_comes_before_the_last_is_computed(served, monkeypatch):
    url, inference = served
    with inference.repository.use("tales") as used:
        model = used.servable.language_model
    started, read = [], threading.Event()

    def slow(*_, **__):
        for n in range(3):
            started.append(n)
            yield f"{n}"
            read.wait(60)
            time.sleep(0.5)

    monkeypatch.setattr(model, "stream", slow)
    with streamed(url, {"text_input": ""}) as answer:
        assert b'"text_output": "0"' in answer.readline()
        assert started == [0]
    read.set()
    time.sleep(2)
    assert len(started) < 3  # nobody reads the rest
    assert post(f"{url}/generate", {"text_input": ""})[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "Expected text_input"),
        ({"text_input": 5}, 400, "Expected text_input"),
        ({"text_input": "a", "parameters": []}, 400, "parameters to be an object"),
        ({"text_input": "a", "max_tokens": 5}, 400, "text_input and parameters.*max_tokens"),
        ({"text_input": "a", "parameters": {"beams": 2}}, 400, "max_tokens, .*'beams'"),
        ({"text_input": "a", "parameters": {"seed": "x"}}, 400, "seed of type int.*'x'"),
        ({"text_input": "a", "parameters": {"seed": True}}, 400, "seed of type int.*'True'"),
        ({"text_input": "a", "parameters": {"top_p": 2}}, 400, "Received: top_p=2"),
        ({"text_input": "東"}, 400, "Received: '東'"),
        ({"text_input": "a" * 39, "parameters": {"max_tokens": 9}}, 400, "at most 31 tokens"),
        ({"text_input": "a" * 20_001}, 413, "--max-text.*20001 bytes"),
    ],
)
def test_bad_requests(url, body, status, message):
    answer = post(f"{url}/generate", body)
    assert answer[0] == status
    assert re.search(message, answer[1]["error"])
    stream = events(url, body)
    assert stream[0] == status
    assert stream[2] == answer[1]


def test_other_models_and_methods(url, served):
    assert post(url.replace("tales", "none") + "/generate", {"text_input": ""})[0] == 404
    assert get(f"{url}/generate")[0] == 405
    status, answer = post(url.replace("/v2", "/v1") + ":predict", {"instances": ["a"]})
    assert status == 400
    assert "serving_default" in answer["error"]
    assert "/generate" in answer["error"]
    status, answer = get(url)
    assert status == 200
    assert answer["inputs"] == answer["outputs"] == []
    assert answer["platform"] == "onnxruntime"


def test_a_limit_of_texts_and_of_time(folder, monkeypatch):
    def endless(*_, **__):
        while True:
            time.sleep(0.05)
            yield "x"

    monkeypatch.setattr(reader.LanguageModel, "stream", endless)
    monkeypatch.setattr(Servable, "warm_up", lambda *_: None)
    with in_thread(folder, max_queue=1, deadline_s=1.5) as (url, _):
        url = f"{url}/v2/models/tales"
        with streamed(url, {"text_input": ""}) as answer:
            answer.readline()
            status, refused = post(f"{url}/generate", {"text_input": ""})
            assert status == 429
            assert "--max-queue" in refused["error"]
            rest = answer.read()
        last = rest.decode().strip().split("\n\n")[-1]
        assert (
            "Deadline of 1.5 s (--deadline-s)" in json.loads(last.removeprefix("data: "))["error"]
        )
        status, late = post(f"{url}/generate", {"text_input": ""})
        assert status == 504
        assert "--deadline-s" in late["error"]


def test_a_text_that_hangs_delays_nobody_beyond_the_deadline(folder, monkeypatch):
    hanging, ended = threading.Event(), []

    def slow(self, prompt, **_):
        if prompt == "a":
            hanging.wait(60)
            ended.append(prompt)
        return iter("bc")

    monkeypatch.setattr(reader.LanguageModel, "stream", slow)
    monkeypatch.setattr(Servable, "warm_up", lambda *_: None)
    with in_thread(folder, deadline_s=0.7) as (url, inference):
        generate = f"{url}/v2/models/tales/generate"
        assert post(generate, {"text_input": "a"})[0] == 504
        wait_for(lambda: list(inference.overdue()) == ["tales"])
        assert get(f"{url}/v2/health/ready")[0] == 503
        assert not ended
        hanging.set()
        wait_for(lambda: not inference.overdue())
        assert post(generate, {"text_input": "b"})[1]["text_output"] == "bc"


def test_a_failure_in_the_middle_is_an_event(folder, monkeypatch):
    def broken(*_, **__):
        yield "a"
        raise RuntimeError

    monkeypatch.setattr(reader.LanguageModel, "stream", broken)
    monkeypatch.setattr(Servable, "warm_up", lambda *_: None)
    with in_thread(folder) as (url, _):
        url = f"{url}/v2/models/tales"
        status, _, found = events(url, {"text_input": ""})
        assert status == 200
        assert found[0]["text_output"] == "a"
        assert found[1] == {"error": "The model failed: RuntimeError"}
        assert post(f"{url}/generate", {"text_input": ""})[0] == 500


def test_long_prompts_are_refused_before_they_are_computed(folder):
    with in_thread(folder, max_length=5) as (url, _):
        status, answer = post(f"{url}/v2/models/tales/generate", {"text_input": "a" * 6})
        assert status == 413
        assert "--max-length" in answer["error"]


def test_the_engine_tensorflow_has_no_saved_model(folder):
    with in_thread(folder, engine="tensorflow", loaded=False) as (url, inference):
        wait_for(lambda: inference.repository.scanned)
        wait_for(lambda: not inference.repository.loading())
        (status,) = get(f"{url}/v1/models/tales")[1]["model_version_status"]
        message = status["status"]["error_message"]
        assert "has onnxruntime alone" in message
        assert "--engine auto" in message


def test_the_folder_of_one_model_is_recognized(folder):
    assert "the folder of one model" in _hint(folder / "tales")


def test_a_damaged_folder_is_not_served(folder, tmp_path):
    shutil.copytree(folder / "tales", tmp_path / "tales")
    path = tmp_path / "tales/1/assets.extra/engines/onnxruntime/step.onnx"
    path.write_bytes(path.read_bytes()[:-10])
    with in_thread(tmp_path, engine="onnxruntime", loaded=False) as (url, inference):
        wait_for(lambda: inference.repository.scanned and not inference.repository.loading())
        assert post(f"{url}/v2/models/tales/generate", {"text_input": ""})[0] == 404
        (status,) = get(f"{url}/v1/models/tales")[1]["model_version_status"]
        assert "Copy the file again" in status["status"]["error_message"]
    text = path.with_name("text.json")
    for content in (b'{"format": 1}', reader.sealed({"format": 1})):
        text.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            reader.load(path.parent)


def test_needs_neither_tensorflow_nor_keras(folder):
    code = (
        "import sys; from pathlib import Path; from keras_tnattn_serving.servable import Servable; "
        f"model = Servable(Path({str(folder / 'tales' / '1')!r}), 'auto'); model.warm_up(32); "
        "print(model.engine, sorted({'tensorflow', 'keras', 'keras_tnattn'} & set(sys.modules)))"
    )
    done = run_python("-c", code)
    assert done.stdout == "onnxruntime []\n"
