"""BERT's own word pieces, by TensorFlow Text.

The power law graph transformer was trained with these. They do not give a sentence back: a
punctuation mark is a word of its own, and where it stood is forgotten, so that `3.5` and `3 . 5`
have the same pieces. `WordPieceTokenizer` keeps what stood where.
"""

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer
from tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset import bert_vocab_from_dataset

from keras_tnattn.text.piece_files import read_pieces
from keras_tnattn.text.reserved import RESERVED_PIECES
from keras_tnattn.text.word_pieces import WordPieceTokenizer, most_frequent, other_kind


class BertPieceTokenizer(WordPieceTokenizer):
    """Sentences to the ids of `tensorflow_text.BertTokenizer` and back.

    Used as `WordPieceTokenizer`, with `[START]` and `[END]` around each sentence. A sentence comes
    back as `normalize` gives it: its words, and each punctuation mark, with one space between them.

    Args:
        vocabulary: The pieces; the first are `[PAD]`, `[UNK]`, `[START]`, `[END]`, ids 0 to 3.
        lower_case: As in BERT, whether to lower the case and to remove the accents. Default
            `False`.

    Raises:
        ValueError: If the vocabulary does not begin with the reserved pieces or repeats one.

    Example:
        >>> vocabulary = ["[PAD]", "[UNK]", "[START]", "[END]", "3", ".", "5"]
        >>> tokenizer = BertPieceTokenizer(vocabulary)
        >>> ids = tokenizer.tokenize(["3.5"])
        >>> ids.to_list()
        [[2, 4, 5, 6, 3]]
        >>> tokenizer.detokenize(ids).numpy().tolist()
        [b'3 . 5']
    """

    def __init__(self, vocabulary: Sequence[str], lower_case: bool = False) -> None:
        super().__init__(vocabulary, "lower" if lower_case else "keep", not lower_case)
        self.lower_case = bool(lower_case)
        self.form = "NFD" if lower_case else "as given"
        self._basic = BasicTokenizer(lower_case=self.lower_case)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments besides the vocabulary, and a mark of this kind of tokenizer."""
        return {"tokenizer": "bert", "lower_case": self.lower_case}

    def normalize(self, texts: tf.Tensor | Sequence[str]) -> tf.Tensor:
        """Returns strings whose words and punctuation marks have one space between them."""
        return tf.strings.reduce_join(self.words(texts), axis=-1, separator=" ")

    def words(self, texts: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns what is cut into pieces, strings `(B, None)`."""
        texts = tf.convert_to_tensor(texts, tf.string)
        return self._basic.tokenize(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8"))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BertPieceTokenizer":
        """Reads what `save` wrote.

        Raises:
            ValueError: If the file is that of another kind of tokenizer.
        """
        vocabulary, options = read_pieces(path)
        if options.get("tokenizer") != "bert":
            raise ValueError(other_kind(path))
        return cls(vocabulary, options["lower_case"])


def learn_bert_pieces(
    texts: Sequence[str], vocabulary_size: int = 8000, lower_case: bool = False
) -> BertPieceTokenizer:
    """Learns the pieces of sentences with TensorFlow Text's `bert_vocab_from_dataset`.

    Args:
        texts: The training sentences of one language.
        vocabulary_size: The most pieces, the reserved ones and those of a single character
            included. Default 8,000.
        lower_case: As in BERT, whether to lower the case and to remove the accents. Default
            `False`.

    Raises:
        ValueError: If `vocabulary_size` is too small for the characters, or the texts have no
            words.

    Example:
        >>> tokenizer = learn_bert_pieces(["a fish", "a red fish"] * 10, 40)
        >>> tokenizer.vocabulary[:4]
        ['[PAD]', '[UNK]', '[START]', '[END]']
    """
    if not any(text.strip() for text in texts):
        raise ValueError(f"Expected texts with at least one word. Received: {len(texts)} texts")
    vocabulary = bert_vocab_from_dataset(
        tf.data.Dataset.from_generator(
            lambda: (texts[start : start + 1000] for start in range(0, len(texts), 1000)),
            output_signature=tf.TensorSpec([None], tf.string),
        ),
        vocabulary_size,
        list(RESERVED_PIECES),
        bert_tokenizer_params={"lower_case": lower_case},
    )
    return BertPieceTokenizer(most_frequent(vocabulary, vocabulary_size), lower_case)


def load_tokenizer(path: str | os.PathLike) -> WordPieceTokenizer:
    """Reads what the `save` of either tokenizer wrote.

    Example:
        ```python notest
        tokenizer = load_tokenizer("runs/mine/prepared/source.txt")
        ```
    """
    _, options = read_pieces(path)
    kind = BertPieceTokenizer if options.get("tokenizer") == "bert" else WordPieceTokenizer
    return kind.load(path)
