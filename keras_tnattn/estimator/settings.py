"""What decides how a text classifier reads texts, is built and is trained."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.models.attentions import find_attention
from keras_tnattn.ops.time_graph import Geometric

# The most words of a text that are read by default, and with all pairs of them compared.
MOST_WORDS = 4096
PAIRWISE_WORDS = 1024


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings; their defaults are the recipe of the command `classify`, without an attention.

    Attributes:
        seed: Of the validation part, the initial weights and the order of the batches.
        split: What has an id, `"words"` or `"characters"`.
        max_words: How many words of a text are read. Default: enough for nearly all texts.
        vocabulary_size: Maximum number of ids.
        attention: A name in `keras_tnattn.models.attentions.ATTENTIONS`, or a layer.
        attention_options: Arguments of an attention given by name.
        num_layers, num_heads, embedding_dim, embedding, embedding_tt_ranks, position_encoding,
        feedforward_dim, feedforward, normalization, word_dropout, dropout: As for
            `keras_tnattn.models.text_classifier`.
        initial_weights: `"svm"`, to start from a linear support vector machine, or `"random"`.
        epochs: Passes over the training part.
        batch_size: Rows of a step.
        learning_rate: The initial one of Adam.
        decay: Whether it decays to 0 at the end.
        validation_fraction: Share of the rows that is not trained on, but measured.
        class_weight: `"balanced"`, or `None` for equal weights of all rows.
        jit_compile: `"on"`, `"off"` or `"auto"`: compile with XLA.
    """

    seed: int = 0
    split: str = "words"
    max_words: int | None = None
    vocabulary_size: int = 20_000
    attention: str | keras.layers.Layer = "none"
    attention_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_layers: int = 1
    num_heads: int = 2
    embedding_dim: int = 64
    embedding: str = "dense"
    embedding_tt_ranks: int = 16
    position_encoding: str | None = None
    feedforward_dim: int | None = None
    feedforward: str = "dense"
    normalization: bool = True
    word_dropout: float = 0.6
    dropout: float = 0.5
    initial_weights: str = "svm"
    epochs: int = 8
    batch_size: int = 64
    learning_rate: float = 2e-3
    decay: bool = True
    validation_fraction: float = 0.1
    class_weight: str | None = None
    jit_compile: str = "auto"

    @property
    def compares_pairs(self) -> bool:
        """Whether the attention compares all pairs of the words of the longest texts."""
        if not isinstance(self.attention, str):
            return adapter_of(self.attention).compares_pairs(MOST_WORDS, self.embedding_dim)
        graph = self.attention_options.get("time_graph")
        return find_attention(self.attention).compares_pairs(
            MOST_WORDS, self.embedding_dim, None if graph is None else graph.bandwidth
        )

    @property
    def may_keep_svm(self) -> bool:
        """Whether the model can be the linear SVM itself, and a validation part compares the two.

        An SVM's scores need the layer normalization; an attention or positions would add to its
        features.
        """
        is_linear = self.attention == "none" and self.position_encoding is None
        from_svm = self.normalization and self.initial_weights == "svm"
        return is_linear and from_svm and self.validation_fraction > 0


def default_options(attention: str) -> dict[str, Any]:
    """Returns the arguments that the command `classify` gives an attention by default.

    Those that it leaves to the layer are missing.
    """
    arguments = find_attention(attention).arguments
    options = {"time_graph": Geometric(0.9), "residual_units": 2, "residual_dim": 64}
    return {name: value for name, value in options.items() if name in arguments}
