"""Which attention a translator has in which place, and with which options."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import keras

from keras_tnattn.models.attentions import (
    ATTENTIONS,
    Attention,
    check_heads,
    copies_of,
    find_attention,
)

Maker: TypeAlias = Callable[[str], keras.layers.Layer]


class Choice(NamedTuple):
    """An attention that a user chose, by name or as a layer, and its options.

    Example:
        >>> Choice("tsa", {"damping": 0.5}).attention
        'tsa'
    """

    attention: str | keras.layers.Layer | None
    options: Mapping[str, Any] | None


class AttentionSizes(NamedTuple):
    """The arguments that every attention given by name gets.

    Example:
        >>> AttentionSizes(num_heads=2, model_dim=16, dropout=0.1).model_dim
        16
    """

    num_heads: int
    model_dim: int
    dropout: float


def attention_makers(
    default: Choice, encoder: Choice, decoder: Choice, sizes: AttentionSizes
) -> tuple[Maker, Maker, Maker]:
    """Returns functions from a layer's name to a new attention layer, for each of three places.

    Args:
        default: The attention of a translator.
        encoder: Another attention of the source to itself, or `None` and `None`.
        decoder: Another attention of the target to itself, or `None` and `None`.
        sizes: The arguments of all of them.

    Returns:
        The functions of the encoders, of the target to itself and of the target to the source.

    Raises:
        ValueError: If an attention does not suit its place, or options apply to nothing.
    """
    options = dict(default.options or {})
    encoder_part = options
    decoder_part = options
    cross_part = options
    if isinstance(default.attention, str) and default.attention in ATTENTIONS:
        encoder_part, decoder_part, cross_part = ATTENTIONS[default.attention].by_place(options)
        used = set(cross_part)
        if encoder.attention in (None, default.attention):
            used |= set(encoder_part)
        if decoder.attention in (None, default.attention):
            used |= set(decoder_part)
        _check_used(default.attention, options, used, encoder, decoder)
    return (
        _place_maker("encoder", encoder, Choice(default.attention, encoder_part), sizes),
        _place_maker("decoder", decoder, Choice(default.attention, decoder_part), sizes),
        _attention_maker("attention", default.attention, cross_part, sizes),
    )


def _check_used(
    attention: str, options: Mapping[str, Any], used: set[str], encoder: Choice, decoder: Choice
) -> None:
    """Raises an error if an option of `attention` is used in no place that has this attention."""
    unused = {name: value for name, value in options.items() if name not in used}
    if unused:
        raise ValueError(
            f"Expected options that apply to attention={attention!r} where it is used. Received: "
            f"{unused} with encoder_attention={encoder.attention!r}, "
            f"decoder_attention={decoder.attention!r}"
        )


def _place_maker(place: str, choice: Choice, default: Choice, sizes: AttentionSizes) -> Maker:
    """Returns the function of the encoders or decoders, which may have a choice of their own."""
    if choice.attention is None:
        if choice.options:
            raise ValueError(
                f"Expected `{place}_attention`, to which `{place}_options` apply. "
                f"Received: {place}_attention=None, {place}_options={choice.options}"
            )
        return _attention_maker("attention", default.attention, default.options or {}, sizes)
    options = dict(choice.options or {})
    if choice.attention == default.attention:
        options = {**(default.options or {}), **options}
    return _attention_maker(f"{place}_attention", choice.attention, options, sizes)


def _attention_maker(
    argument: str,
    attention: str | keras.layers.Layer | None,
    options: Mapping[str, Any],
    sizes: AttentionSizes,
) -> Maker:
    """Returns a function from a layer's name to a new attention layer."""
    if isinstance(attention, keras.layers.Layer):
        return copies_of(attention, options, argument)
    entry = _entry_for(argument, attention)
    if entry.takes_memory and "key_dim" not in options:
        check_heads(sizes.num_heads, sizes.model_dim)
    defaults = {**entry.stacked_options, **dict.fromkeys(entry.dropout_options, sizes.dropout)}
    if argument == "decoder_attention":
        defaults |= entry.causal_options
    options = {**defaults, **options}
    return lambda name: entry.make(sizes.num_heads, sizes.model_dim, name=name, **options)


def _entry_for(argument: str, name: Any) -> Attention:
    """Returns the entry of a name; checks that the attention is suitable for the argument."""
    entry = find_attention(name, argument)
    requirements = {
        "attention": ("takes_memory", "that attend to another sequence"),
        "decoder_attention": ("can_be_causal", "that can be causal"),
    }
    if argument in requirements:
        fact, description = requirements[argument]
        if not getattr(entry, fact):
            names = [n for n, known in ATTENTIONS.items() if getattr(known, fact)]
            raise ValueError(
                f"Expected a layer or one of {names}, the attentions {description}. "
                f"Received: {argument}={name!r}"
            )
    # On the flat tokens of a transformer, graph attention is spectral attention of order 2.
    return ATTENTIONS["tsa"] if entry.tensor_tokens else entry
