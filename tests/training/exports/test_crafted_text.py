"""Folders whose `text.json` was changed by hand: they are refused when they are loaded."""

import copy
import dataclasses
import shutil

import keras
import pytest
from language_models import TOKENS, small_language_model
from portable_models import NAMES, RUNTIMES, TEXTS, classifier, talkative

from keras_tnattn import TokenEmbedding, TransformerDecoder, models
from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import Classifier, LanguageModel, Portable, Translator, export

MANY = [f"word{n}" for n in range(1000)]
BILLION = 10**9
CLASSIFIER = [
    ("words/max_words", -1, "max_words=-1"),
    ("words/max_words", 0, "max_words=0"),
    ("words/max_words", BILLION, "1 to 1,000,000.*max_words=1000000000"),
    ("words/max_words", 1.5, "max_words=1.5"),
    ("words/max_words", "9", "max_words='9'"),
    ("words/max_words", True, "max_words=True"),
    ("words/max_words", None, "max_words=None"),
    ("words/between", "(a+)+$", "between="),
    ("words/between", "(", "between="),
    ("words/between", " ", "between="),
    ("words/between", ["a"], "between="),
    ("words/vocabulary", MANY, "does not compute what text.json describes"),
    ("words/vocabulary", ["a", 3], "vocabulary="),
    ("words/vocabulary", "fish", "vocabulary='fish'"),
    ("words/vocabulary", {"fish": 1}, "vocabulary="),
    ("words/more", 1, "more"),
    ("words", [], "damaged"),
    ("words", None, "damaged"),
    ("class_names", NAMES[:2], "Expected 3. Received: class_names="),
    ("class_names", [*NAMES, "cat"], "Expected 3. Received: class_names="),
    ("class_names", [], "class_names=\\[\\]"),
    ("class_names", [1, 2, 3], "class_names="),
    ("by_length", 1, "by_length=1"),
    ("by_length", None, "by_length=None"),
    ("card", [], "card=\\[\\]"),
    ("files/model/name", "../pets/model.onnx", "name='../pets/model.onnx'"),
    ("files/model/name", "/etc/passwd", "name='/etc/passwd'"),
    ("files/model/name", "", "name=''"),
    ("files/model/name", "..", "name='..'"),
    ("files/model/name", 3, "name=3"),
    ("files/model/bytes", "many", "bytes='many'"),
    ("files/model/bytes", None, "bytes=None"),
    ("files", {}, "files for model"),
    ("files", [], "damaged"),
    ("task", "paint", "damaged"),
    ("task", [], "damaged"),
]
TRANSLATOR = [
    ("source/vocabulary", MANY, "does not compute what text.json describes"),
    ("source/vocabulary", [], "vocabulary=\\[\\]"),
    ("target/vocabulary", MANY, "size=1000"),
    ("target/vocabulary", MANY[:10], "size=10"),
    ("source/kind", "words", "kind='words'"),
    ("source/case", "upper", "case='upper'"),
    ("target/form", "NFX", "form='NFX'"),
    ("target/keep_accents", "no", "keep_accents='no'"),
    ("beam_size", 0, "beam_size=0"),
    ("beam_size", BILLION, "beam_size=1000000000"),
    ("extra_tokens", BILLION, "extra_tokens=1000000000"),
    ("extra_tokens", -3, "extra_tokens=-3"),
    ("length_penalty", float("nan"), "length_penalty=nan"),
    ("length_penalty", -1, "length_penalty=-1"),
    ("length_penalty", "a", "length_penalty='a'"),
    ("grows", [], "does not compute what text.json describes"),
    ("grows", [1], "grows=\\[1\\]"),
    ("files/step", None, "damaged"),
]
LANGUAGE = [
    ("tokens/characters", TOKENS.characters + "東", "does not compute what text.json describes"),
    ("tokens/characters", TOKENS.characters[1:], "size="),
    ("tokens/characters", ["a"], "characters="),
    ("tokens/kind", "syllables", "kind='syllables'"),
    ("tokens/kind", "bytes", "does not compute what text.json describes"),
    ("tokens/merges", ["ab"], "merges=\\['ab'\\]"),
    ("tokens/merges", "a b", "merges='a b'"),
    ("max_length", -1, "max_length=-1"),
    ("max_length", BILLION, "max_length=1000000000"),
    ("max_length", "9", "max_length='9'"),
    ("grows", [True], "does not compute what text.json describes"),
    ("files", {}, "files for prompt"),
]
# A model that has vectors of 9 positions, and none for a tenth one.
SHORT = [
    ("max_length", 10, "does not compute what text.json describes"),
    ("max_length", 1_000_000, "does not compute what text.json describes"),
]


