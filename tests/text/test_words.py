import numpy as np
import pytest
import tensorflow as tf

from keras_tnattn.text.words import word_vectorizer


def ids(vectorizer, *texts):
    return np.asarray(vectorizer(tf.constant(texts))).tolist()


def test_ids_fall_with_frequency():
    vectorizer = word_vectorizer(["b a, A!", "a (b) a"], max_words=4)
    assert vectorizer.get_vocabulary() == ["", "[UNK]", "a", "b"]
    assert ids(vectorizer, "b c A", "", "a a a a b") == [[3, 1, 2, 0], [0] * 4, [2] * 4]


def test_lower_case_of_any_alphabet_and_words_with_apostrophes():
    vectorizer = word_vectorizer(["Привет ÇA don't end.Start"])
    assert set(vectorizer.get_vocabulary()[2:]) == {"привет", "ça", "don't", "end", "start"}


def test_keeps_the_most_frequent():
    vectorizer = word_vectorizer(["a a a b b c"], vocabulary_size=4)
    assert vectorizer.get_vocabulary() == ["", "[UNK]", "a", "b"]


def test_ids_are_what_the_paper_pads_to():
    assert word_vectorizer(["a"])(tf.constant(["a"])).shape == (1, 200)


@pytest.mark.parametrize("texts", [[], [""], ["  ", "!?"]])
def test_no_words(texts):
    with pytest.raises(ValueError, match=f"{len(texts)} texts without any"):
        word_vectorizer(texts)


def test_sizes():
    with pytest.raises(ValueError, match="vocabulary_size=2"):
        word_vectorizer(["a"], vocabulary_size=2)
    with pytest.raises(ValueError, match="max_words=0"):
        word_vectorizer(["a"], max_words=0)
