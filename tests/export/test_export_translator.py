import json

import numpy as np
import pytest
import tensorflow as tf
from import_path import run_python
from translator_runs import make_run, small_translator

from keras_tnattn.export import load
from keras_tnattn.search.beam_search import BeamSearch
from keras_tnattn.text.reserved import END, PAD, START
from keras_tnattn_train.exports import Translator, export
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.translate.explain import ExplainOptions, explain_run

TEXTS = ["Eu vi três gatos.", "", "rios ☃", "¿ ¤ ☃", "Eu vi um rio. " * 20, "\t \n"]


@pytest.fixture(scope="module", params=["sdpa", pytest.param("plga", marks=pytest.mark.slow)])
def parts(request, tmp_path_factory):
    model, corpus = make_run(tmp_path_factory.mktemp(request.param) / "run", request.param)
    # Untrained, it might say nothing at all.
    bias = np.zeros(model.output_shape[-1], "float32")
    bias[[PAD, START, END]] = -3
    model.get_layer("logits").bias.assign(bias)
    return model, *corpus.tokenizers


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "pt_en"
    path = export(Translator(*parts, beam_size=2, extra_tokens=5), folder)
    assert path == folder / "1"
    return path


def searched(parts, texts):
    model, source, target = parts
    # Of unknown pieces alone: as an empty one.
    texts = ["" if text == "¿ ¤ ☃" else text for text in texts]
    ids = source.tokenize(texts).to_tensor().numpy()
    found = BeamSearch(model, 2, extra_tokens=5)(ids)
    return ids, found, [text.decode() for text in target.detokenize(found.ids[:, 0]).numpy()]


@pytest.mark.slow
def test_text_equals_the_search(parts, exported):
    translator = load(exported)
    ids, found, want = searched(parts, TEXTS)
    got = translator.with_scores(TEXTS)
    for i, text in enumerate(TEXTS):
        assert got["translation"][i] == (want[i] if text.strip() and i != 3 else "")
    assert any(want)
    np.testing.assert_allclose(got["score"], found.scores[:, 0], rtol=1e-4)
    assert translator(TEXTS) == got["translation"].tolist()
    for i in (0, 1, 4):  # one alone as in company
        assert translator(TEXTS[i : i + 1]) == got["translation"][i : i + 1].tolist()
    assert translator([]) == []

    by_ids = translator.from_ids(ids)
    length = found.ids.shape[-1]
    np.testing.assert_array_equal(by_ids["ids"][..., :length], found.ids)
    assert not by_ids["ids"][..., length:].any()
    np.testing.assert_allclose(by_ids["scores"], found.scores, rtol=1e-4)


@pytest.mark.slow
def test_loads_with_tensorflow_and_its_text_alone(parts, exported):
    code = f"""
import json, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load({str(exported)!r})
got = model.signatures["serving_default"](tf.constant({TEXTS[:3]!r}))["translation"]
assert "keras_tnattn" not in sys.modules
print(json.dumps([text.decode() for text in got.numpy()]))
"""
    done = run_python("-c", code)
    got = json.loads(done.stdout)
    want = searched(parts, TEXTS[:3])[-1]
    assert got == [want[0], "", want[2]]


@pytest.mark.slow
def test_a_single_text_is_refused(exported):
    with pytest.raises(TypeError, match=r"Pass \[text\]"):
        load(exported)("uma frase")


def test_errors(parts, tmp_path):
    _, source, target = parts
    with pytest.raises(ValueError, match="beam_size=0"):
        export(Translator(*parts, beam_size=0), tmp_path / "x")
    other = small_translator(source.vocabulary_size, target.vocabulary_size + 1)
    sizes = f"{source.vocabulary_size}, {target.vocabulary_size + 1}"
    with pytest.raises(ValueError, match=rf"\({sizes}\) pieces"):
        export(Translator(other, source, target), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_attentions_without_scores_are_exported_and_explained(tmp_path):
    options = {"encoder_attention": "rgtn", "decoder_attention": "rgtn"}
    model, corpus = make_run(tmp_path / "run", "sdpa", **options)
    path = export(Translator(model, *corpus.tokenizers, extra_tokens=5), tmp_path / "saved")
    explain = tf.saved_model.load(str(path)).signatures["explain"]
    texts = tf.constant(["Eu vi três gatos."]), tf.constant(["I saw three cats."])
    attention = explain(text=texts[0], translation=texts[1])["attention"]
    np.testing.assert_allclose(attention.numpy()[0].sum(1), 1, atol=1e-5)

    run = ExplainOptions(run=str(tmp_path / "run"), sentence="Eu vi gatos.", bootstraps=0)
    blocks = {name.partition("/")[0] for name in explain_run(run)["files"]}
    assert blocks == {"decoder_0.cross", "decoder_1.cross"}
    with pytest.raises(InputError, match=r"decoder_1.cross.*Received: block='encoder_0'"):
        explain_run(run.replace(blocks=("encoder_0",)))
