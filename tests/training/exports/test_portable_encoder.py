"""Folders with a sentence encoder, and BERT's word pieces in plain Python."""

import keras
import numpy as np
import pytest
from portable_models import HOSTILE, HOSTILE_SENTENCES, RUNTIMES

from keras_tnattn.layers import MaskedAveragePooling1D, TokenEmbedding
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import Encoder, Portable, export

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,'-[]\u00df"
SPECIAL = ["[PAD]", "unused", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = [
    *SPECIAL,
    *LETTERS,
    *(f"##{c}" for c in LETTERS),
    *("fish", "bird", "##ing", "##ish", "red", "blue", "swim", "the", "##ming"),
]
TEXTS = ["The RED fish", "swimming, fishing!", "caf\u00e9 42", "a [SEP] b", "redfish " * 30]


def pieces(max_length=20, case="lower", keep_accents=False):
    return reader.BertPieces(
        VOCABULARY,
        case=case,
        keep_accents=keep_accents,
        unknown=2,
        start=3,
        end=4,
        max_length=max_length,
    )


def encoder(dim=24):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            TokenEmbedding(len(VOCABULARY), 16, mask_zero=True),
            MaskedAveragePooling1D(),
            keras.layers.Dense(dim, "tanh"),
            keras.layers.UnitNormalization(),
        ]
    )


def tokenizer(lowercase=True):
    tokenizers = pytest.importorskip("tokenizers")
    ids = {piece: n for n, piece in enumerate(VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 4)]
    )
    made.enable_truncation(20)
    return made


@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_are_those_of_tokenizers(lowercase):
    ours = pieces(case="lower" if lowercase else "keep", keep_accents=not lowercase)
    theirs = tokenizer(lowercase)
    for text in [*TEXTS, *HOSTILE, *HOSTILE_SENTENCES, "\u00df" * 101, "\u00df" * 100, "\ufffd a"]:
        assert ours.ids(text) == theirs.encode(text).ids, repr(text)


def test_long_words_and_texts_are_cut():
    ours = pieces(max_length=5)
    assert ours.ids("") == [3, 4]
    assert ours.ids("fish " * 9) == [3, *[VOCABULARY.index("fish")] * 3, 4]
    assert ours.ids("a" * 101) == [3, 2, 4]
    assert ours.words("half \ud800 a character") == ["half", "a", "character"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder_of(runtime):
        pytest.importorskip(RUNTIMES[runtime])
        if runtime not in made:
            card = {"name": "animals", "examples": ["a red bird"]}
            task = Encoder(encoder(), pieces(), card)
            path = tmp_path_factory.mktemp("encoder") / runtime
            made[runtime] = export(task, path, Portable(runtime))
        return made[runtime]

    return folder_of


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_reader_gives_the_vectors_of_the_model(runtime, folders):
    loaded = reader.load(folders(runtime))
    texts = [*TEXTS, *HOSTILE]
    rows = [np.array([pieces().ids(text)], "int32") for text in texts]
    model = encoder()
    expected = [keras.ops.convert_to_numpy(model(row))[0] for row in rows]
    vectors = loaded.encode(texts, batch_size=3)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_array_equal(loaded.encode(tuple(texts), batch_size=3), vectors)
    np.testing.assert_allclose(loaded(texts[1]), expected[1], atol=1e-5)
    assert loaded.encode(texts[1]).shape == (24,)
    assert loaded.encode([]).shape == (0, 24)
    assert loaded.encode([]).dtype == vectors.dtype == "float32"
    assert loaded.card["name"] == "animals"


def test_wrong_texts_and_folders_are_refused(folders):
    folder = folders("onnxruntime")
    loaded = reader.load(folder)
    for wrong, message in (
        (None, "texts=None"),
        ({"a": "b"}, r"texts=\{'a': 'b'\}"),
        ({"a"}, r"texts=\{'a'\}, which has no order\. Pass a list"),
        (frozenset("a"), r"texts=frozenset\(\{'a'\}\), which has no order"),
        (b"abc", r"texts=b'abc'\. Pass texts\.decode\(\)"),
        ([b"a"], r"texts\[0\]=b'a'"),
        (["a", 3], r"texts\[1\]=3"),
    ):
        with pytest.raises(TypeError, match=f"a sequence of texts. Received: {message}"):
            loaded.encode(wrong)
    for batch_size in (0, 2.0, True):
        with pytest.raises(ValueError, match=f"positive int. Received: batch_size={batch_size}"):
            loaded.encode(["a"], batch_size=batch_size)
    path = folder / "text.json"
    whole = path.read_bytes()
    content = reader.read_sealed(path)
    for change, message in (
        ({"dim": 23}, "Expected 24. Received: dim=23"),
        ({"dim": "24"}, "dim='24'"),
        ({"pieces": {**content["pieces"], "end": 999}}, "end=999"),
        ({"pieces": {**content["pieces"], "max_length": 2}}, "max_length=2"),
    ):
        path.write_bytes(reader.sealed({**content, **change}))
        with pytest.raises(ValueError, match=message):
            reader.load(folder)
    path.write_bytes(whole)


def test_a_folder_with_other_vectors_gets_no_name(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(reader.Encoder, "encode", lambda *_: np.ones(24, "float32"))
    with pytest.raises(RuntimeError, match="the cosine of its vectors"):
        export(Encoder(encoder(), pieces()), tmp_path / "new", Portable())
    assert not list(tmp_path.iterdir())
