"""Words to ids, as in the experiments of the tensorized spectral attention paper."""

from collections.abc import Sequence

import keras
import tensorflow as tf

# What separates words beside white space. The apostrophe belongs to its word.
_SEPARATORS = r"""[!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""


@keras.saving.register_keras_serializable(package="keras_tnattn")
def lower_and_separate(text: tf.Tensor) -> tf.Tensor:
    """Lower-cases UTF-8 strings of any alphabet and turns punctuation into spaces.

    Example:
        >>> lower_and_separate(["Hello, world!"]).numpy()[0].decode().split()
        ['hello', ...]
    """
    return tf.strings.regex_replace(tf.strings.lower(text, encoding="utf-8"), _SEPARATORS, " ")


def word_vectorizer(
    texts: Sequence[str], vocabulary_size: int = 20_000, max_words: int = 200
) -> keras.layers.TextVectorization:
    """Learns a vocabulary of the most frequent words.

    Id 0 is padding, id 1 stands for every other word, the words follow by falling frequency.

    Args:
        texts: The training texts; no others, or the test part leaks into the vocabulary.
        vocabulary_size: How many ids there are at most, the two special ones included.
            Default 20,000.
        max_words: How many words of a text are kept; shorter texts are padded. Default 200.

    Returns:
        A layer from strings `(batch,)` to int64 ids `(batch, max_words)`. It runs on TensorFlow
        whatever the backend of Keras, and may be part of an exported model.

    Raises:
        ValueError: If `vocabulary_size` leaves no room for a word, `max_words` is not positive,
            or the texts hold no word at all.

    Example:
        >>> vectorizer = word_vectorizer(["a red fish", "a blue fish"], 10, 5)
        >>> tuple(vectorizer(["a green fish"]).shape)
        (1, 5)
    """
    if vocabulary_size < 3:
        raise ValueError(
            "Expected vocabulary_size >= 3: padding, the unknown word and at least one word. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    if max_words < 1:
        raise ValueError(f"Expected max_words >= 1. Received: max_words={max_words}")
    vectorizer = keras.layers.TextVectorization(
        max_tokens=vocabulary_size,
        standardize=lower_and_separate,
        output_sequence_length=max_words,
        name="words",
    )
    if len(texts):
        vectorizer.adapt(tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024))
    if not len(texts) or not vectorizer.get_vocabulary(include_special_tokens=False):
        raise ValueError(
            f"Expected texts with at least one word. Received: {len(texts)} texts without any"
        )
    return vectorizer
