"""The embeddings and position encodings that models accept by name."""

import keras

from keras_tnattn.layers import LearnedPositionEncoding, SinusoidalPositionEncoding, TokenEmbedding
from keras_tnattn.layers.low_rank_embedding import LowRankEmbedding
from keras_tnattn.layers.tt_embedding import TTEmbedding

EMBEDDINGS = ("dense", "low_rank", "tensor_train")
POSITION_ENCODINGS = ("sinusoidal", "learned")


def make_embedding(
    kind: str, vocabulary_size: int, embedding_dim: int, ranks: int, name: str
) -> keras.layers.Layer:
    """Creates an embedding whose id 0 is padding.

    Args:
        kind: `"dense"`, a full table; `"low_rank"`, the product of two thin ones; or
            `"tensor_train"`.
        vocabulary_size: Number of ids.
        embedding_dim: Size of a row.
        ranks: The rank, or the maximum TT-rank of a tensor train; ignored for `"dense"`.
        name: Name of the layer.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind == "dense":
        return TokenEmbedding(vocabulary_size, embedding_dim, mask_zero=True, name=name)
    if kind == "low_rank":
        return LowRankEmbedding(vocabulary_size, embedding_dim, ranks, mask_zero=True, name=name)
    if kind == "tensor_train":
        return TTEmbedding(
            vocabulary_size, embedding_dim, tt_ranks=ranks, mask_zero=True, name=name
        )
    raise ValueError(f"Expected one of {EMBEDDINGS}. Received: embedding={kind!r}")


def make_position_encoding(
    position_encoding: str, max_length: int | None, scale: bool, name: str
) -> keras.layers.Layer:
    """Creates a layer that adds position encodings to embeddings.

    Args:
        position_encoding: `"sinusoidal"` or `"learned"`.
        max_length: Number of learned positions; `"sinusoidal"` needs none.
        scale: Whether to multiply the embeddings by the square root of their size first.
        name: Name of the layer.

    Raises:
        ValueError: For another name, or learned positions without `max_length`.
    """
    if position_encoding == "sinusoidal":
        return SinusoidalPositionEncoding(scale=scale, name=name)
    if position_encoding == "learned":
        if max_length is None:
            raise ValueError(
                "Expected max_length, the number of learned positions. "
                "Received: position_encoding='learned', max_length=None"
            )
        return LearnedPositionEncoding(max_length, scale=scale, name=name)
    raise ValueError(
        f"Expected one of {POSITION_ENCODINGS}. Received: position_encoding={position_encoding!r}"
    )
