"""Translates sentences with two tokenizers and a beam search."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_tnattn.checks import check_int
from keras_tnattn.search.beam_search import BeamSearch
from keras_tnattn.search.model_steps import TranslatorSteps, decoding_steps
from keras_tnattn.search.steps import Steps
from keras_tnattn.text.reserved import END, PAD, START, UNK


class Translation(NamedTuple):
    """A translation of a sentence.

    Attributes:
        text: The translation.
        score: Its length-normalized negative log-probability; lower is better.
        finished: Whether it ended before the limit of the search.

    Example:
        >>> Translation("one cat", score=0.5, finished=True).text
        'one cat'
    """

    text: str
    score: float
    finished: bool


class SentenceTranslator:
    """Translates sentences: cuts them into pieces, searches, and joins the pieces found.

    A sentence without words, or of unknown pieces only, is treated as empty, because the model
    would invent a translation: the translation is empty, with the score of an empty sentence. The
    commands, the export and the server all translate with this class.

    Args:
        model: A model of `keras_tnattn.models.translator`, or the `keras_tnattn.search.Steps` of
            another one.
        source_tokenizer: The `WordPieceTokenizer` of the source language.
        target_tokenizer: The `WordPieceTokenizer` of the target language.
        beam_size: Number `K` of hypotheses kept. Defaults to 1, greedy search.
        extra_tokens: Number of target tokens allowed beyond the number of source tokens. Defaults
            to 50.
        length_penalty: Exponent of the length normalization. Defaults to 0.6.

    Raises:
        ValueError: If a vocabulary is not the model's, or `BeamSearch` refuses its arguments.

    Example:
        ```python
        import keras_tnattn
        from keras_tnattn.text.sentence_translator import SentenceTranslator
        from keras_tnattn.text.word_pieces import learn_word_pieces

        source = learn_word_pieces(["um gato", "dois gatos"], vocabulary_size=40)
        target = learn_word_pieces(["one cat", "two cats"], vocabulary_size=40)
        model = keras_tnattn.models.translator(
            source.vocabulary_size, target.vocabulary_size, "sdpa", model_dim=8, num_heads=2
        )
        translate = SentenceTranslator(model, source, target, beam_size=2, extra_tokens=5)
        translate(["um gato", "dois gatos"])  # a list of two strings; untrained, of no meaning
        ```
    """

    def __init__(
        self,
        model: keras.Model | Steps,
        source_tokenizer: Any,
        target_tokenizer: Any,
        beam_size: int = 1,
        extra_tokens: int = 50,
        length_penalty: float = 0.6,
    ) -> None:
        if isinstance(model, keras.Model):
            model = TranslatorSteps(model, START)
        steps = decoding_steps(model)
        sizes = (steps.input_vocabulary_size, steps.vocabulary_size)
        received = (source_tokenizer.vocabulary_size, target_tokenizer.vocabulary_size)
        if sizes != received:
            raise ValueError(
                f"Expected tokenizers of {sizes} pieces, the model's vocabularies. "
                f"Received: tokenizers of {received}"
            )
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = BeamSearch(steps, beam_size, START, END, extra_tokens, length_penalty)
        # Traced once for all signatures of an exported model.
        self._search_graph = tf.function(
            self.search.search, input_signature=[tf.TensorSpec([None, None], tf.int32)]
        )

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Returns the best translation of each sentence."""
        return [translations[0].text for translations in self.n_best(sentences)]

    def n_best(
        self,
        sentences: Sequence[str],
        batch_size: int = 32,
        max_length: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """Returns up to `K` translations of each sentence, best first.

        Sentences of similar length are searched together, the longest first, so that a batch that
        does not fit into memory fails at once.

        Args:
            sentences: `B` sentences.
            batch_size: Sentences searched together. Defaults to 32.
            max_length: Maximum number of pieces of a sentence, start and end included; longer
                sentences are cut. Default: any length.
            progress: Called with the number of sentences done after each batch.

        Raises:
            TypeError: If `sentences` is a single string.
            ValueError: If `batch_size` is not positive.
        """
        check_int("batch_size", batch_size)
        if isinstance(sentences, str | bytes):
            raise TypeError(
                f"Expected a list of sentences. Received: {sentences!r}. Pass [sentence]"
            )
        if not len(sentences):
            return []
        ids = self.source_ids(list(sentences), max_length)
        lengths = ids.row_lengths().numpy()
        order = np.argsort(-lengths, kind="stable")
        results: list[list[Translation]] = [[] for _ in order]
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tf.gather(ids, rows).to_tensor(PAD).numpy()
            hypotheses = self.search(batch, batch_size)
            texts = self.target_tokenizer.detokenize(hypotheses.ids).numpy()
            for i, row in enumerate(rows):
                count = int(np.isfinite(hypotheses.scores[i]).sum())
                if lengths[row] == 2:  # start and end only
                    texts[i, 0], count = b"", 1
                results[row] = [
                    Translation(
                        texts[i, k].decode(),
                        float(hypotheses.scores[i, k]),
                        bool(hypotheses.finished[i, k]),
                    )
                    for k in range(count)
                ]
            if progress is not None:
                progress(start + len(rows))
        return results

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates in one graph, for exported models.

        Args:
            text: Sentences, strings `(B,)`.

        Returns:
            A dict of `translation`, strings `(B,)`, and `score`, float32 `(B,)`.
        """
        best = self.translate_n_best(text)
        return {"translation": best["translations"][:, 0], "score": best["scores"][:, 0]}

    def translate_n_best(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates in one graph, for exported models.

        Args:
            text: Sentences, strings `(B,)`.

        Returns:
            A dict of `translations`, strings `(B, K)`, and `scores`, float32 `(B, K)`, best first;
            where there are fewer than `K`, the score is the largest float32.
        """
        ids = self.source_ids(text)
        hypotheses = self.search_ids(ids.to_tensor(PAD))
        translations = self.target_tokenizer.detokenize(hypotheses["ids"])
        return {
            "translations": tf.where(ids.row_lengths()[:, None] > 2, translations, ""),
            # JSON has no infinity.
            "scores": tf.minimum(hypotheses["scores"], tf.float32.max),
        }

    def search_ids(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Searches in one graph: ids `(B, S)` to a dict of `ids` `(B, K, L)`, `scores` `(B, K)`."""
        hypotheses, scores, _ = self._search_graph(ids)
        return {"ids": hypotheses, "scores": scores}

    def source_ids(
        self, sentences: tf.Tensor | Sequence[str], max_length: int | None = None
    ) -> tf.RaggedTensor:
        """Returns the ids that are searched, int32 `(B, None)`.

        A sentence of unknown pieces only gets the ids of an empty one, start and end.
        """
        ids = self.source_tokenizer.tokenize(sentences, max_length)
        known = tf.reduce_any(ids > END, axis=1)  # a piece that is not reserved
        return tf.ragged.boolean_mask(ids, (ids != UNK) | known[:, None])
