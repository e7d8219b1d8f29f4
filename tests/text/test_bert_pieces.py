import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from keras_tnattn.text.bert_pieces import BertPieceTokenizer, learn_bert_pieces, load_tokenizer
from keras_tnattn.text.reserved import END, RESERVED_PIECES, START, UNK
from keras_tnattn.text.word_pieces import WordPieceTokenizer

TEXTS = [
    "São 3,5 km até lá; 1.000 pessoas às 12:30!",
    "It's 3.5 km (about 1,000 yards) -- don't you think so?",
    "um homem de chapéu laranja olhando para algo .",
    "İstanbul'da ılık bir ŞUBAT günü ...",
    "",
]


@pytest.fixture(scope="module", params=[False, True], ids=["keep", "lower"])
def tokenizer(request):
    return learn_bert_pieces(12 * TEXTS, 300, lower_case=request.param)


def decoded(strings):
    return [text.decode() for text in strings.numpy()]


def test_ids_are_those_of_the_bert_tokenizer(tokenizer, tmp_path):
    (tmp_path / "vocabulary.txt").write_text("\n".join(tokenizer.vocabulary), encoding="utf-8")
    bert = tf_text.BertTokenizer(
        str(tmp_path / "vocabulary.txt"),
        lower_case=tokenizer.lower_case,
        token_out_type=tf.int32,
        unknown_token=RESERVED_PIECES[UNK],
    )
    texts = [*TEXTS, "unseen words: Wörter, 漢字 and 12.5%", "  blanks\t\n between "]
    expected = bert.tokenize(texts).merge_dims(-2, -1).to_list()
    ids = tokenizer.tokenize(texts).to_list()
    assert ids == [[START, *sentence, END] for sentence in expected]
    assert any(UNK in sentence for sentence in ids)


def test_sentences_come_back_normalized(tokenizer):
    back = decoded(tokenizer.detokenize(tokenizer.tokenize(TEXTS)))
    assert back == decoded(tokenizer.normalize(TEXTS))
    first = "sao 3 , 5 km ate la" if tokenizer.lower_case else "São 3 , 5 km até lá"
    assert back[0].startswith(f"{first} ; 1 . 000")
    assert back[1].lower().startswith("it ' s 3 . 5 km ( about")
    # What it says of itself is what it does.
    assert (tokenizer.case, tokenizer.keep_accents) == (
        ("lower", False) if tokenizer.lower_case else ("keep", True)
    )


def test_the_vocabulary_is_cut_to_its_size():
    texts = 12 * TEXTS
    whole = learn_bert_pieces(texts, 10_000).vocabulary
    small = learn_bert_pieces(texts, 130)
    assert len(whole) > 130
    assert small.vocabulary_size <= 130
    characters = {piece for piece in small.vocabulary if len(piece.removeprefix("##")) == 1}
    assert {"S", "##o", "3", ","} <= characters
    with pytest.raises(ValueError, match="vocabulary_size=20"):
        learn_bert_pieces(texts, 20)


def test_pieces_are_learned_from_all_of_many_texts():
    assert "zebra" in learn_bert_pieces(["a fish"] * 1000 + ["a zebra"] * 1000, 100).vocabulary


def test_both_kinds_are_loaded_as_they_were_saved(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "bert.txt")
    WordPieceTokenizer([*RESERVED_PIECES, "a"], case="lower").save(tmp_path / "ours.txt")
    loaded = load_tokenizer(tmp_path / "bert.txt")
    assert isinstance(loaded, BertPieceTokenizer)
    assert loaded.options == tokenizer.options
    assert loaded.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
    ours = load_tokenizer(tmp_path / "ours.txt")
    assert type(ours) is WordPieceTokenizer
    assert ours.case == "lower"


def test_works_in_an_exported_function(tmp_path):
    tokenizer = learn_bert_pieces(12 * TEXTS, 300, lower_case=True)
    module = tf.Module()
    module.tokenize = tf.function(
        lambda texts: tokenizer.tokenize(texts).to_tensor(),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    pieces = loaded.tokenize(tf.constant(TEXTS[1:2])).numpy().tolist()
    assert pieces == tokenizer.tokenize(TEXTS[1:2]).to_list()


def test_each_class_loads_its_own_kind(tmp_path):
    learn_bert_pieces(["a fish"] * 10, 40).save(tmp_path / "bert.txt")
    WordPieceTokenizer(RESERVED_PIECES).save(tmp_path / "ours.txt")
    for kind, name in ((WordPieceTokenizer, "bert.txt"), (BertPieceTokenizer, "ours.txt")):
        with pytest.raises(ValueError, match=rf"{name}.*load_tokenizer"):
            kind.load(tmp_path / name)


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_no_words(texts):
    with pytest.raises(ValueError, match=f"at least one word.*{len(texts)} texts"):
        learn_bert_pieces(texts, 40)
