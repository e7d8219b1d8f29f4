import json
import re
import unicodedata

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from import_path import run_python

from keras_tnattn.text.reserved import END, PAD, RESERVED_PIECES, START, UNK
from keras_tnattn.text.word_pieces import JOINER, WordPieceTokenizer, learn_word_pieces

PORTUGUESE = [
    "São 3,5 km até lá; 1.000 pessoas às 12:30!",
    'Disse-lhe: "Não é (bem) assim..." — e saiu d\'água.',
    "um homem de chapéu laranja olhando para algo .",
    "depois , podem fazer-se e testar-se previsões .",
    "Custa R$ 1.234,50 (12,5%) na 2ª-feira, 5º andar.",
]
TURKISH = [
    "İstanbul'da ılık bir ŞUBAT günü, 3,5 km yürüdük; IŞIK İNCE.",
    "Saat 12:30'da 1.000 kişi geldi mi?! Evet...",
    "bu senenin sonunda , yaklaşık bir milyar insan sosyal ağ sitelerini kullanıyor olacak .",
]
ENGLISH = [
    "It's 3.5 km (about 1,000 yards) -- don't you think so?",
    "by then , there 'll be nearly a billion people who do n't care about 12:30 .",
    'a "well-known" e-mail: me@example.org, #1 & [START] ## ##s, 50% @-@ a_b',
]


@pytest.fixture(scope="module")
def tokenizer():
    return learn_word_pieces(3 * [*PORTUGUESE, *TURKISH, *ENGLISH], 500)


def decode(strings):
    return [text.decode() for text in strings.numpy()]


def round_trip(tokenizer, texts):
    return decode(tokenizer.detokenize(tokenizer.tokenize(texts)))


@pytest.mark.parametrize("texts", [PORTUGUESE, TURKISH, ENGLISH], ids=["pt", "tr", "en"])
def test_sentences_come_back(texts):
    # Learned from the very language, and with few pieces: most words are spelt.
    for size in (500, 150):
        learned = learn_word_pieces(3 * texts, size)
        ids = learned.tokenize(texts)
        assert UNK not in ids.flat_values.numpy()
        assert round_trip(learned, texts) == texts


@given(st.lists(st.text("aéıİ1290 .,'-(#￭\"\t\u00a0\u2028é", max_size=20), min_size=1))
def test_whatever_can_be_spelt_comes_back(texts):
    tokenizer = SPELT
    normal = decode(tokenizer.normalize(texts))
    assert round_trip(tokenizer, texts) == normal
    assert decode(tokenizer.normalize(normal)) == normal
    folded = [re.sub(r"\s+", " ", text.replace(JOINER, "■")).strip() for text in texts]
    assert normal == [unicodedata.normalize("NFC", text) for text in folded]


ALPHABET = "aéıİ1290.,'-(#\"■e\u0301\uffed"
SPELT = WordPieceTokenizer([*RESERVED_PIECES, *ALPHABET, *("##" + c for c in ALPHABET)])


@given(st.text(max_size=20))
def test_any_text_has_ids_and_a_text(text):
    ids = SPELT.tokenize([text])[0].numpy().tolist()
    assert [ids[0], ids[-1]] == [START, END]
    assert PAD not in ids
    # A word that cannot be spelt is one [UNK]: as many words come back as there were.
    words = SPELT.words([text])[0].shape[0]
    starts = [i for i in ids[1:-1] if not SPELT.vocabulary[i].startswith("##")]
    assert len(starts) == words
    SPELT.detokenize([ids])


def test_only_what_is_glued_is_marked(tokenizer):
    words = decode(tokenizer.words(["It's 3.5 km (now). 2 . x", "", " a  b\u00a0c\n"]).flat_values)
    marked = "It ￭'￭ s 3 ￭. ￭5 km (￭ now ￭) ￭. 2 . x a b c"
    assert words == marked.split(" ")


def test_words_have_one_form_whatever_surrounds_them(tokenizer):
    ids = tokenizer.tokenize(["bem", "(bem)", '"bem', "-bem!"])
    bem = ids[0].numpy()[1]
    assert all(bem in row.numpy() for row in ids)


def test_empty_and_unknown(tokenizer):
    ids = tokenizer.tokenize(["", " \n", "日本 語", "bem"])
    assert ids[:3].to_list() == [[START, END], [START, END], [START, UNK, UNK, END]]
    assert ids.to_tensor()[0].numpy().tolist()[2:] == [PAD, PAD]
    assert round_trip(tokenizer, ["", "日本 語", b"bem \xff"]) == ["", "[UNK] [UNK]", "bem [UNK]"]


def test_long_sentences_lose_their_end(tokenizer):
    whole = tokenizer.tokenize(["bem bem bem bem", "bem"]).to_list()
    cut = tokenizer.tokenize(["bem bem bem bem", "bem"], max_length=4).to_list()
    assert cut == [[*whole[0][:3], END], whole[1]]
    with pytest.raises(ValueError, match="max_length=2"):
        tokenizer.tokenize(["bem"], max_length=2)


