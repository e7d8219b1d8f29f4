import keras
import numpy as np
import pytest
from conformance import to_numpy
from hypothesis import given
from hypothesis import strategies as st

from keras_tnattn.text.words import (
    WordVectorizer,
    learn_words,
    lower_and_separate,
    split_characters,
    word_vectorizer,
)


def test_ids_fall_with_frequency():
    vectorizer = learn_words(["b a, A!", "a (b) a"], max_words=4)
    assert vectorizer.get_vocabulary() == ["", "[UNK]", "a", "b"]
    assert vectorizer.vocabulary_size() == 4
    ids = vectorizer(["b c A", "", "a a a a b"])
    assert ids.tolist() == [[3, 1, 2, 0], [0] * 4, [2] * 4]
    assert ids.dtype == "int32"


def test_lower_case_of_any_alphabet_and_words_between_punctuation():
    vectorizer = learn_words(["Привет ÇA don't end.Start 'so'"])
    words = {"привет", "ça", "don", "t", "end", "start", "so"}
    assert set(vectorizer.get_vocabulary()[2:]) == words


def test_keeps_the_most_frequent():
    vectorizer = learn_words(["a a a b b c"], vocabulary_size=4)
    assert vectorizer.get_vocabulary() == ["", "[UNK]", "a", "b"]


def test_ids_are_what_the_paper_pads_to():
    assert learn_words(["a"])(["a"]).shape == (1, 200)


@pytest.mark.parametrize("texts", [[], [""], ["  ", "!?"]])
def test_no_words(texts):
    with pytest.raises(ValueError, match="Received: texts without any"):
        learn_words(texts)


def test_sizes():
    with pytest.raises(ValueError, match="vocabulary_size=2"):
        learn_words(["a"], vocabulary_size=2)
    with pytest.raises(ValueError, match="max_words=0"):
        WordVectorizer(["a"], max_words=0)
    with pytest.raises(ValueError, match=r"learned again\. Received: \"don't\""):
        WordVectorizer(["a", "don't"])
    assert WordVectorizer(["a"], max_words=1)(["a b"]).tolist() == [[2]]
    assert learn_words(["a b"], vocabulary_size=3).vocabulary_size() == 3


INVISIBLE = "\u00ad\u034f\u061c\u200b\u200d\u200f\u202a\u202e\u2060\u2069\ufe0f\ufeff\U000e0041"


def test_words_are_read_without_characters_that_nobody_sees():
    vectorizer = learn_words([f"{INVISIBLE}re{INVISIBLE}d red", f"{INVISIBLE} \u200b"], max_words=3)
    assert vectorizer.get_vocabulary() == ["", "[UNK]", "red"]
    assert vectorizer([f"r{INVISIBLE}ed", INVISIBLE, "re\u200ad"]).tolist() == [
        [2, 0, 0],
        [0, 0, 0],
        [1, 0, 0],  # a hair space can be seen
    ]


@pytest.mark.parametrize(("split", "whole"), [("words", "a b!"), ("characters", "a b.")])
def test_a_text_is_cut_behind_the_last_word_that_is_read(split, whole):
    vectorizer = WordVectorizer(["a"], max_words=2, split=split)
    assert [vectorizer.cuts(text) for text in ("", whole, f"{whole}c", "abc", "a  b   ")] == [
        *(False, False, True),
        *(split == "characters", False),
    ]


class TestLayer:
    """Texts are cut and counted as `keras.layers.TextVectorization` does, which runs TensorFlow."""

    TEXTS = (
        f"r{INVISIBLE}ed {INVISIBLE}",
        "It's Straße, ça (ÇA)\tça\n",
        "non\u00a0breaking b-a_c d.e 3.5",
        "Привет ΟΔΟΣ b b a",
    )

    @pytest.fixture(autouse=True)
    def _tensorflow(self):
        pytest.importorskip("tensorflow")

    def test_vocabulary_is_that_of_an_adapted_layer(self):
        import tensorflow as tf

        layer = keras.layers.TextVectorization(standardize=lower_and_separate, max_tokens=12)
        layer.adapt(tf.data.Dataset.from_tensor_slices(list(self.TEXTS)).batch(2))
        assert learn_words(self.TEXTS, 12).get_vocabulary() == layer.get_vocabulary()

    def test_ids_are_equal(self):
        vectorizer = learn_words(self.TEXTS, max_words=5)
        layer = vectorizer.layer()
        assert layer.get_vocabulary() == vectorizer.get_vocabulary()

        @given(st.lists(st.text("abÇçΣß'. -\t\n\u00a0\u2003!~漢", max_size=12), min_size=1))
        def check(texts):
            ids = np.asarray(layer(np.array(texts)))
            np.testing.assert_array_equal(vectorizer(texts), ids)

        check()

    def test_short_form(self):
        layer = word_vectorizer(["b a, A!", "a (b) a"], max_words=4)
        assert np.asarray(layer(np.array(["b c A"]))).tolist() == [[3, 1, 2, 0]]


def test_a_character_that_keras_loses_separates_words():
    tf = pytest.importorskip("tensorflow")
    vectorizer = learn_words(["a fish a\x00 fish", "red\x00fish"], max_words=4)
    assert sorted(vectorizer.get_vocabulary()[2:]) == ["a", "fish", "red"]
    texts = ["a\x00 red\x00\x00fish"]
    np.testing.assert_array_equal(vectorizer.layer()(tf.constant(texts)), vectorizer(texts))


class TestCharacters:
    TEXTS = ("\u6211\u4eec \u662f, \u6211!", "Ab a'\U0001f600\u00c9", "", "x" * 9)

    def test_each_character_is_a_word(self):
        vectorizer = learn_words(self.TEXTS[:2], max_words=6, split="characters")
        ids = {word: i for i, word in enumerate(vectorizer.get_vocabulary())}
        assert set(ids) == {"", "[UNK]", *"\u6211\u4eec\u662fab\U0001f600\u00e9"}
        expected = [
            [ids[c] for c in "\u6211\u4eec\u662f\u6211"] + [0, 0],
            [ids[c] for c in "aba\U0001f600\u00e9"] + [0],
        ]
        assert vectorizer(self.TEXTS).tolist() == [*expected, [0] * 6, [1] * 6]

    def test_the_layer_does_the_same(self):
        vectorizer = learn_words(self.TEXTS, max_words=7, split="characters")
        ids = to_numpy(vectorizer.layer()(list(self.TEXTS)))
        np.testing.assert_array_equal(ids, vectorizer(self.TEXTS))
        words = split_characters(list(self.TEXTS[:2])).to_list()
        assert [[w.decode() for w in row] for row in words] == [
            list("\u6211\u4eec\u662f\u6211"),
            list("aba\U0001f600\u00e9"),
        ]

    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    def test_characters_are_those_between_the_words(self, text):
        words, characters = (
            learn_words([text + "a"], split=split).get_vocabulary()[2:]
            for split in ("words", "characters")
        )
        assert set(characters) == set("".join(words))

    def test_an_unknown_split(self):
        with pytest.raises(ValueError, match="split='letters'"):
            WordVectorizer(["a"], split="letters")


def test_the_number_of_words_may_depend_on_the_texts():
    vectorizer = learn_words(
        ["a b c", "", "a"], max_words=lambda lengths: sum(lengths) + len(lengths)
    )
    assert vectorizer.max_words == 7
