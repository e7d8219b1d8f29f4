"""Converts words to ids, as in the experiments of the tensorized spectral attention paper.

Learning a vocabulary and converting texts to ids needs no TensorFlow; only the layer that does the
same in an exported model does.
"""

import collections
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.typing import Tensor
from keras_tnattn_runtime.reader import (
    BETWEEN_CHARACTERS,
    BETWEEN_WORDS,
    INVISIBLE,
    SEPARATORS,
    visible,
)

SPLITS = {"words": BETWEEN_WORDS, "characters": BETWEEN_CHARACTERS}
_SPECIAL = ["", "[UNK]"]


@keras.saving.register_keras_serializable(package="keras_tnattn")
def lower_and_separate(text: Tensor) -> Tensor:
    """Lower-cases UTF-8 strings of any alphabet and turns punctuation into spaces."""
    import tensorflow as tf

    # In this order, because `lower` cuts a string at NUL.
    text = tf.strings.regex_replace(_visible(text), SEPARATORS, " ")
    return tf.strings.lower(text, encoding="utf-8")


@keras.saving.register_keras_serializable(package="keras_tnattn")
def lower_and_join(text: Tensor) -> Tensor:
    """Lower-cases UTF-8 strings of any alphabet, and removes punctuation and white space."""
    import tensorflow as tf

    text = tf.strings.regex_replace(_visible(text), BETWEEN_WORDS, "")
    return tf.strings.lower(text, encoding="utf-8")


def _visible(text: Tensor) -> Tensor:
    """Removes the characters that nobody sees, as `visible` does."""
    import tensorflow as tf

    ranges = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in INVISIBLE)
    return tf.strings.regex_replace(text, f"[{ranges}]", "")


def split_characters(texts: Tensor) -> Any:
    """Returns the characters of strings `(B,)`, one for each id, as a ragged tensor `(B, None)`."""
    import tensorflow as tf

    return tf.strings.unicode_split(lower_and_join(texts), "UTF-8")


def split_words(texts: Tensor) -> Any:
    """Returns the words of strings `(B,)`, one for each id, as a ragged tensor `(B, None)`."""
    import tensorflow as tf

    return tf.strings.split(lower_and_separate(texts))


