"""The functions behind the signature `explain`: what the attentions computed for a text."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_tnattn.models import Translator
from keras_tnattn.text.reserved import END, PAD, RESERVED_PIECES, START, UNK
from keras_tnattn.typing import Tensor

Tensors = dict[str, Tensor]


def attention_scores(
    model: keras.Model, name: str = "attention"
) -> Callable[[Tensor], Tensor] | None:
    """Returns a function from ids `(B, L)` to the scores `(B, H, L, L)` of a layer of a classifier.

    Args:
        model: A model of `keras_tnattn.models.text_classifier`.
        name: The name of the layer. Default: the first attention.

    Returns:
        The function, on any backend, or `None` if the model has no such layer that returns scores.
    """
    attention = next((layer for layer in model.layers if layer.name == name), None)
    if attention is None or (
        "return_attention_scores" not in inspect.signature(attention.call).parameters
    ):
        return None
    before = keras.Model(model.input, keras.tree.flatten(attention.input)[0])
    itself = isinstance(attention, keras.layers.MultiHeadAttention)

    def scores(ids: Tensor) -> Tensor:
        x = before(ids, training=False)
        inputs = (x, x) if itself else (x,)
        return attention(*inputs, return_attention_scores=True, training=False)[1]

    return scores


def classifier_explanation(
    model: keras.Model,
    to_ids: Callable[[Tensor], Tensor],
    split_words: Callable[[Tensor], Any],
    classify: Callable[[Tensor], Tensors],
    ignores_padding: bool,
) -> Callable[[Tensor], Tensors] | None:
    """Returns a function from texts to what a classifier's attention computed for them.

    Its outputs are those of `classify` and the following, where `L` is the number of words in the
    longest of `B` texts and shorter texts are padded:

    - `words`, strings `(B, L)`;
    - `unknown`, bools `(B, L)`: which words are not in the vocabulary;
    - `graph`, floats `(B, L, L)`: the attention's scores, such as `Psi` of tensorized spectral
      attention, averaged over its heads, with a row for each word that attends;
    - `weights`, floats `(B, L)`: the sum of each word's column (the attention that it receives),
      divided by the largest.

    Args:
        model: A model of `keras_tnattn.models.text_classifier`.
        to_ids: Strings `(B,)` to ids `(B, N)`, 0 for padding and 1 for unknown words.
        split_words: Strings `(B,)` to the words `(B, None)` that the ids stand for.
        classify: Ids to the outputs of the other signatures.
        ignores_padding: Whether the model computes the same without the padding; otherwise it gets
            all of it, as in the other signatures.

    Returns:
        The function, or `None` if the model has no layer `attention` that returns scores.
    """
    import tensorflow as tf

    scores_of = attention_scores(model)
    if scores_of is None:
        return None

    def explain(text: Tensor) -> Tensors:
        ids = to_ids(text)
        words = split_words(text)
        longest = tf.cast(words.bounding_shape(1), tf.int32)
        length = tf.clip_by_value(longest, 1, tf.shape(ids)[1])
        sequence = ids[:, :length] if ignores_padding else ids
        ids = ids[:, :length]
        words = words.to_tensor("", shape=tf.shape(ids, tf.int64))
        scores = scores_of(sequence)
        real = tf.cast(ids != PAD, tf.float32)
        graph = tf.reduce_mean(tf.cast(scores, tf.float32), axis=1)[:, :length, :length]
        graph = graph * real[:, :, None] * real[:, None, :]
        totals = tf.reduce_sum(graph, axis=1)
        largest = tf.reduce_max(totals, axis=1, keepdims=True)
        return {
            **classify(sequence),
            "words": words,
            "unknown": ids == UNK,
            "graph": graph,
            "weights": tf.math.divide_no_nan(totals, largest),
        }

    return explain


def translator_explanation(
    model: Translator, source_tokenizer: Any, target_tokenizer: Any
) -> Callable[[Tensor, Tensor], Tensors]:
    """Returns a function from sentences and their translations to the attention between them.

    The decoder reads the given translation. With `S` and `T` pieces in the longest of `B` sentences
    and translations, and padding in shorter ones, the outputs are:

    - `source`, strings `(B, S)`, and `target`, strings `(B, T)`: the pieces, and unknown words as
      they are;
    - `unknown`, bools `(B, S)`: which source pieces are unknown words;
    - `attention`, floats `(B, T, S)`: the scores of the last decoder's attention to the source,
      averaged over its heads, in the row of the piece that is predicted.

    Args:
        model: The translator.
        source_tokenizer: The `WordPieceTokenizer` of the source language.
        target_tokenizer: The `WordPieceTokenizer` of the target language.
    """
    import tensorflow as tf

    def explain(text: Tensor, translation: Tensor) -> Tensors:
        source, names, unknown = _pieces(source_tokenizer, text)
        target, target_names, _ = _pieces(target_tokenizer, translation)
        mask = source != PAD
        memory = model.encode(source, training=False)
        _, details = model.decode(target[:, :-1], memory, mask, False, return_details=True)
        last = details[f"decoder_{len(model.decoders) - 1}.cross"]
        scores = last["E_LM"] if "E_LM" in last else last["scores"]
        attention = tf.reduce_mean(tf.cast(scores, tf.float32), axis=1)
        real = tf.cast(target[:, 1:] != PAD, tf.float32)
        return {
            "source": names,
            "target": target_names[:, 1:],
            "unknown": unknown,
            "attention": attention * real[:, :, None] * tf.cast(mask, tf.float32)[:, None, :],
        }

    return explain


def _pieces(tokenizer: Any, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns padded ids `(B, L)` with start and end, their names, and which are unknown words."""
    import tensorflow as tf

    words, ids = tokenizer.word_pieces(text)
    flat = ids.flat_values
    repeated = tf.repeat(words.flat_values, ids.values.row_lengths())
    names = tf.where(flat == UNK, repeated, tf.gather(tf.constant(tokenizer.vocabulary), flat))
    start = tf.zeros_like(ids[:, :1].row_lengths())[:, None]

    def add_marks(values: Tensor, first: object, last: object, pad: object) -> Tensor:
        ragged = ids.with_flat_values(values).merge_dims(1, 2)
        rows = tf.shape(start)
        parts = [tf.fill(rows, first), ragged, tf.fill(rows, last)]
        return tf.concat(parts, axis=1).to_tensor(pad)

    padded = add_marks(flat, tf.constant(START), tf.constant(END), tf.constant(PAD))
    named = add_marks(names, RESERVED_PIECES[START], RESERVED_PIECES[END], "")
    return padded, named, padded == UNK
