"""Reversible word pieces: BERT's WordPiece over words with joiner marks.

BERT's own tokenizer separates punctuation from words and loses the spaces: `3.5` and `3 . 5` have
the same pieces. Here a punctuation mark, a symbol or a digit that has no space beside it gets the
joiner `￭` on that side (the annotation of the OpenNMT tokenizer):

    It's 3.5 km (now).   ->   It ￭'￭ s 3 ￭. ￭5 km (￭ now ￭) ￭.

so that words have the same form whatever surrounds them, and sentences can be restored exactly: a
joiner removes the spaces beside it. Sentences that have spaces around punctuation, as those of TED
and Multi30k, need no joiners. Numbers are spelled digit by digit in source and target, so that any
number can be copied.

The restored sentence is the one that `WordPieceTokenizer.normalize` returns: in the chosen case and
Unicode form, with one space for each run of white space and control characters, and none at the
ends.
"""

import collections
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

from keras_tnattn.text.piece_files import read_pieces
from keras_tnattn.text.reserved import END, PAD, RESERVED_PIECES, START, UNK

JOINER = "\uffed"  # ￭
SUFFIX = "##"  # WordPiece's mark of a piece that continues a word
_ALONE = r"[\pP\pS\p{Nd}]"  # each such character is a word of its own
_BLANK = r"[\pZ\p{Cc}]+"

CASES = ("keep", "lower", "turkish")
FORMS = ("NFC", "NFKC")


