import keras
import numpy as np
import pytest
import tensorflow as tf
from translator_runs import PAIRS, small_translator

from keras_tnattn.search.beam_search import BeamSearch, Hypotheses
from keras_tnattn.text.sentence_translator import SentenceTranslator
from keras_tnattn.text.word_pieces import learn_word_pieces

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="minutes of compiling; test_beam_search has the search"
)


@pytest.fixture(scope="module")
def parts():
    tokenizers = [learn_word_pieces(side, 80) for side in zip(*PAIRS, strict=True)]
    model = small_translator(*(tokenizer.vocabulary_size for tokenizer in tokenizers))
    return model, *tokenizers


def test_translations_are_those_of_the_search(parts):
    model, source, target = parts
    translate = SentenceTranslator(*parts, beam_size=3, extra_tokens=5)
    sentences = ["Eu, vi um gatos.", "vi", "dois rios e quatro gatos", "rios"]
    batches = []
    translations = translate.n_best(sentences, batch_size=2, progress=batches.append)
    assert batches == [2, 4]
    search = BeamSearch(model, 3, extra_tokens=5)
    for sentence, result in zip(sentences, translations, strict=True):
        expected = search(source.tokenize([sentence]).to_tensor().numpy())
        texts = [text.decode() for text in target.detokenize(expected.ids[0]).numpy()]
        assert [translation.text for translation in result] == texts
        scores = [translation.score for translation in result]
        np.testing.assert_allclose(scores, expected.scores[0], rtol=1e-4)
        assert [translation.finished for translation in result] == expected.finished[0].tolist()
    assert translate(sentences) == [result[0].text for result in translations]
    assert translate([]) == []


def test_unknown_sentences_have_one_answer(parts):
    translate = SentenceTranslator(*parts, extra_tokens=5)
    texts = ["", " ", "\u2603 \u00a4", "rios \u2603"]
    result = translate.n_best(texts)
    assert [translations[0].text for translations in result[:3]] == ["", "", ""]
    assert [len(translations) for translations in result] == [1, 1, 1, 1]
    assert len({round(translations[0].score, 4) for translations in result[:3]}) == 1
    assert translate.source_ids(texts).row_lengths().numpy().tolist()[:3] == [2, 2, 2]
    assert translate.source_ids(texts).row_lengths().numpy()[3] > 3


def test_hypotheses_that_were_not_found_are_left_out(parts, monkeypatch):
    translate = SentenceTranslator(*parts, beam_size=3, extra_tokens=5)
    scores, finished = np.array([[0.5, 0.75, np.inf]]), np.array([[True, False, False]])

    def search(ids, batch_size):
        rows = len(ids)
        found = np.tile([[[2, 5, 3], [2, 6, 7], [0, 0, 0]]], (rows, 1, 1))
        return Hypotheses(found, np.repeat(scores, rows, 0), np.repeat(finished, rows, 0))

    monkeypatch.setattr(translate, "search", search)
    some, none = translate.n_best(["dois rios", "\u2603"])
    assert [(x.score, x.finished) for x in some] == [(0.5, True), (0.75, False)]
    assert none == [("", 0.5, True)]


def test_scores_of_exported_models_are_finite(parts, monkeypatch):
    translate = SentenceTranslator(*parts, beam_size=2, extra_tokens=5)
    found = {"ids": tf.constant([[[2, 5, 3], [0, 0, 0]]]), "scores": tf.constant([[0.5, np.inf]])}
    monkeypatch.setattr(translate, "search_ids", lambda ids: found)
    scores = translate.translate_n_best(tf.constant(["dois rios"]))["scores"].numpy()
    assert scores.tolist() == [[0.5, np.finfo("float32").max]]


def test_longer_sentences_are_cut(parts):
    translate = SentenceTranslator(*parts, extra_tokens=5)
    long = "rios " * 20
    cut = parts[1].detokenize(parts[1].tokenize([long], 7)).numpy()[0].decode()
    assert translate.n_best([long], max_length=7)[0][0].text == translate([cut])[0]


def test_errors(parts):
    _, source, target = parts
    with pytest.raises(TypeError, match=r"Pass \[sentence\]"):
        SentenceTranslator(*parts)("uma frase")
    with pytest.raises(ValueError, match="beam_size=0"):
        SentenceTranslator(*parts, beam_size=0)
    other = small_translator(source.vocabulary_size, target.vocabulary_size + 1)
    with pytest.raises(ValueError, match="the model's vocabularies"):
        SentenceTranslator(other, source, target)
