"""The text classifier of the tensorized attention papers."""

from typing import Any

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers import MaskedAveragePooling1D, TensorizeTokens
from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.layers.base_transformer import feedforward_map
from keras_tnattn.layers.residual_attention import ResidualAttention
from keras_tnattn.models.attentions import ATTENTIONS, attend, copies_of, find_attention
from keras_tnattn.models.embeddings import make_embedding, make_position_encoding
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Tensor


def text_classifier(
    vocabulary_size: int,
    num_classes: int,
    attention: str | keras.layers.Layer = "tsa",
    embedding_dim: int = 64,
    num_heads: int = 2,
    sequence_length: int | None = None,
    dropout: float = 0.1,
    feedforward_dim: int | None = 20,
    num_layers: int = 1,
    position_encoding: str | None = None,
    max_length: int | None = None,
    feedforward: str = "dense",
    feedforward_tt_ranks: int = 8,
    embedding: str = "dense",
    embedding_tt_ranks: int = 16,
    word_dropout: float = 0.0,
    normalization: bool = False,
    attention_dropout: float = 0.0,
    **attention_options: Any,
) -> keras.Model:
    """Builds the classifier of Xu et al., "A Tensorized Spectral Attention Mechanism", section 6.

    The layers are embedding, attention, average over the tokens, dropout, `Dense(20, relu)`,
    dropout and `Dense(num_classes, softmax)`. Id 0 is padding and masked. The model is not
    compiled.

    With `num_layers > 1` the attentions are stacked, each with a residual sum: `x <- x +
    attention(x)`. A filter `I + Psi` reaches the neighbors of a token; a stack of `K - 1` such
    filters reaches its `(K - 1)`-hop neighbors, as one filter of order `K` does (remark 5). In a
    stack, `"tsa"` and `"tga"` map their heads back to the size of the embedding
    (`head_combination="project"`). If an attention changes the size of its input or is an
    `Identity`, there is no residual sum.

    Args:
        vocabulary_size: Number of token ids, padding included.
        num_classes: Number of classes, at least 2.
        attention: A name in `keras_tnattn.models.attentions.ATTENTIONS`, such as `"tsa"` (default),
            `"dpa"` or `"rgtn"`; or a layer `(B, L, I) -> (B, L, ...)`. A layer that is called with
            query and value, such as `keras.layers.MultiHeadAttention`, gets the same tensor twice.
        embedding_dim: Size `I` of the embedding. Defaults to 64.
        num_heads: Number of heads of an attention given by name. Ignored for those without, such
            as `"rgtn"`. Defaults to 2.
        sequence_length: Length of the input. Default: any length.
        dropout: Rate of both dropouts. Defaults to 0.1.
        feedforward_dim: Units of the hidden dense layer; `None` for no such layer and dropout.
            Defaults to 20.
        num_layers: Number of attentions. Defaults to 1. If `attention` is a layer, each of them is
            a copy with its own weights.
        position_encoding: `"sinusoidal"` or `"learned"`. Default: none, as in the paper, whose time
            graph depends on the distances between tokens.
        max_length: Number of learned positions. Defaults to `sequence_length`.
        feedforward: `"dense"` (default), or `"tensor_train"` for a hidden layer with a tensor-train
            kernel.
        feedforward_tt_ranks: Int, its maximum TT-rank. Defaults to 8.
        embedding: `"dense"` (default), a full table; `"tensor_train"`, a `TTEmbedding`; or
            `"low_rank"`, a `LowRankEmbedding`.
        embedding_tt_ranks: Int, the maximum TT-rank or the rank of the embedding. Defaults to 16.
        word_dropout: Rate at which, in training, the embedding of a whole word becomes 0; the
            others are divided by `1 - word_dropout`. The mask stays: a dropped word still counts
            as a token. Defaults to 0: no such layer.
        normalization: Whether a `LayerNormalization` follows the average over the tokens.
            The average of a long text is small, because its words point in many directions; this
            gives all texts one scale. Defaults to `False`, as in the paper.
        attention_dropout: Dropout rate within an attention given by name, of its scores for
            instance. Defaults to 0.
        **attention_options: Further arguments of an attention given by name, for instance
            `damping=0.5`.

    Returns:
        A functional model from ids, int `(B, L)`, to probabilities `(B, num_classes)`. The
        embedding is named `"embedding"` and the attention `"attention"`. With several layers, the
        attentions are named `"attention_0"` and so on; those that take query and value are inside
        `"residual_0"` and so on.

    Raises:
        ValueError: For an unknown name, a size out of range, options if `attention` is a layer,
            `feedforward` without `feedforward_dim`, or `max_length` without learned positions.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.models import text_classifier
        >>> model = text_classifier(vocabulary_size=1000, num_classes=3, attention="tsa")
        >>> tuple(model(np.array([[5, 7, 2, 0, 0]])).shape)
        (1, 3)
    """
    check_int("vocabulary_size", vocabulary_size, at_least=2)
    check_int("num_classes", num_classes, at_least=2)
    check_int("num_layers", num_layers)
    check_int("embedding_tt_ranks", embedding_tt_ranks)
    check_int("feedforward_tt_ranks", feedforward_tt_ranks)
    if feedforward_dim is None and feedforward == "tensor_train":
        raise ValueError(
            "Expected feedforward_dim for a hidden layer with a tensor-train kernel. "
            f"Received: feedforward_dim=None, feedforward={feedforward!r}"
        )
    if max_length is not None and position_encoding != "learned":
        raise ValueError(
            "Expected max_length, the number of learned positions, only with "
            "position_encoding='learned'. "
            f"Received: max_length={max_length}, position_encoding={position_encoding!r}"
        )
    ids = keras.Input((sequence_length,), dtype="int32", name="ids")
    x = make_embedding(
        embedding, vocabulary_size, embedding_dim, embedding_tt_ranks, name="embedding"
    )(ids)
    if word_dropout:
        # One decision for all features of a token.
        x = keras.layers.Dropout(word_dropout, noise_shape=(None, None, 1), name="word_dropout")(x)
    if position_encoding is not None:
        length = sequence_length if max_length is None else max_length
        x = make_position_encoding(position_encoding, length, False, "positions")(x)
    if isinstance(attention, str):
        if find_attention(attention).tensor_tokens:
            x = TensorizeTokens(name="tokens")(x)
        sizes = (num_heads, embedding_dim, num_layers)
        attention = _named_attention(attention, sizes, attention_dropout, attention_options)
    elif attention_options or attention_dropout:
        raise ValueError(
            "Expected no further options if `attention` is a layer. "
            f"Received: attention_options={attention_options}, "
            f"attention_dropout={attention_dropout}"
        )
    x = MaskedAveragePooling1D(name="pooling")(_apply_attention(x, attention, num_layers))
    if len(x.shape) > 2:
        x = keras.layers.Flatten(name="flatten")(x)
    if normalization:
        x = keras.layers.LayerNormalization(name="normalization")(x)
    x = keras.layers.Dropout(dropout, name="pooling_dropout")(x)
    if feedforward_dim is not None:
        x = feedforward_map(
            feedforward_dim, "relu", feedforward, feedforward_tt_ranks, name="hidden"
        )(x)
        x = keras.layers.Dropout(dropout, name="hidden_dropout")(x)
    # The probabilities are in float32 under mixed precision, too.
    outputs = keras.layers.Dense(
        num_classes, "softmax", dtype=at_least_float32(keras.config.floatx()), name="probabilities"
    )(x)
    return keras.Model(ids, outputs, name="text_classifier")