class WordPieceTokenizer:
    """Converts sentences to ids and back with TensorFlow operations, also in exported functions.

    It holds constants only, no lookup table: nothing needs to be tracked. Whoever loads the
    exported function imports `tensorflow_text` first.

    Args:
        vocabulary: The pieces; the first are `[PAD]`, `[UNK]`, `[START]`, `[END]`, ids 0 to 3.
        case: `"keep"`, `"lower"`, or `"turkish"`: lower case with `I` to `ı` and `İ` to `i`.
            Default `"keep"`.
        keep_accents: Whether accents stay on their letters. Default `True`.
        form: The Unicode normalization form, `"NFC"` or `"NFKC"` (which also turns `²` into `2`
            and `ﬁ` into `fi`). Default `"NFC"`.

    Raises:
        ValueError: If the vocabulary does not begin with the reserved pieces or repeats one, or
            an option has no such value.

    Example:
        >>> vocabulary = ["[PAD]", "[UNK]", "[START]", "[END]", "a", "fish"]
        >>> tokenizer = WordPieceTokenizer(vocabulary)
        >>> ids = tokenizer.tokenize(["a fish"])
        >>> ids.to_list()
        [[2, 4, 5, 3]]
        >>> tokenizer.detokenize(ids).numpy().tolist()
        [b'a fish']
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        case: str = "keep",
        keep_accents: bool = True,
        form: str = "NFC",
    ) -> None:
        vocabulary = [str(piece) for piece in vocabulary]
        begin = vocabulary[: len(RESERVED_PIECES)]
        if begin != list(RESERVED_PIECES):
            raise ValueError(
                f"Expected a vocabulary that begins with {list(RESERVED_PIECES)}. Received: {begin}"
            )
        repeated = [p for p, count in collections.Counter(vocabulary).items() if count > 1]
        if repeated:
            raise ValueError(f"Expected every piece once. Received: {repeated[:5]} more than once")
        if case not in CASES:
            raise ValueError(f"Expected one of {CASES}. Received: case={case!r}")
        if form not in FORMS:
            raise ValueError(f"Expected one of {FORMS}. Received: form={form!r}")
        self.vocabulary = vocabulary
        self.case = case
        self.keep_accents = bool(keep_accents)
        self.form = form
        # Constants only, where `tf_text.BertTokenizer` holds a lookup table.
        self._word_pieces = tf_text.FastWordpieceTokenizer(
            vocabulary,
            suffix_indicator=SUFFIX,
            token_out_type=tf.int32,
            unknown_token=RESERVED_PIECES[UNK],
            no_pretokenization=True,
        )

    @property
    def vocabulary_size(self) -> int:
        """The number of ids."""
        return len(self.vocabulary)

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's arguments other than the vocabulary."""
        return {"case": self.case, "keep_accents": self.keep_accents, "form": self.form}

    def tokenize(
        self, texts: tf.Tensor | Sequence[str], max_length: int | None = None
    ) -> tf.RaggedTensor:
        """Returns the ids of sentences, each between `[START]` and `[END]`.

        Args:
            texts: UTF-8 strings `(B,)`; malformed bytes count as U+FFFD.
            max_length: Maximum number of ids of a sentence, including `[START]` and `[END]`; a
                longer sentence loses its last pieces. Default: any length.

        Returns:
            int32 `(B, None)`; `.to_tensor()` pads with 0, which is `[PAD]`. An empty sentence is
            `[START] [END]`; a word with a character that no piece has, or of more than 100
            bytes, is `[UNK]`.

        Raises:
            ValueError: If `max_length` leaves no room for a piece.
        """
        if max_length is not None and max_length < 3:
            raise ValueError(
                "Expected max_length >= 3: [START], a piece and [END]. "
                f"Received: max_length={max_length}"
            )
        pieces = self.word_pieces(texts)[1].merge_dims(-2, -1)
        if max_length is not None:
            pieces = pieces[:, : max_length - 2]
        mark = tf.ones_like(pieces[:, :1].row_lengths()[:, None], tf.int32)
        return tf.concat([START * mark, pieces, END * mark], axis=1)

    def word_pieces(
        self, texts: tf.Tensor | Sequence[str]
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the words of sentences, strings `(B, None)`, as `words` does, and the ids of the
        pieces of each, int32 `(B, None, None)`."""
        words = self.words(texts)
        return words, self._word_pieces.tokenize(words)

    def detokenize(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Returns the sentences of ids: what follows the first `[END]`, `[START]` and `[PAD]`
        are left out; `[UNK]` is shown.

        Args:
            ids: Integers `(..., L)`, or ragged `(B, None)`.

        Returns:
            UTF-8 strings `(...,)`.
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD)
        ids = tf.cast(ids, tf.int32)
        ended = tf.cumsum(tf.cast(ids == END, tf.int32), axis=-1) > 0
        pieces = tf.gather(tf.constant(self.vocabulary), ids)
        # A piece with the space before it; omitted ids have no space either.
        pieces = tf.where(ended | (ids == PAD) | (ids == START), "", " " + pieces)
        text = tf.strings.reduce_join(pieces, axis=-1)
        text = tf.strings.regex_replace(text, " " + SUFFIX, "")
        text = tf.strings.regex_replace(text, f" ?{JOINER} ?", "")
        return tf.strings.strip(text)

    def normalize(self, texts: tf.Tensor | Sequence[str]) -> tf.Tensor:
        """Returns strings in the tokenizer's case and Unicode form, with single spaces."""
        replace = tf.strings.regex_replace
        text = tf.strings.unicode_transcode(_strings(texts), "UTF-8", "UTF-8")
        text = tf_text.normalize_utf8(replace(text, JOINER, "\u25a0"), self.form)
        if self.case == "turkish":
            text = replace(replace(text, "I", "ı"), "İ", "i")
        if self.case != "keep":
            text = tf.strings.lower(text, encoding="utf-8")
        if not self.keep_accents:
            text = replace(tf_text.normalize_utf8(text, "NFD"), r"\p{Mn}", "")
        text = tf_text.normalize_utf8(text, self.form)
        return tf.strings.strip(replace(text, _BLANK, " "))

    def words(self, texts: tf.Tensor | Sequence[str]) -> tf.RaggedTensor:
        """Returns the words, with joiners, that are cut into pieces, as strings `(B, None)`."""
        text = self.normalize(texts)
        for pattern, rewrite in (
            (f"({_ALONE})", rf"{JOINER}\1{JOINER}"),  # joiners on both sides, ...
            (f"(^| ){JOINER}", r"\1"),  # ... but none beside a space or an end,
            (f"{JOINER}( |$)", r"\1"),
            (JOINER + JOINER, f" {JOINER}"),  # and one joiner does between two of them
            (f"{JOINER}({_ALONE})", rf" {JOINER}\1"),
            (f"({_ALONE}){JOINER}", rf"\1{JOINER} "),
        ):
            text = tf.strings.regex_replace(text, pattern, rewrite)
        return tf.strings.split(text)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to `NAME.txt`, one piece per line, and the options to `NAME.json`.

        Args:
            path: The path of `NAME.txt`.

        Raises:
            ValueError: If the path does not end in `.txt`.
        """
        path = Path(path)
        if path.suffix != ".txt":
            raise ValueError(
                "Expected a path that ends in .txt, because the options are written beside it with "
                f"the ending .json. Received: path={str(path)!r}"
            )
        path.write_text("".join(f"{p}\n" for p in self.vocabulary), encoding="utf-8", newline="\n")
        path.with_suffix(".json").write_text(json.dumps(self.options), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "WordPieceTokenizer":
        """Reads what `save` wrote.

        Raises:
            ValueError: If the file is that of another kind of tokenizer.
        """
        vocabulary, options = read_pieces(path)
        if "tokenizer" in options:
            raise ValueError(other_kind(path))
        return cls(vocabulary, **options)


def other_kind(path: str | os.PathLike) -> str:
    """Returns the message of an error: the file of another kind of tokenizer."""
    return (
        "Expected the file of this kind of tokenizer. Received: the other kind, "
        f"path={str(path)!r}. Read it with keras_tnattn.text.bert_pieces.load_tokenizer"
    )


def learn_word_pieces(
    texts: Sequence[str], vocabulary_size: int = 8000, **options: Any
) -> WordPieceTokenizer:
    """Learns the vocabulary of word pieces with the learner of `bert_vocab_from_dataset`.

    Args:
        texts: The training sentences of one language, without those of the test part.
        vocabulary_size: Maximum number of pieces, including reserved pieces and single characters.
            Default 8,000.
        **options: The options of `WordPieceTokenizer`.

    Returns:
        The tokenizer.

    Raises:
        ValueError: If `vocabulary_size` is too small for the characters, an option has an unknown
            value, or the texts have no words.

    Example:
        >>> tokenizer = learn_word_pieces(["a fish", "a red fish"] * 10, 40)
        >>> tokenizer.vocabulary[:4]
        ['[PAD]', '[UNK]', '[START]', '[END]']
    """
    return learn_from_counts(count_words(texts, **options), vocabulary_size, **options)


def count_words(texts: Sequence[str], **options: Any) -> collections.Counter[str]:
    """Counts the words of sentences, with their joiners; `learn_from_counts` takes the sum.

    Args:
        texts: Sentences of one language.
        **options: The options of `WordPieceTokenizer`.

    Raises:
        ValueError: If an option has an unknown value.
    """
    words = WordPieceTokenizer(RESERVED_PIECES, **options).words
    counts: collections.Counter[bytes] = collections.Counter()
    for start in range(0, len(texts), 4096):
        counts.update(words(list(texts[start : start + 4096])).flat_values.numpy().tolist())
    return collections.Counter({word.decode(): count for word, count in counts.items()})


def learn_from_counts(
    counts: Mapping[str, int], vocabulary_size: int = 8000, **options: Any
) -> WordPieceTokenizer:
    """Learns the vocabulary of word pieces from the counts of words.

    Args:
        counts: The number of occurrences of each word, as `count_words` returns it.
        vocabulary_size: As in `learn_word_pieces`.
        **options: The options with which the words were counted.

    Returns:
        The tokenizer.

    Raises:
        ValueError: If `vocabulary_size` is too small for the characters, an option has an unknown
            value, or there are no words.

    Example:
        >>> counts = count_words(["a fish", "a red fish"] * 10)
        >>> learn_from_counts(counts, 40).vocabulary[:4]
        ['[PAD]', '[UNK]', '[START]', '[END]']
    """
    if not counts:
        raise ValueError("Expected texts with at least one word. Received: texts without any")
    vocabulary = learner.learn(
        # In a fixed order, because the learner keeps the order of words with equal counts.
        sorted(counts.items()),
        vocabulary_size,
        list(RESERVED_PIECES),
        lower_thresh=2,  # words that occur once are spelled
    )
    return WordPieceTokenizer(most_frequent(vocabulary, vocabulary_size), **options)


def most_frequent(vocabulary: Sequence[str], size: int) -> list[str]:
    """Returns at most `size` pieces of a learned vocabulary, which may have more than requested.

    The pieces are sorted by decreasing frequency. The rarest are dropped, except for the
    characters, which spell the words without a piece.

    Raises:
        ValueError: If `size` is too small for the characters.
    """
    spelling = {
        piece
        for piece in vocabulary
        if piece in RESERVED_PIECES or len(piece.removeprefix(SUFFIX)) == 1
    }
    if len(spelling) > size:
        raise ValueError(
            f"Expected vocabulary_size >= {len(spelling)}, which the characters of these texts "
            f"need. Received: vocabulary_size={size}"
        )
    longer = [piece for piece in vocabulary if piece not in spelling]
    pieces = spelling.union(longer[: size - len(spelling)])
    return [piece for piece in vocabulary if piece in pieces]


def _strings(texts: tf.Tensor | Sequence[str]) -> tf.Tensor:
    return tf.convert_to_tensor(texts, tf.string)