def test_detokenizes_what_a_model_makes(tokenizer):
    piece = tokenizer.vocabulary.index
    ids = [
        [START, piece("bem"), UNK, PAD, piece("##a"), END, piece("bem")],
        [piece("##a"), piece(JOINER), START, piece("bem"), PAD, PAD, PAD],
    ]
    assert decode(tokenizer.detokenize(tf.constant(ids, tf.int64))) == ["bem [UNK]a", "abem"]
    beams = tokenizer.detokenize(tf.constant([ids, ids]))
    assert beams.shape == (2, 2)
    assert beams[1, 0] == b"bem [UNK]a"


@pytest.mark.parametrize(
    ("options", "text", "normal"),
    [
        ({}, "I\u0307 É\u0301 ﬁ m² \u200d", "İ É\u0301 ﬁ m² \u200d"),
        ({"form": "NFKC"}, "ﬁ m² №", "fi m2 No"),
        ({"case": "lower"}, "ÇA Don't ΟΔΟΣ", "ça don't οδος"),
        ({"case": "turkish"}, "IŞIK İNCE I\u0307yi ıi", "ışık ince iyi ıi"),
        ({"case": "turkish", "keep_accents": False}, "IŞIK İnce çağ", "ısık ince cag"),
        ({"case": "lower", "keep_accents": False}, "São É 한", "sao e 한"),
    ],
)
def test_normal_forms(options, text, normal):
    tokenizer = WordPieceTokenizer(RESERVED_PIECES, **options)
    assert decode(tokenizer.normalize([text])) == [normal]
    assert decode(tokenizer.normalize([normal])) == [normal]


def test_turkish_letters_stay_four(tokenizer):
    texts = ["ısı isi", "ısıt işit"]
    learned = learn_word_pieces(3 * texts, 60, case="turkish")
    assert round_trip(learned, ["ISI İSİ", "ISIT İŞİT"]) == texts


def test_vocabulary_is_learned_within_its_size():
    texts = [*PORTUGUESE, *ENGLISH] * 20
    for size in (200, 240):
        learned = learn_word_pieces(texts, size)
        assert learned.vocabulary[:4] == ["[PAD]", "[UNK]", "[START]", "[END]"]
        assert learned.vocabulary_size <= size
        assert learned.vocabulary == learn_word_pieces(texts[::-1], size).vocabulary
    assert learn_word_pieces(["bem bom"] * 20, 100).tokenize(["bem"]).shape[0] == 1
    assert {"bem", "bom"} <= set(learn_word_pieces(["bem bom"] * 20, 100).vocabulary)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learn_word_pieces(ENGLISH, 10), "vocabulary_size=10"),
        (lambda: learn_word_pieces(["", " "]), "Received: texts without any"),
        (lambda: learn_word_pieces([]), "Received: texts without any"),
        (lambda: WordPieceTokenizer(["a"]), r"Received: \['a'\]"),
        (lambda: WordPieceTokenizer([*RESERVED_PIECES, *"aba"]), r"\['a'\] more than once"),
        (lambda: WordPieceTokenizer(RESERVED_PIECES, case="upper"), "case='upper'"),
        (lambda: WordPieceTokenizer(RESERVED_PIECES, form="NFD"), "form='NFD'"),
    ],
)
def test_errors_name_what_was_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_saved_and_loaded(tmp_path, tokenizer):
    path = tmp_path / "target.txt"
    made = WordPieceTokenizer(
        [*tokenizer.vocabulary, "a\x0bb"], case="turkish", keep_accents=False, form="NFKC"
    )
    made.save(path)
    loaded = WordPieceTokenizer.load(str(path))
    assert loaded.vocabulary == made.vocabulary
    assert loaded.options == made.options == json.loads((tmp_path / "target.json").read_text())


@pytest.mark.slow
def test_serves_without_the_package(tmp_path, tokenizer):
    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            ids = tokenizer.tokenize(texts, max_length=64)
            return {"ids": ids.to_tensor(), "texts": tokenizer.detokenize(ids)}

    tf.saved_model.save(Served(), str(tmp_path / "served"))
    sentence = "don't, 3.5 (bem)"
    code = (
        "import json, sys; import tensorflow as tf, tensorflow_text\n"
        f"served = tf.saved_model.load({str(tmp_path / 'served')!r})\n"
        f"out = served(tf.constant([{sentence!r}, '']))\n"
        "assert 'keras_tnattn' not in sys.modules\n"
        "texts = [text.decode() for text in out['texts'].numpy()]\n"
        "print(json.dumps([out['ids'].numpy().tolist(), texts]))"
    )
    done = run_python("-c", code)
    ids, texts = json.loads(done.stdout)
    assert texts == [sentence, ""]
    assert ids == tokenizer.tokenize([sentence, ""]).to_tensor().numpy().tolist()


def test_two_vocabularies_cannot_share_one_file_of_options(tmp_path, tokenizer):
    for name in ("vocabulary.en", "vocabulary.json", "vocabulary"):
        with pytest.raises(ValueError, match=rf"ends in \.txt.*path='.*{name}'"):
            tokenizer.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