class Positions(keras.layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight((9, input_shape[-1]), name="table")

    def call(self, inputs, start_index=0):
        places = keras.ops.arange(keras.ops.shape(inputs)[1]) + start_index
        return inputs + keras.ops.take(self.table, places, axis=0)


def short_language_model():
    keras.utils.set_random_seed(0)
    decoder = TransformerDecoder(
        keras.layers.MultiHeadAttention(2, 8), None, feedforward_dim=16, norm_first=True
    )
    return models.LanguageModel(
        TokenEmbedding(TOKENS.vocabulary_size, 16),
        Positions(),
        [decoder],
        max_length=9,
    )


def export_of(kind, folder, runtime, tokenizers):
    if kind == "classifier":
        model, words = classifier()
        task = Classifier(model, words, NAMES, card={"examples": TEXTS})
        return export(task, folder / "new", Portable(runtime))
    if kind == "translator":
        task = Translator(talkative(*tokenizers, "sdpa"), *tokenizers)
        return export(task, folder / "new", Portable(runtime))
    tokens = dataclasses.asdict(TOKENS)
    model = small_language_model("sdpa") if kind == "language" else short_language_model()
    return export(LanguageModel(model, tokens), folder / "new", Portable(runtime))


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tokenizers, written_translator, written_language_model):
    """A function that returns an export by its kind and runtime; each is written once."""
    written = {"translator": written_translator, "language": written_language_model}
    folders = {}
    for kind, folder in written.items():
        copied = tmp_path_factory.mktemp("crafted") / "new"
        folders[kind, "onnxruntime"] = shutil.copytree(folder, copied)

    def folder_of(kind, runtime):
        pytest.importorskip(RUNTIMES[runtime])
        if (kind, runtime) not in folders:
            folder = tmp_path_factory.mktemp("crafted")
            folders[kind, runtime] = export_of(kind, folder, runtime, tokenizers)
        return folders[kind, runtime]

    return folder_of


def changed(content, place, value):
    """Returns the content of `text.json` with another value at a place such as `words/between`."""
    content = copy.deepcopy(content)
    *parents, name = place.split("/")
    inner = content
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    return content


CASES = [
    *(("classifier", *case) for case in CLASSIFIER),
    *(("translator", *case) for case in TRANSLATOR),
    *(("language", *case) for case in LANGUAGE),
    *(("short language", *case) for case in SHORT),
]
# What is seen by running the files, which each runtime does in its own way.
RUN = [case for case in CASES if case[3].startswith(("does not compute", "size=", "Expected 3"))]


@pytest.mark.parametrize(
    ("runtime", "kind", "place", "value", "message"),
    [
        *(("onnxruntime", *case) for case in CASES),
        *(pytest.param("litert", *case, marks=pytest.mark.slow) for case in RUN),
    ],
)
def test_what_does_not_fit_is_refused(runtime, kind, place, value, message, exported):
    folder = exported(kind, runtime)
    path = folder / "text.json"
    right = path.read_bytes()
    try:
        path.write_bytes(reader.sealed(changed(reader.read_sealed(path), place, value)))
        with pytest.raises(ValueError, match=message) as error:
            reader.load(folder)
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
    finally:
        path.write_bytes(right)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '{"format": []}', '"a"', ""])
def test_what_is_no_object_is_refused(text, tmp_path):
    (tmp_path / "text.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"text\.json"):
        reader.load(tmp_path)


def test_a_vocabulary_may_be_shorter_than_the_model(tmp_path):
    model, _ = classifier()
    words = WordVectorizer(["a", "fish"], 12)
    loaded = reader.load(export(Classifier(model, words, NAMES), tmp_path / "new", Portable()))
    assert loaded("a fish") in NAMES
    assert loaded.words.vocabulary_size == 4


def test_characters_are_read(tmp_path):
    model, _ = classifier()
    words = WordVectorizer(list("fish"), 12, split="characters")
    loaded = reader.load(export(Classifier(model, words, NAMES), tmp_path / "new", Portable()))
    assert loaded.words("if a") == [3, 2, 1]


def test_texts_are_padded_by_the_trial_as_by_calls(exported, monkeypatch):
    folder = exported("classifier", "onnxruntime")
    path = folder / "text.json"
    right = path.read_bytes()
    shapes = []
    compute = reader.Classifier.from_ids

    def noted(self, ids):
        shapes.append(ids.shape)
        return compute(self, ids)

    monkeypatch.setattr(reader.Classifier, "from_ids", noted)
    try:
        path.write_bytes(reader.sealed(changed(reader.read_sealed(path), "by_length", False)))
        reader.load(folder)
    finally:
        path.write_bytes(right)
    assert shapes == [(1, 12)]
