"""Pages that classify, translate and search in the browser, and what they run there."""

import gzip
import hashlib
import json
import subprocess

import keras
import numpy as np
import pytest
from portable_models import (
    HOSTILE,
    HOSTILE_SENTENCES,
    NAMES,
    SENTENCES,
    TEXTS,
    TOKENIZERS,
    classifier,
    talkative,
    tokenizer_of_hostile,
)
from translator_runs import make_run
from web_pages import CHROMIUM, NODE, OPTIONS, in_node, needs_node, runtime_of_pages, try_page

from keras_small import compress
from keras_tnattn import MaskedAveragePooling1D, TokenEmbedding
from keras_tnattn.models import text_classifier
from keras_tnattn.text.sentence_translator import SentenceTranslator
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import Classifier, Page, Search, Translator, export, pages, search
from keras_tnattn_train.exports.translator import pieces_of


@pytest.fixture
def opened(tmp_path):
    """Opens the page that `write` writes, and runs a program with it."""
    runtime = runtime_of_pages()

    def run(write, program):
        write(tmp_path / "page", runtime)
        try_page(tmp_path / "page", program)

    return run


def test_the_page_classifies_without_a_network(opened):
    words = classifier()[1]
    model = text_classifier(words.vocabulary_size(), 3, "tsa", embedding_dim=512)
    model = compress(model, 8.0, coded=True, verbose=0).model
    vocabulary = [*words.get_vocabulary()[2:], "unknown"]
    rng = np.random.default_rng(0)
    texts = [*TEXTS, *HOSTILE]
    texts += [" ".join(rng.choice(vocabulary, rng.integers(0, 15))) for _ in range(1000)]
    expected = model.predict(words(texts), verbose=0)

    def write(folder, runtime):
        card = {"name": "pets", "examples": ["the red fish"]}
        export(Classifier(model, words, NAMES, card=card), folder, Page(runtime))
        assert not (folder / "translator.js").exists()
        content = json.loads(gzip.decompress((folder / "text.json.gz").read_bytes()))
        assert content["files"]["model"]["parts"]

    def program(page):
        assert page.title() == "pets"
        assert page.input_value("#text") == "the red fish"
        page.fill("#text", TEXTS[1])
        best = NAMES[expected[1].argmax()]
        page.wait_for_function(
            "name => document.querySelector('#classes li')?.innerText.startsWith(name)", arg=best
        )
        page.fill("#text", " !? ")
        page.wait_for_selector("#hint:has-text('Write a text with words.')")
        assert page.locator("#classes li").count() == 0
        rows = page.evaluate("texts => model.probabilities(texts)", texts)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        labels = page.evaluate("texts => model.labels(texts)", texts)
        assert labels == [NAMES[n] for n in expected.argmax(axis=1)]

    opened(write, program)


@pytest.mark.slow
def test_the_page_translates_without_a_network(opened, tmp_path):
    tokenizers = make_run(tmp_path / "run", "sdpa")[1].tokenizers
    model = talkative(*tokenizers)
    translate = SentenceTranslator(model, *tokenizers, beam_size=2, extra_tokens=5)
    expected = translate.n_best(SENTENCES)

    def write(folder, runtime):
        card = {"name": "pt-en", "examples": [SENTENCES[0]]}
        task = Translator(model, *tokenizers, beam_size=2, extra_tokens=5, card=card)
        export(task, folder, Page(runtime))

    def program(page):
        assert page.inner_text("#classes li:first-child") == expected[0][0].text
        for text, wanted in zip(SENTENCES, expected, strict=True):
            pairs = page.evaluate("text => model.nBest(text)", text)
            assert [pair["text"] for pair in pairs] == [x.text for x in wanted]
            scores = [x.score for x in wanted]
            np.testing.assert_allclose([x["score"] for x in pairs], scores, rtol=1e-4)
        page.fill("#text", SENTENCES[2])
        page.wait_for_function(
            "text => document.querySelector('#classes li')?.innerText === text",
            arg=expected[2][0].text,
        )

    opened(write, program)


