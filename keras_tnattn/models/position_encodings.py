"""The position encodings that models accept by name."""

import keras

from keras_tnattn.layers import LearnedPositionEncoding, SinusoidalPositionEncoding

POSITION_ENCODINGS = ("sinusoidal", "learned")


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

    Example:
        >>> from keras_tnattn.models.position_encodings import make_position_encoding
        >>> make_position_encoding("learned", 100, scale=False, name="positions").max_length
        100
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
