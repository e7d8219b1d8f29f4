"""Which attention a translator has in which place, and with which options."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_tnattn.models.attentions import ATTENTIONS, Attention, find_attention


def attention_makers(
    attention: str | keras.layers.Layer,
    attention_options: dict[str, Any],
    *,
    encoder_attention: str | keras.layers.Layer | None,
    encoder_options: Mapping[str, Any] | None,
    decoder_attention: str | keras.layers.Layer | None,
    decoder_options: Mapping[str, Any] | None,
    num_heads: int,
    model_dim: int,
    attention_dropout: float,
) -> tuple[Callable[[str], keras.layers.Layer], ...]:
    """Returns functions from a layer's name to a new attention layer, for each of three places.

    Args:
        attention: The attention of a translator, by name or as a layer.
        attention_options: Its options.
        encoder_attention: Another attention of the encoders.
        encoder_options: Its options.
        decoder_attention: Another attention of the target to itself.
        decoder_options: Its options.
        num_heads: Number of heads of each attention.
        model_dim: Size of the tokens.
        attention_dropout: Dropout rate of each attention.

    Returns:
        The functions of the encoders, of the target to itself and of the target to the source.

    Raises:
        ValueError: If an attention does not suit its place, or options apply to nothing.
    """
    places = (dict(attention_options),) * 3
    if isinstance(attention, str) and attention in ATTENTIONS:
        places = ATTENTIONS[attention].by_place(attention_options)
        _check_used(attention, attention_options, places, encoder_attention, decoder_attention)
    of_encoder, of_target, of_source = places
    sizes = (num_heads, model_dim, attention_dropout)

    def maker(
        place: str,
        other: str | keras.layers.Layer | None,
        other_options: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> Callable[[str], keras.layers.Layer]:
        if other is None:
            if other_options:
                raise ValueError(
                    f"Expected `{place}_attention`, to which `{place}_options` apply. "
                    f"Received: {place}_attention=None, {place}_options={other_options}"
                )
            return _attention_maker("attention", attention, options, *sizes)
        options = {**(options if other == attention else {}), **(other_options or {})}
        return _attention_maker(f"{place}_attention", other, options, *sizes)

    return (
        maker("encoder", encoder_attention, encoder_options, of_encoder),
        maker("decoder", decoder_attention, decoder_options, of_target),
        _attention_maker("attention", attention, of_source, *sizes),
    )


def _check_used(
    attention: str,
    options: Mapping[str, Any],
    places: Sequence[Mapping[str, Any]],
    encoder_attention: str | keras.layers.Layer | None,
    decoder_attention: str | keras.layers.Layer | None,
) -> None:
    """Raises an error if an option applies to other attentions than those that are `attention`."""
    of_encoder, of_target, used = (set(place) for place in places)
    for other, names in ((encoder_attention, of_encoder), (decoder_attention, of_target)):
        if other is None or other == attention:
            used |= names
    unused = {name: value for name, value in options.items() if name not in used}
    if unused:
        raise ValueError(
            f"Expected options that apply to attention={attention!r} where it is used. Received: "
            f"{unused} with encoder_attention={encoder_attention!r}, "
            f"decoder_attention={decoder_attention!r}"
        )


def _attention_maker(
    argument: str,
    attention: str | keras.layers.Layer,
    options: dict[str, Any],
    num_heads: int,
    model_dim: int,
    attention_dropout: float,
) -> Callable[[str], keras.layers.Layer]:
    """Returns a function from a layer's name to a new attention layer."""
    if isinstance(attention, keras.layers.Layer):
        if options:
            raise ValueError(
                f"Expected no further options if `{argument}` is a layer. "
                f"Received: {argument}={attention!r}, options={options}"
            )
        config = attention.get_config()
        return lambda name: type(attention).from_config({**config, "name": name})
    entry = _entry_for(argument, attention)
    if entry.takes_memory and "key_dim" not in options and model_dim % num_heads:
        raise ValueError(
            "Expected num_heads to divide model_dim. "
            f"Received: num_heads={num_heads}, model_dim={model_dim}"
        )
    defaults = {**entry.stacked_options, **dict.fromkeys(entry.dropout_options, attention_dropout)}
    if argument == "decoder_attention":
        defaults |= entry.causal_options
    options = {**defaults, **options}
    return lambda name: entry.make(num_heads, model_dim, name=name, **options)


def _entry_for(argument: str, name: str) -> Attention:
    """Returns the entry of a name; checks that the attention is suitable for the argument."""
    entry = find_attention(name, argument)
    places = {
        "attention": ("takes_memory", "that attend to another sequence"),
        "decoder_attention": ("can_be_causal", "that can be causal"),
    }
    if argument in places:
        attribute, words = places[argument]
        if not getattr(entry, attribute):
            names = [n for n, other in ATTENTIONS.items() if getattr(other, attribute)]
            raise ValueError(
                f"Expected a layer or one of {names}, the attentions {words}. "
                f"Received: {argument}={name!r}"
            )
    # On the flat tokens of a transformer, graph attention is spectral attention of order 2.
    return ATTENTIONS["tsa"] if entry.tensor_tokens else entry
