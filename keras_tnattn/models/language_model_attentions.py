"""Which attention a language model has, and how its tokens get their positions."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tnattn.layers import MetricAttention, PLDRAttention
from keras_tnattn.models.attentions import ATTENTIONS, check_heads, copies_of, find_attention

LANGUAGE_POSITIONS = ("rotary", "sinusoidal", "none")
# The layers that rotate queries and keys: of language models, in place of the registered ones.
_ROTARY_LAYERS = {"plga": PLDRAttention, "sdpa": MetricAttention}
# The published metric, also in a causal model, unless the options choose the other one.
_ROTARY_OPTIONS: dict[str, dict[str, Any]] = {"plga": {"causal_metric": False}, "sdpa": {}}


def attention_maker(
    attention: str | keras.layers.Layer,
    options: dict[str, Any],
    position_encoding: str | None,
    num_heads: int,
    model_dim: int,
    attention_dropout: float,
) -> tuple[Callable[[str], keras.layers.Layer], str]:
    """Returns a function from a layer's name to a new attention, and the position encoding.

    Args:
        attention: An attention, by name or as a layer.
        options: Its options.
        position_encoding: One of `LANGUAGE_POSITIONS`, or `None` for the attention's own.
        num_heads: Number of heads.
        model_dim: Size of the tokens.
        attention_dropout: Dropout rate of the attention.

    Raises:
        ValueError: If a name is unknown, the attention cannot be causal or cannot rotate, or
            options apply to nothing.
    """
    if position_encoding is not None and position_encoding not in LANGUAGE_POSITIONS:
        raise ValueError(
            f"Expected one of {LANGUAGE_POSITIONS}. "
            f"Received: position_encoding={position_encoding!r}"
        )
    if isinstance(attention, keras.layers.Layer):
        return _copies(attention, options, position_encoding)
    entry = find_attention(attention)
    if not entry.can_be_causal:
        names = [name for name, other in ATTENTIONS.items() if other.can_be_causal]
        raise ValueError(
            f"Expected a layer or one of {names}, the attentions that can be causal. "
            f"Received: attention={attention!r}"
        )
    can_rotate = attention in _ROTARY_LAYERS
    position_encoding = position_encoding or ("rotary" if can_rotate else "sinusoidal")
    if position_encoding == "rotary" and not can_rotate:
        raise ValueError(
            f"Expected one of {tuple(_ROTARY_LAYERS)}, whose queries and keys are rotated, for "
            f"rotary positions. Received: attention={attention!r}, position_encoding='rotary'"
        )
    if can_rotate and "key_dim" not in options:
        check_heads(num_heads, model_dim)
    # On the flat tokens of a transformer, graph attention is spectral attention of order 2.
    entry = ATTENTIONS["tsa"] if entry.tensor_tokens else entry
    options = {
        **entry.stacked_options,
        **entry.causal_options,
        **dict.fromkeys(entry.dropout_options, attention_dropout),
        **options,
    }
    if can_rotate:
        rotary = "neighbors" if position_encoding == "rotary" else None
        options = {"rotary": rotary, **_ROTARY_OPTIONS[attention], **options}
        kind = _ROTARY_LAYERS[attention]
        return lambda name: kind(num_heads, name=name, **options), position_encoding
    return lambda name: entry.make(num_heads, model_dim, name=name, **options), position_encoding


def _copies(
    attention: keras.layers.Layer, options: dict[str, Any], position_encoding: str | None
) -> tuple[Callable[[str], keras.layers.Layer], str]:
    rotates = getattr(attention, "rotary", None) is not None
    if position_encoding == "rotary" and not rotates:
        raise ValueError(
            "Expected a MetricAttention or PLDRAttention with `rotary` for rotary "
            f"positions. Received: attention={attention!r}, position_encoding='rotary'"
        )
    make = copies_of(attention, options)
    return make, position_encoding or ("rotary" if rotates else "sinusoidal")
