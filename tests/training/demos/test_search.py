"""The claims of `make demo-search`: its sentences, its tokenizer, and the whole."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from web_pages import runtime_of_pages, try_page

from keras_small import pretrained
from keras_tnattn_runtime.reader import BertPieces
from keras_tnattn_train.data.texts.docstrings import load_docstrings
from keras_tnattn_train.demos import search
from keras_tnattn_train.options.errors import InputError

ROOT = Path(__file__).parents[3]


def test_sentences_are_different_lines_of_a_file(tmp_path):
    path = tmp_path / "my sentences.txt"
    command = ["make", "-n", "demo-search", f"SENTENCES={path}"]
    assert f' "{path}"' in subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    path.write_text("\ufeffEin Fisch.\n\n a red fish \nEin Fisch.\r\nürün\n", encoding="utf-8")
    assert search.sentences_of(path) == ["Ein Fisch.", "a red fish", "ürün"]
    for content in (b"\n \n", b"sch\xf6n\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="a sentence in each line"):
            search.sentences_of(path)
    with pytest.raises(InputError, match="does not exist"):
        search.sentences_of(tmp_path / "other.txt")


def pretrained_pieces():
    about = Path(pretrained.__file__).parent / "minilm" / pretrained.ABOUT
    return BertPieces(**json.loads(about.read_text("utf-8"))["pieces"])


def test_what_a_page_needs_is_missed_before_minutes_of_work(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"npm.*Install Node\.js"):
        search.run()


def test_first_sentences_are_short_and_whole():
    texts = [
        "Returns the sum of\n  all elements. And more.",
        "Returns the sum of all elements.\n\nParameters",
        "No sentence at all\n\nbut a paragraph.",
        "Too short.",
        "word " * 30 + "end.",
        "Uses e.g. the version 2.5 of it.",
    ]
    assert sorted(search.first_sentences(texts)) == [
        "Returns the sum of all elements.",
        "Uses e.g. the version 2.5 of it.",
    ]


def test_tokenizer_cuts_texts_into_the_pieces_of_the_encoder():
    pytest.importorskip("tokenizers")
    pieces = pretrained_pieces()
    tokenizer = search.tokenizer_of(pieces)
    texts = ["Café tokenization, naïvely!", "unaffable 12,5 \u4e2d\u6587", "x" * 101, ""]
    assert [tokenizer.encode(text).ids for text in texts] == [pieces.ids(text) for text in texts]


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only the TensorFlow backend exports"
)
def test_demo(tmp_path, monkeypatch):
    import keras_small
    from keras_tnattn_train.exports.search import sentence_vectors

    runtime_of_pages()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["search"])
    search.run()
    page = search.FOLDER / "page"
    assert (page / "model.onnx.gz").stat().st_size < 5.7e6

    encoder = keras_small.load("minilm")
    tokenizer = search.tokenizer_of(encoder.pieces)
    texts = list(load_docstrings().texts)
    sentences = search.first_sentences(texts)
    queries = [" ".join(text.split()[20:35]) for text in texts[::80]]
    vectors = sentence_vectors(encoder.model, tokenizer, [*sentences, *queries])
    scores = vectors[len(sentences) :] @ vectors[: len(sentences)].T
    nearest = np.argsort(-scores, axis=1)[:, :10]

    def program(opened):
        milliseconds = []
        for query, rows in zip(queries, nearest, strict=True):
            found, took = opened.evaluate(
                "async (text) => { const start = performance.now();"
                " return [await model.nearest(text), performance.now() - start]; }",
                query,
            )
            assert {x["text"] for x in found} == {sentences[n] for n in rows}
            milliseconds.append(took)
        # Other programs may take the processor at times.
        assert np.quantile(milliseconds, 0.25) <= 60

    try_page(page, program)
