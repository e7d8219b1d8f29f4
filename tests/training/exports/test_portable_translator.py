"""Folders that translate, read without Keras and TensorFlow."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from portable_models import (
    HOSTILE_SENTENCES,
    RUNTIMES,
    SENTENCES,
    TOKENIZERS,
    printed_alone,
    talkative,
    tokenizer_of_hostile,
)
from slow_cases import slow_but
from translator_runs import small_translator

from keras_tnattn.text.reserved import END
from keras_tnattn.text.sentence_translator import SentenceTranslator
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import Portable, Translator, export
from keras_tnattn_train.exports.translator import pieces_of

# Learned positions, recurrent states, windows, and the metric that changes with each token.
ATTENTIONS = {
    "sdpa": {},
    "plga": {},
    "causal plga": {"causal_metric": True, "metric_from": "key"},
    "tsa and tn": {"encoder_attention": "tsa", "decoder_attention": "tn"},
}


@functools.cache
def translator_of(name, tokenizers):
    return talkative(*tokenizers, "plga" if "plga" in name else "sdpa", **ATTENTIONS[name])


@functools.cache
def expected_translations(name, tokenizers, beam_size):
    model = translator_of(name, tokenizers)
    return SentenceTranslator(model, *tokenizers, beam_size, extra_tokens=5).n_best(SENTENCES)


@pytest.fixture(scope="module")
def written_to(tokenizers, written_translator, tmp_path_factory):
    """A function that returns the folder of a translator for a runtime."""

    @functools.cache
    def folder_of(name, runtime):
        if (name, runtime) == ("sdpa", "onnxruntime"):
            return written_translator
        folder = tmp_path_factory.mktemp("portable") / "folder"
        model = translator_of(name, tokenizers)
        task = Translator(model, *tokenizers, beam_size=2, extra_tokens=5)
        return export(task, folder, Portable(runtime))

    return folder_of


@pytest.mark.parametrize("runtime", slow_but(["onnxruntime"], RUNTIMES))
@pytest.mark.parametrize("name", slow_but(["sdpa"], ATTENTIONS))
def test_the_reader_translates_as_the_model(name, runtime, tokenizers, written_to):
    pytest.importorskip(RUNTIMES[runtime])
    folder = written_to(name, runtime)
    suffix = ".onnx" if runtime == "onnxruntime" else ".tflite"
    files = {"text.json", "reader.py", f"encode{suffix}", f"step{suffix}"}
    assert {path.name for path in folder.iterdir()} == files
    written = reader.load(folder)
    for beam_size in (1, 2):
        expected = expected_translations(name, tokenizers, beam_size)
        received = written.n_best(SENTENCES, beam_size, batch_size=4)
        for wanted, pairs in zip(expected, received, strict=True):
            assert [x.text for x in wanted] == [text for text, _ in pairs]
            scores = [x.score for x in wanted]
            np.testing.assert_allclose([y for _, y in pairs], scores, rtol=1e-4, atol=1e-4)
        assert any(wanted[0].text for wanted in expected)
        if beam_size == 2:
            assert written(SENTENCES) == [pairs[0][0] for pairs in received]
            assert written(SENTENCES[0]) == received[0][0][0]
    assert written([]) == []
    with pytest.raises(ValueError, match="beam"):
        written.n_best(SENTENCES, beam_size=0)


def test_a_search_goes_on_while_a_longer_hypothesis_can_still_win():
    # Whether a hypothesis ends, at each position; else it has one more piece.
    ends = [np.exp(-1), 0.6, 1e-9, 1e-9]

    def step(ids, position):
        logits = np.full((len(ids), 5), -30.0, "float32")
        logits[:, reader.END] = np.log(ends[position])
        logits[:, 4] = np.log1p(-ends[position])
        return [logits]

    translator = object.__new__(reader.Translator)
    pieces = ["[PAD]", "[UNK]", "[START]", "[END]", "a"]
    translator.target = reader.Pieces(pieces, "joined", "keep", True, "NFC")
    translator.beam_size, translator._extra_tokens, translator._penalty = 2, 1, 1.0
    translator._grows, translator._encode, translator._step = [], lambda source: [], step
    ids, scores = translator.search(np.array([[reader.START, 4, reader.END]], "int32"))
    # Of start, n pieces and perhaps the end; the sum of -ln p by (5 + length) / 6.
    live = -np.log1p(-ends[0])
    short = (live - np.log(ends[1])) / (8 / 6)
    longest = (live - np.log1p(-ends[1])) / (10 / 6)
    np.testing.assert_allclose(scores, [[short, longest]], rtol=1e-5)
    assert [translator.target.text(row) for row in ids[0]] == ["a", "a a a a"]


def test_another_process_needs_neither_keras_nor_tensorflow(written_to):
    pytest.importorskip("onnxruntime")
    folder = written_to("sdpa", "onnxruntime")
    printed = printed_alone(folder, f"model({SENTENCES[0]!r})")
    assert printed == reader.load(folder)(SENTENCES[0])


@pytest.fixture(
    scope="module",
    params=TOKENIZERS,
    ids=lambda options: "-".join(map(str, options.values())) or "default",
)
def both(request):
    """A tokenizer, and what reads its rules."""
    tokenizer = tokenizer_of_hostile(request.param)
    return tokenizer, reader.Pieces(**pieces_of(tokenizer))


def check_same(both, texts):
    tokenizer, pieces = both
    words, rows = tokenizer.words(texts).to_list(), tokenizer.tokenize(texts).to_list()
    restored = tokenizer.detokenize(tf.ragged.constant(rows)).numpy()
    for text, expected, ids, whole in zip(texts, words, rows, restored, strict=True):
        assert pieces.words(text) == [word.decode() for word in expected]
        known = any(n > END for n in ids)
        assert pieces.ids(text) == [n for n in ids if known or n != 1]
        assert pieces.text(ids) == whole.decode()


def test_pieces_are_those_of_training(both):
    check_same(both, [*HOSTILE_SENTENCES, *SENTENCES])


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_pieces_of_any_text_are_those_of_training(both, text):
    check_same(both, [text])


def test_bad_input(tokenizers, tmp_path):
    task = Translator(talkative(*tokenizers), *tokenizers)
    with pytest.raises(ValueError, match="runtime='tvm'"):
        export(task, tmp_path / "new", Portable("tvm"))
    with pytest.raises(ValueError, match="beam_size=0"):
        export(dataclasses.replace(task, beam_size=0), tmp_path / "new", Portable())
    with pytest.raises(ValueError, match="pieces"):
        export(Translator(small_translator(9, 9, "sdpa"), *tokenizers), tmp_path / "new")
    with pytest.raises(FileExistsError, match="never overwrite"):
        export(task, tmp_path, Portable())
    assert not list(tmp_path.iterdir())
