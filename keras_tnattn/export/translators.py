"""The signatures of trained translators."""

from typing import Any

import keras

from keras_tnattn.export.cards import MAX_IDS
from keras_tnattn.export.explaining import translator_explanation
from keras_tnattn.export.signatures import Signatures, check_backend
from keras_tnattn.text.reserved import PAD

_MAX_SENTENCE = 2000  # bytes
_N_BEST = 4


def translator_signatures(
    model: keras.Model,
    source_tokenizer: Any,
    target_tokenizer: Any,
    beam_size: int = 1,
    extra_tokens: int = 50,
    length_penalty: float = 0.6,
) -> Signatures:
    """Returns the signatures of a translator, for `export_signatures`.

    For `B` sentences and the `K` best hypotheses, best first; lower scores are better:

    - `serving_default`: `text`, strings `(B,)`, to `translation`, strings `(B,)`, and `score`,
      float32 `(B,)`. Tokenization and search are part of the graph.
    - `ids`: `ids`, int32 `(B, S)`, with start and end, padded with 0, to `ids`, int32 `(B, K, L)`,
      and `scores`, float32 `(B, K)`, as `BeamSearch` returns them.
    - `greedy` and `n_best`: `text` to `translations`, strings `(B, K)`, and `scores`, float32
      `(B, K)`, of greedy search and of a beam search with `beam_size`, or 4 if that is 1. The score
      of a missing hypothesis is the largest float32.
    - `explain`: `text` and `translation`, strings `(B,)`, to the pieces of both and the attention
      between them, as described in `keras_tnattn.export.explaining.translator_explanation`.

    Sentences are translated by `keras_tnattn.text.sentence_translator.SentenceTranslator`: the
    translation of a sentence without words, or of unknown pieces only, is empty. A sentence may
    have any length; its translation has at most the number of its pieces plus `extra_tokens`. The
    sentences of one call are searched together, so that all wait for the longest.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        source_tokenizer: The `keras_tnattn.text.word_pieces.WordPieceTokenizer` of the source
            language.
        target_tokenizer: The tokenizer of the target language.
        beam_size: Number `K` of hypotheses. Defaults to 1, greedy search.
        extra_tokens: How many more pieces than the sentence a translation may have. Defaults to 50.
        length_penalty: As in `BeamSearch`. Defaults to 0.6.

    Returns:
        The signatures, with the model and the entries of its card.

    Raises:
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If a vocabulary does not fit the model, or an argument of the search is invalid.

    Example:
        ```python notest
        translator = translator_signatures(model, source_tokenizer, target_tokenizer)
        export_signatures(translator.functions, translator.layers, "saved_models/pt_en")
        ```
    """
    check_backend()
    import tensorflow as tf

    from keras_tnattn.text.sentence_translator import SentenceTranslator

    def with_beam(size: int) -> SentenceTranslator:
        return SentenceTranslator(
            model, source_tokenizer, target_tokenizer, size, extra_tokens, length_penalty
        )

    sentences = with_beam(beam_size)
    sizes = (model.source_vocabulary_size, model.target_vocabulary_size)
    if beam_size > 1:
        greedy, several = with_beam(1), sentences
    else:
        greedy, several = sentences, with_beam(min(_N_BEST, sizes[1]))
    text = tf.TensorSpec([None], tf.string, "text")
    card = {
        "task": "translate",
        "sizes": {
            "parameters": model.count_params(),
            "source_vocabulary": sizes[0],
            "target_vocabulary": sizes[1],
        },
        "beam_size": beam_size,
        "inputs": {
            # A search takes as long as its longest sentence.
            "text": {"by_length": True, "max_ratio": 4, "max_length": _MAX_SENTENCE},
            "translation": {"max_length": _MAX_SENTENCE},
            "ids": {"padding": PAD, "max_ratio": 4, "max_length": MAX_IDS},
        },
    }
    functions: dict[str, tuple] = {
        "serving_default": (sentences.translate, text),
        "ids": (sentences.search_ids, tf.TensorSpec([None, None], tf.int32, "ids")),
        "greedy": (greedy.translate_n_best, text),
        "n_best": (several.translate_n_best, text),
        "explain": (
            translator_explanation(model, source_tokenizer, target_tokenizer),
            [text, tf.TensorSpec([None], tf.string, "translation")],
        ),
    }
    return Signatures(functions, [model], card)
