import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from translator_runs import make_run

from keras_tnattn.export.explaining import classifier_explanation, translator_explanation
from keras_tnattn.models import text_classifier
from keras_tnattn.search.beam_search import BeamSearch
from keras_tnattn.text.reserved import RESERVED_PIECES
from keras_tnattn.text.word_pieces import WordPieceTokenizer
from keras_tnattn.text.words import split_words, word_vectorizer
from keras_tnattn_train.exports import Classifier, Translator, export
from keras_tnattn_train.translate.explain import attention_outputs

TEXTS = ["the cat sat", "a dog ran and the cat sat on zzz", ""]


def signature_of(path, name="explain"):
    loaded = tf.saved_model.load(str(path))
    function = loaded.signatures[name]

    def call(**texts):
        outputs = function(**{k: tf.constant(v) for k, v in texts.items()})
        assert loaded  # keeps the weights
        return {k: v.numpy() for k, v in outputs.items()}

    return call


@pytest.fixture(scope="module", params=["tsa", pytest.param("sdpa", marks=pytest.mark.slow)])
def classifier(request, tmp_path_factory):
    vectorizer = word_vectorizer([*TEXTS[:1], "a dog ran and the cat sat on"], max_words=6)
    model = text_classifier(
        vectorizer.vocabulary_size(), 2, attention=request.param, embedding_dim=8
    )
    folder = tmp_path_factory.mktemp(request.param) / "pets"
    card = {"seed": 3, "sizes": {"rows": 7}}
    path = export(Classifier(model, vectorizer, ["cat", "dog"], split_words, card), folder)
    return model, vectorizer, path


def test_a_classifier_explains_each_text_as_if_alone(classifier):
    model, vectorizer, path = classifier
    explain = signature_of(path)
    got = explain(text=TEXTS)
    # Six words are kept of the second text.
    assert got["words"].tolist() == [
        [b"the", b"cat", b"sat", b"", b"", b""],
        [b"a", b"dog", b"ran", b"and", b"the", b"cat"],
        [b""] * 6,
    ]
    attention = model.get_layer("attention")
    for row, text in enumerate(TEXTS[:2]):
        ids = np.asarray(vectorizer(np.array([text])))
        ids = ids[:, ids[0] != 0]
        x = keras.ops.cast(model.get_layer("embedding")(ids), "float32")
        inputs = (x, x) if isinstance(attention, keras.layers.MultiHeadAttention) else (x,)
        scores = np.asarray(attention(*inputs, return_attention_scores=True)[1])[0].mean(0)
        size = ids.shape[1]
        np.testing.assert_allclose(got["graph"][row, :size, :size], scores, atol=1e-6)
        assert not got["graph"][row, size:].any()
        assert not got["graph"][row, :, size:].any()
        weights = scores.sum(0) / scores.sum(0).max()
        np.testing.assert_allclose(got["weights"][row, :size], weights, atol=1e-5)
    assert not got["weights"][2].any()
    alone = signature_of(path, "serving_default")(text=TEXTS)
    np.testing.assert_allclose(got["probabilities"], alone["probabilities"], atol=1e-6)


def test_padding_neither_attends_nor_counts():
    """Of an attention whose padded tokens have scores, too."""
    vectorizer = word_vectorizer(TEXTS[:2], max_words=6)
    model = text_classifier(vectorizer.vocabulary_size(), 2, "ada", embedding_dim=8)
    explain = classifier_explanation(model, vectorizer, split_words, lambda ids: {}, True)
    together, alone = explain(TEXTS), explain(TEXTS[:1])
    graph, weights = (together[name].numpy()[0] for name in ("graph", "weights"))
    assert not graph[3:].any()
    assert not graph[:, 3:].any()
    np.testing.assert_allclose(graph[:3, :3], alone["graph"][0], atol=1e-6)
    np.testing.assert_allclose(weights, [*alone["weights"][0], 0, 0, 0], atol=1e-5)


def test_unknown_words_are_marked(classifier):
    got = signature_of(classifier[2])(text=["the zzz sat"])
    assert got["unknown"].tolist() == [[False, True, False]]
    assert got["words"].tolist() == [[b"the", b"zzz", b"sat"]]