def _named_attention(
    name: str, sizes: tuple[int, int, int], dropout: float, options: dict[str, Any]
) -> keras.layers.Layer:
    """Creates an attention for `(num_heads, embedding_dim, num_layers)`."""
    entry, (num_heads, dim, num_layers) = find_attention(name), sizes
    if num_layers > 1:
        options = {**entry.stacked_options, **options}
    if dropout and not entry.dropout_options:
        suitable = [name for name, other in ATTENTIONS.items() if other.dropout_options]
        raise ValueError(
            f"Expected attention_dropout only with one of {suitable}. Received: attention={name!r}"
        )
    if dropout:
        options = options | dict.fromkeys(entry.dropout_options, dropout)
    return entry.make(num_heads, dim, name="attention", **options)


def _apply_attention(x: Tensor, attention: keras.layers.Layer, num_layers: int) -> Tensor:
    """Applies an attention, or a stack of copies of it with residual sums."""
    if num_layers == 1:
        return attend(attention, x)
    copy = copies_of(attention, {})
    for i in range(num_layers):
        x = _residual(copy(f"attention_{i}"), x, f"residual_{i}")
    return x


def _residual(attention: keras.layers.Layer, inputs: Tensor, name: str) -> Tensor:
    """Adds an attention's output to its input if both have the same shape."""
    if adapter_of(attention).takes_memory:
        return ResidualAttention(attention, name=name)(inputs)
    outputs = attention(inputs)
    # Without an attention a sum would only double its input.
    if outputs.shape != inputs.shape or isinstance(attention, keras.layers.Identity):
        return outputs
    return keras.layers.Add(name=name)([inputs, outputs])