class WordVectorizer:
    """Turns texts into ids of words, in plain Python.

    Words are separated by white space and punctuation, the apostrophe included, and lower-cased;
    characters that nobody sees, such as zero-width spaces and soft hyphens, are left out. Id 0 is
    padding and id 1 is any unknown word. For languages that are written without spaces, each
    character but white space and punctuation can be a word.

    Args:
        vocabulary: The words of ids 2, 3, ...
        max_words: How many words of a text are kept; shorter texts are padded. Default 200.
        split: `"words"` (default) or `"characters"`.

    Attributes:
        between: The regular expression that separates words; `"characters"` are separated by its
            empty match. A reader in another language needs nothing else.

    Raises:
        ValueError: If `max_words` is not positive, `split` is unknown, or a word has punctuation.

    Example:
        >>> from keras_tnattn.text.words import WordVectorizer
        >>> vectorizer = WordVectorizer(["graph", "tensor"], max_words=4)
        >>> vectorizer(["A tensor, a graph!", ""]).tolist()
        [[1, 3, 1, 2], [0, 0, 0, 0]]
    """

    def __init__(
        self, vocabulary: Sequence[str], max_words: int = 200, split: str = "words"
    ) -> None:
        if max_words < 1:
            raise ValueError(f"Expected max_words >= 1. Received: max_words={max_words}")
        self.max_words = max_words
        self.split = split
        self.between = _between(split)
        self._separator = re.compile(self.between)
        never = next((word for word in vocabulary if re.search(SEPARATORS, word)), None)
        if never is not None:
            raise ValueError(
                "Expected words without punctuation, which separates words; a vocabulary from the "
                f"time when an apostrophe did not must be learned again. Received: {never!r}"
            )
        self._vocabulary = [*_SPECIAL, *vocabulary]
        self._ids = {word: n for n, word in enumerate(self._vocabulary)}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns int32 ids `(B, max_words)` of `B` texts, padded with 0."""
        ids = np.zeros((len(texts), self.max_words), "int32")
        for row, text in zip(ids, texts, strict=True):
            words = self.words(text)
            row[: len(words)] = [self._ids.get(word, 1) for word in words]
        return ids

    def words(self, text: str) -> list[str]:
        """Returns the words of a text that have ids, known or not: at most `max_words`."""
        return _words(text, self._separator)[: self.max_words]

    def cuts(self, text: str) -> bool:
        """Whether a text has more than `max_words` words, of which the last ones are not read."""
        if len(text) <= self.max_words:
            return False
        return len(_words(text, self._separator)) > self.max_words

    def get_vocabulary(self) -> list[str]:
        """Returns the words of all ids, `""` and `"[UNK]"` first."""
        return list(self._vocabulary)

    def vocabulary_size(self) -> int:
        """Returns the number of ids."""
        return len(self._vocabulary)

    def layer(self) -> keras.layers.TextVectorization:
        """Returns a layer that does the same for strings `(B,)`, for exported models.

        It runs on TensorFlow, which must be installed, whatever the backend of Keras.
        """
        return keras.layers.TextVectorization(
            standardize=lower_and_separate if self.split == "words" else lower_and_join,
            split="whitespace" if self.split == "words" else "character",
            output_sequence_length=self.max_words,
            vocabulary=self._vocabulary[len(_SPECIAL) :],
            name="words",
        )


def learn_words(
    texts: Iterable[str],
    vocabulary_size: int = 20_000,
    max_words: int | Callable[[np.ndarray], int] = 200,
    split: str = "words",
) -> WordVectorizer:
    """Learns a vocabulary of the most frequent words.

    The words are sorted by decreasing frequency, words of equal frequency by decreasing code points
    of their UTF-8 form, as in `keras.layers.TextVectorization`.

    Args:
        texts: The training texts, without those of the test part; they are read once, one by one.
        vocabulary_size: Maximum number of ids, including the two special ones. Default 20,000.
        max_words: How many words of a text are kept; shorter texts are padded. Default 200. It may
            be a function of the numbers of words of all texts, an integer array.
        split: As for `WordVectorizer`. Defaults to `"words"`.

    Raises:
        ValueError: If `vocabulary_size` leaves no room for a word, `max_words` is not positive,
            or the texts hold no word at all.

    Example:
        >>> from keras_tnattn.text.words import learn_words
        >>> learn_words(["b a, A!", "a (b) a"], max_words=4).get_vocabulary()
        ['', '[UNK]', 'a', 'b']
    """
    if vocabulary_size < 3:
        raise ValueError(
            "Expected vocabulary_size >= 3: padding, the unknown word and at least one word. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    counts: collections.Counter[str] = collections.Counter()
    separator, lengths = re.compile(_between(split)), array("q")
    for text in texts:
        words = _words(text, separator)
        lengths.append(len(words))
        counts.update(words)
    if not counts:
        raise ValueError("Expected texts with at least one word. Received: texts without any")
    words = sorted(counts, key=lambda word: (counts[word], word.encode()), reverse=True)
    if callable(max_words):
        max_words = max_words(np.array(lengths))
    return WordVectorizer(words[: vocabulary_size - len(_SPECIAL)], max_words, split)


def word_vectorizer(
    texts: Sequence[str], vocabulary_size: int = 20_000, max_words: int = 200
) -> keras.layers.TextVectorization:
    """Learns a vocabulary as `learn_words` does, and returns the layer that applies it.

    Args:
        texts: The training texts.
        vocabulary_size: How many ids there are at most. Default 20,000.
        max_words: How many words of a text are kept. Default 200.

    Returns:
        A layer from strings `(batch,)` to int64 ids `(batch, max_words)`. It runs on TensorFlow
        whatever the backend of Keras, and may be part of an exported model.

    Raises:
        ValueError: As `learn_words`.

    Example:
        >>> vectorizer = word_vectorizer(["a red fish", "a blue fish"], 10, 5)
        >>> tuple(vectorizer(["a green fish"]).shape)
        (1, 5)
    """
    return learn_words(texts, vocabulary_size, max_words).layer()


def _between(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"Expected one of {tuple(SPLITS)}. Received: split={split!r}")
    return SPLITS[split]


def _words(text: str, separator: re.Pattern[str]) -> list[str]:
    return [word for word in separator.split(visible(text).lower()) if word]
