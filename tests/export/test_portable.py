"""Folders with a model and its text, read without Keras and TensorFlow, and in a browser."""

import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("texts are exported on TensorFlow", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tnattn.export import export_portable, export_web, reader
from keras_tnattn.models import text_classifier
from keras_tnattn.text.words import learn_words, split_words

TEXTS = [
    "a red fish swims",
    "the blue bird flies, high",
    "it's \u0130STANBUL, \u03a3\u0391\u03a3 and Stra\u00dfe",
]
NAMES = ["fish", "bird", "<b>çity</b>"]
HOSTILE = [
    "",
    " \t\r\n\v\f",
    "\x00a\x00b",
    "\u0130I \u0131i \u03a3\u0391\u03a3 \u038c\u03a3\u039f\u03a3 \u1e9e\u00df \u01c5 \ufb01",
    "a\u00a0b\u2028c\u3000d\u200be",
    "e\u0301 \u0301 \ufeffx",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001d4b3\U0001d4ce \U0010ffff",
    "'quoted' it's ''",
    "\x1c\x1d\x85",
    "word" * 5000,
    '-_-[]\\^`{|}~!"#$%&()*+,./:;<=>?@',
]
RUNTIMES = {"onnxruntime": "onnxruntime", "litert": "ai_edge_litert"}


@functools.cache
def classifier():
    keras.utils.set_random_seed(0)
    words = learn_words([*TEXTS, *HOSTILE], 200, max_words=12)
    return text_classifier(words.vocabulary_size(), 3, "tsa", embedding_dim=8), words


def written(folder, runtime="onnxruntime"):
    pytest.importorskip(RUNTIMES[runtime])
    model, words = classifier()
    card = {"name": "pets", "examples": ["the red fish"]}
    return export_portable(model, words, NAMES, folder / "pets", runtime, TEXTS, card)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_reader_gives_the_classes_of_the_model(runtime, tmp_path):
    folder = written(tmp_path, runtime)
    files = {"text.json", "reader.py", "model.onnx" if runtime == "onnxruntime" else "model.tflite"}
    assert {path.name for path in folder.iterdir()} == files
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]
    model, words = classifier()
    expected = model.predict(words([*TEXTS, *HOSTILE]), verbose=0)
    loaded = reader.load(folder)
    np.testing.assert_allclose(loaded.probabilities([*TEXTS, *HOSTILE]), expected, atol=1e-5)
    labels = [NAMES[n] for n in expected.argmax(axis=1)]
    assert loaded([*TEXTS, *HOSTILE]) == labels
    assert loaded(TEXTS[1]) == labels[1]
    assert loaded([]) == []
    assert loaded.card["name"] == "pets"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_another_process_needs_neither_keras_nor_tensorflow(runtime, tmp_path):
    folder = written(tmp_path, runtime)
    program = (
        "import sys; from reader import load; classify = load('.'); print(classify('a red fish'));"
        "print({'keras', 'tensorflow', 'keras_tnattn', 'jax', 'torch'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True
    )
    label, modules = done.stdout.splitlines()
    assert (label, modules) == (reader.load(folder)("a red fish"), "set()"), done.stderr


def words_of_training(text):
    return [word.decode() for word in split_words([text])[0].numpy()]


@pytest.mark.parametrize("text", HOSTILE)
def test_words_of_hostile_texts_are_those_of_the_exported_graph(text, tmp_path):
    words = reader.Words([], reader_rules(), 100_000)
    assert words.split(text) == words_of_training(text)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_words_of_any_text_are_those_of_training(text):
    _, vectorizer = classifier()
    words = reader.Words(vectorizer.get_vocabulary()[2:], reader_rules(), vectorizer.max_words)
    ids = words(text)
    assert vectorizer([text])[0].tolist() == ids + [0] * (12 - len(ids))


def reader_rules():
    from keras_tnattn.text.words import BETWEEN_WORDS

    return BETWEEN_WORDS


def test_damaged_folders_are_refused(tmp_path):
    folder = written(tmp_path)
    text = json.loads((folder / "text.json").read_text("utf-8"))
    with pytest.raises(FileNotFoundError, match=r"text\.json"):
        reader.load(tmp_path)
    (folder / "text.json").write_text(json.dumps({**text, "format": 99}), "utf-8")
    with pytest.raises(ValueError, match=r"version 99.*export the model again"):
        reader.load(folder)
    (folder / "text.json").write_text("{", "utf-8")
    with pytest.raises(ValueError, match=r"text\.json.*damaged"):
        reader.load(folder)
    (folder / "text.json").write_text(json.dumps(text), "utf-8")
    model = folder / "model.onnx"
    content = model.read_bytes()
    model.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=r"model\.onnx.*bytes.*Copy the file again"):
        reader.load(folder)
    model.write_bytes(bytes(len(content)))
    with pytest.raises(ValueError, match=r"model\.onnx.*damaged"):
        reader.load(folder)


def test_a_missing_runtime_is_named(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        reader.load(folder)


def test_arguments_are_checked_before_anything_is_written(tmp_path):
    model, words = classifier()
    with pytest.raises(ValueError, match="runtime='tvm'"):
        export_portable(model, words, NAMES, tmp_path / "new", "tvm")
    with pytest.raises(ValueError, match="2 class_names"):
        export_portable(model, words, NAMES[:2], tmp_path / "new")
    with pytest.raises(FileExistsError, match="never overwrite"):
        export_portable(model, words, NAMES, tmp_path)
    with pytest.raises(FileNotFoundError, match="onnxruntime-web"):
        export_web(model, words, NAMES, tmp_path / "page", runtime=tmp_path)
    assert not list(tmp_path.iterdir())


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def page_url(tmp_path_factory):
    """The address of a page that a static server serves."""
    runtime = os.environ.get("ONNXRUNTIME_WEB")
    if not (CHROMIUM and importlib.util.find_spec("playwright")):
        pytest.skip("needs chromium, and playwright of the extra dev")
    if not (runtime or shutil.which("npm")):
        pytest.skip("needs npm, which fetches onnxruntime-web")
    model, words = classifier()
    card = {"name": "pets", "examples": ["the red fish"]}
    folder = tmp_path_factory.mktemp("web") / "page"
    export_web(model, words, NAMES, folder, TEXTS, card, runtime)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_the_page_classifies_without_a_network(page_url):
    from playwright.sync_api import sync_playwright

    model, words = classifier()
    texts = [*TEXTS, *HOSTILE]
    expected = model.predict(words(texts), verbose=0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        context = browser.new_context()
        page = context.new_page()
        problems, hosts = [], set()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: hosts.add(re.match(r"\w+://[^/]*", request.url).group()))
        page.goto(page_url)
        page.wait_for_selector("#classes li", timeout=120_000)
        assert page.title() == "pets"
        assert page.input_value("#text") == "the red fish"
        context.set_offline(True)
        page.fill("#text", TEXTS[1])
        best = NAMES[expected[1].argmax()]
        page.wait_for_function(
            "name => document.querySelector('#classes li')?.innerText.startsWith(name)", arg=best
        )
        rows = page.evaluate("texts => classifier.probabilities(texts)", texts)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        browser.close()
    assert problems == []
    assert hosts == {page_url}


def test_the_page_ships_little_beside_the_runtime():
    page = Path(reader.__file__).with_name("page")
    assert sum(file.stat().st_size for file in page.iterdir()) < 10_000