def test_a_page_that_is_opened_as_a_file_says_how_to_see_it():
    runtime_of_pages()  # skips without a browser
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page()
        page.goto((pages._PAGE / "index.html").as_uri())
        assert "python -m http.server" in page.inner_text("#problem")
        browser.close()


def sentence_tokenizer():
    """Returns a tokenizer of BERT's pieces, with settings that pages do not keep."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'\u00df"
    pieces = ["[PAD]", "unused", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)]
    pieces += ["fish", "bird", "##ing", "##ish", "red", "blue", "swim", "the"]
    model = tokenizers.models.WordPiece({x: n for n, x in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 4)]
    )
    tokenizer.enable_padding(length=30)
    return tokenizer


def sentence_encoder(dtype="int32", mask_zero=True, policy=None):
    layers = [TokenEmbedding(99, 16, mask_zero=mask_zero), MaskedAveragePooling1D()]
    layers.append(keras.layers.Dense(24, "tanh", dtype=policy))
    return keras.Sequential([keras.Input((None,), dtype=dtype), *layers])


def test_the_page_finds_the_sentences_that_python_finds(opened):
    tokenizer, model = sentence_tokenizer(), sentence_encoder()
    rng = np.random.default_rng(0)
    words = ["Red", "fishing", "blue birds", "the", "swims,", "caf\u00e9 42", "\u2603", "don't"]
    sentences = [" ".join(rng.choice(words, rng.integers(1, 7))) for _ in range(200)]
    sentences = sorted({*sentences, "fish " * 40})
    queries = [" ".join(rng.permutation(words)[:n]) for n in rng.integers(1, 9, 50)]
    vectors = search.sentence_vectors(model, tokenizer, [*sentences, *queries], 20)
    scores = vectors[len(sentences) :] @ vectors[: len(sentences)].T

    def write(folder, runtime):
        card = {"name": "animals", "examples": ["a red bird"]}
        export(Search(model, tokenizer, sentences, 20, card), folder, Page(runtime))
        assert b'"order"' in gzip.decompress((folder / "text.json.gz").read_bytes())

    def program(page):
        assert page.locator("#classes li").count() == 10
        hostile = [*HOSTILE, *HOSTILE_SENTENCES, "\u00df" * 60, "a [SEP] \u2026"]
        texts = [*sentences, *queries, *hostile]
        ids = page.evaluate("texts => texts.map((text) => model.ids(text))", texts)
        rows = search.sentence_ids(tokenizer, texts, 20)
        assert ids == [[int(n) for n in row if n] for row in rows]
        nearest = "texts => Promise.all(texts.map((text) => model.nearest(text)))"
        for row, found in zip(scores, page.evaluate(nearest, queries), strict=True):
            near = [row[sentences.index(x["text"])] for x in found]
            np.testing.assert_allclose(near, np.sort(row)[::-1][:10], atol=1e-4)
            np.testing.assert_allclose([x["score"] for x in found], near, atol=1e-4)
        page.fill("#text", " ")
        page.wait_for_selector("#hint:not([hidden])")
        page.evaluate("model.vectors.fill(0, 0, 48)")  # two sentences
        found = [x["score"] for x in page.evaluate("model.nearest('fish', 999)")]
        assert found == sorted(found, reverse=True)
        page.evaluate("model.session = null")
        page.fill("#text", "fish")
        page.wait_for_selector("#problem:not(:empty)")

    opened(write, program)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sentences", [], r"a list of sentences. Received: \[\]"),
        ("sentences", "a red fish", "a list of sentences"),
        ("length", 2, "max_length=2"),
        ("tokenizer", lambda x: setattr(x, "normalizer", None), "of its normalizer"),
        ("tokenizer", lambda x: setattr(x.model, "continuing_subword_prefix", "#"), "prefix='##'"),
        ("tokenizer", lambda x: setattr(x.model, "unk_token", "?"), r"unk_token='\?'"),
        ("tokenizer", lambda x: setattr(x, "model", type(x.model)({"[UNK]": 9})), "ids up to 9"),
        ("tokenizer", lambda x: x.add_tokens(["redfish"]), "without added words"),
        ("tokenizer", lambda x: setattr(x, "post_processor", None), "at each end"),
        ("model", {"dtype": "int64"}, "from int64 to float32"),
        ("model", {"policy": "float16"}, "from int32 to float16"),
        ("model", {"mask_zero": False}, "mask the id 0"),
    ],
)
def test_pages_of_search_refuse_what_they_cannot_run(name, value, message):
    tokenizer, options = sentence_tokenizer(), {name: value}
    if name == "tokenizer":
        value(tokenizer)
    model = sentence_encoder(**options.get("model", {}))
    task = Search(model, tokenizer, options.get("sentences", ["a"]), options.get("length", 9))
    with pytest.raises(ValueError, match=message):
        task.content()


@needs_node
@pytest.mark.parametrize("options", TOKENIZERS, ids=str)
def test_the_pieces_of_the_page_are_those_of_the_reader(options, tmp_path):
    rules = pieces_of(tokenizer_of_hostile(options))
    pieces = reader.Pieces(**rules)
    texts = [*HOSTILE_SENTENCES, *SENTENCES, *TEXTS, *HOSTILE]
    program = (
        "const [rules, texts] = data; const pieces = new Pieces(rules);"
        "const ids = texts.map((text) => pieces.ids(text));"
        "console.log(JSON.stringify([texts.map((x) => pieces.words(x).filter((w) => w)),"
        " ids, ids.map((x) => pieces.text(x))]));"
    )
    words, ids, restored = in_node(tmp_path, "pieces.js", program, rules, texts)
    assert words == [pieces.words(text) for text in texts]
    assert ids == [pieces.ids(text) for text in texts]
    assert restored == [pieces.text(row) for row in ids]


# Loads the page's model as a browser does, but for what runs it; prints what is wrong.
LOADING = """
import { readFileSync } from "fs";
globalThis.fetch = async (path) => new Response(readFileSync(path));
globalThis.ort = { env: { wasm: {} }, InferenceSession: { create: async (model) => model } };
const { load } = await import("./reader.js");
let told = "";
try { await load("."); } catch (error) { told = error.message; }
console.log(JSON.stringify(told));
"""


def loaded_in_node(folder):
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "loading.js").write_text(LOADING)
    options = {"capture_output": True, "encoding": "utf-8", "check": True}
    return json.loads(subprocess.run([NODE, "loading.js"], cwd=folder, **options).stdout)


@needs_node
def test_the_page_finds_every_damage(tmp_path):
    pytest.importorskip("constriction")
    words = classifier()[1]
    model = text_classifier(words.vocabulary_size(), 3, "tsa", embedding_dim=512)
    model = compress(model, 8.0, coded=True, verbose=0).model
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    for name in pages._RUNTIME_FILES:
        (runtime / name).touch()
    folder = export(Classifier(model, words, NAMES), tmp_path / "page", Page(runtime))
    content = json.loads(gzip.decompress((folder / "text.json.gz").read_bytes()))
    assert content["files"]["model"]["parts"]
    assert loaded_in_node(folder) == ""
    for name in ("model.onnx.gz", "text.json.gz"):
        packed = (folder / name).read_bytes()
        whole = gzip.decompress(packed)
        for place in (len(whole) // 3, len(whole) - 40, len(whole) - 9):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            (folder / name).write_bytes(gzip.compress(damaged))
            told = loaded_in_node(folder)
            assert told.startswith(f"{name} is damaged: "), place
            assert told.endswith("; copy it again")
        (folder / name).write_bytes(packed)
    assert loaded_in_node(folder) == ""


@needs_node
def test_the_checksum_of_the_page_is_that_of_python(tmp_path):
    texts = ["a" * length for length in (0, 1, 55, 56, 63, 64, 65, 1000)] + HOSTILE
    program = (
        "console.log(JSON.stringify("
        "data[0].map((text) => page.sha256(new TextEncoder().encode(text)))));"
    )
    digests = in_node(tmp_path, "sha256.js", program, texts)
    assert digests == [hashlib.sha256(text.encode()).hexdigest() for text in texts]
