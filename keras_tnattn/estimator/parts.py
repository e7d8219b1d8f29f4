"""The rows of labeled texts as ids: those that are trained on, and those that are held out."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from keras_tnattn.estimator.batches import MAX_TOKENS, GroupedTextBatches
from keras_tnattn.estimator.settings import MOST_WORDS, PAIRWISE_WORDS, Settings
from keras_tnattn.text.words import WordVectorizer, learn_words
from keras_tnattn_runtime.splitting import split_rows
from keras_tnattn_runtime.stored import stored_array

# By default a text is read to the length that this share of the training texts does not exceed, at
# least to this number of words; to fewer if the ids of all texts would take more than 4 GiB.
WHOLE_TEXTS, FEWEST_WORDS = 0.99, 200
LARGEST_IDS = 2**30
CHUNK = 4096  # texts that are in memory at once


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of one part: their numbers `(R,)`, ids `(R, L)`, on disk, and labels `(R,)`."""

    rows: np.ndarray
    ids: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(
        cls, vectorizer: WordVectorizer, texts: Sequence[str], labels: np.ndarray, rows: np.ndarray
    ) -> "Part":
        """Returns the part of some rows of texts."""
        return cls(rows, ids_of(vectorizer, texts, rows), labels[rows])

    def batches(self) -> GroupedTextBatches:
        """Returns the batches with which it is measured."""
        return GroupedTextBatches(self.ids, self.labels, 256, MAX_TOKENS)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids and the labels."""
        return self.ids, self.labels


def prepare(
    settings: Settings,
    texts: Sequence[str],
    labels: np.ndarray,
    rows: np.ndarray,
    tell: Callable[[str], None],
) -> tuple[WordVectorizer, dict[str, Part]]:
    """Returns a vectorizer that is learned from some rows, and their parts as ids by name.

    These are `train` and, if there is one, `validation`. An SVM that may be kept is fitted to the
    validation part, too, in the end, so the vectorizer then knows its words.

    Args:
        settings: The settings.
        texts: All texts.
        labels: Their classes, integers.
        rows: The numbers of the rows that may be trained on.
        tell: Is called with a sentence about what is read.
    """
    chosen = {"train": rows}
    if settings.validation_fraction:
        share = settings.validation_fraction
        training, validation = split_rows(labels[rows], share, settings.seed)
        chosen = {"train": rows[training], "validation": rows[validation]}

    def max_words(lengths: np.ndarray) -> int:
        words = words_to_read(settings, lengths)
        tell(what_is_read(settings, lengths, words))
        return words

    vectorizer = learn_words(
        (texts[row] for row in (rows if settings.may_keep_svm else chosen["train"])),
        settings.vocabulary_size,
        max_words,
        settings.split,
    )
    parts = {name: Part.of(vectorizer, texts, labels, part) for name, part in chosen.items()}
    return vectorizer, parts


def words_to_read(settings: Settings, lengths: np.ndarray) -> int:
    """Chooses how many words of a text are read, by the lengths of the training texts."""
    if settings.max_words is not None:
        return settings.max_words
    most = PAIRWISE_WORDS if settings.compares_pairs else MOST_WORDS
    most = min(most, max(FEWEST_WORDS, LARGEST_IDS // len(lengths)))
    enough = int(np.quantile(lengths, WHOLE_TEXTS, method="higher"))
    # Texts that come later may be longer than those of the training part.
    return min(max(enough, FEWEST_WORDS), most)


def what_is_read(settings: Settings, lengths: np.ndarray, words: int) -> str:
    """Returns a sentence that says what share of the words is cut off."""
    left_out = np.maximum(lengths - words, 0)
    share = left_out.sum() / max(lengths.sum(), 1)
    if not left_out.any():
        return f"  texts are read whole, up to {words:,} {settings.split}"
    return (
        f"  the first {words:,} {settings.split} of a text are read; {np.mean(left_out > 0):.1%} "
        f"of the training texts are longer, and {share:.1%} of their {settings.split} are cut off"
    )


def ids_of(vectorizer: WordVectorizer, texts: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Returns int32 ids `(R, L)` of the texts of some rows, in a temporary file."""
    return stored_array(
        (
            vectorizer([texts[row] for row in rows[start : start + CHUNK]])
            for start in range(0, len(rows), CHUNK)
        ),
        (len(rows), vectorizer.max_words),
    )