def test_the_card_holds_what_the_export_and_the_caller_know(classifier):
    card = json.loads((classifier[2] / "assets.extra/model_card.json").read_text("utf-8"))
    assert card["task"] == "classify"
    assert card["labels"] == ["cat", "dog"]
    assert (card["name"], card["version"], card["seed"]) == ("pets", 1, 3)
    assert card["sizes"] == {"parameters": classifier[0].count_params(), "rows": 7}
    assert {"keras_tnattn", "keras", "tensorflow", "python"} == set(card["versions"])
    assert card["date"].startswith("20")


@pytest.mark.slow
def test_an_attention_without_scores_is_exported_without_explanation(tmp_path):
    vectorizer = word_vectorizer(TEXTS[:2], max_words=6)
    model = text_classifier(vectorizer.vocabulary_size(), 2, attention="tn", embedding_dim=4)
    path = export(Classifier(model, vectorizer, ["cat", "dog"], split_words), tmp_path / "m")
    assert set(tf.saved_model.load(str(path)).signatures) == {"serving_default", "ids"}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    model, corpus = make_run(tmp_path_factory.mktemp("plga") / "run", "plga")
    tokenizers = corpus.tokenizers
    folder = tmp_path_factory.mktemp("saved") / "pt_en"
    return model, tokenizers, export(Translator(model, *tokenizers, beam_size=2), folder)


@pytest.mark.slow
def test_a_translator_shows_the_attention_between_pieces(translator):
    model, (source, target), path = translator
    texts = ["Eu, vi rios ☃.", "vi dois"]
    translations = ["I, saw rivers.", "two cats"]
    got = signature_of(path)(text=texts, translation=translations)
    for row in range(2):
        ids = source.tokenize(texts[row : row + 1])[0].numpy()
        names = [source.vocabulary[i].encode() for i in ids]
        names = [n if n != b"[UNK]" else "☃".encode() for n in names]
        shown = [n for n in got["source"][row].tolist() if n]
        assert [n.replace("￭".encode(), b"") if "☃".encode() in n else n for n in shown] == names
        assert got["unknown"][row, : len(ids)].tolist() == (ids == 1).tolist()
        target_ids = target.tokenize(translations[row : row + 1])[0].numpy()
        assert [n for n in got["target"][row].tolist() if n] == [
            target.vocabulary[i].encode() for i in target_ids[1:]
        ]
        attention = got["attention"][row]
        np.testing.assert_allclose(attention.sum(1)[: len(target_ids) - 1], 1, atol=1e-5)
        assert not attention[:, len(ids) :].any()
        assert not attention[len(target_ids) - 1 :].any()
    assert got["unknown"].sum() == 1

    # The same as keras-tnattn explain computes.
    ids = source.tokenize(texts[:1])[0].numpy()
    target_ids = target.tokenize(translations[:1])[0].numpy()
    outputs = attention_outputs(model, ids, target_ids[:-1])["decoder_0.cross"]
    expected = outputs["E_LM"].mean(0)
    size = expected.shape
    np.testing.assert_allclose(got["attention"][0, : size[0], : size[1]], expected, atol=1e-5)


def test_the_attention_shown_is_the_last_decoders():
    def decode(target, memory, mask, training, return_details):
        scores = [tf.fill([1, 2, 4, 5], value) for value in (0.5, 0.25)]
        return None, {f"decoder_{n}.cross": {"scores": scores[n]} for n in range(2)}

    model = SimpleNamespace(decoders=[0, 1], encode=lambda ids, training: ids, decode=decode)
    tokenizer = WordPieceTokenizer([*RESERVED_PIECES, "a", "b", "c"])
    found = translator_explanation(model, tokenizer, tokenizer)(["a b c"], ["c b a"])
    np.testing.assert_array_equal(found["attention"], np.full((1, 4, 5), 0.25))


@pytest.mark.slow
def test_greedy_and_the_best_of_a_beam(translator):
    model, (source, target), path = translator
    texts = ["Eu, vi rios.", "vi dois"]
    ids = source.tokenize(texts).to_tensor().numpy()
    for name, size in (("greedy", 1), ("n_best", 2)):
        got = signature_of(path, name)(text=texts)
        found = BeamSearch(model, size)(ids)
        expected = target.detokenize(found.ids).numpy()
        assert got["translations"].tolist() == expected.tolist()
        np.testing.assert_allclose(got["scores"], found.scores, rtol=1e-4)
    assert not signature_of(path, "n_best")(text=["☃"])["translations"].any()
