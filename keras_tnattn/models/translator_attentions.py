"""Which attention a translator has in which place, and with which options."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_tnattn.models.attentions import (
    ATTENTIONS,
    Attention,
    check_heads,
    copies_of,
    find_attention,
)


def attention_makers(
    attention: str | keras.layers.Layer,
    options: dict[str, Any],
    others: Mapping[str, tuple[str | keras.layers.Layer | None, Mapping[str, Any] | None]],
    sizes: tuple[int, int, float],
) -> tuple[Callable[[str], keras.layers.Layer], ...]:
    """Returns functions from a layer's name to a new attention layer, for each of three places.

    Args:
        attention: The attention of a translator, by name or as a layer.
        options: Its options.
        others: Another attention and its options, or `None`, of the `"encoder"` and, for the target
            to itself, of the `"decoder"`.
        sizes: Number of heads, size of the tokens and dropout rate of each attention.

    Returns:
        The functions of the encoders, of the target to itself and of the target to the source.

    Raises:
        ValueError: If an attention does not suit its place, or options apply to nothing.
    """
    places = (dict(options),) * 3
    if isinstance(attention, str) and attention in ATTENTIONS:
        places = ATTENTIONS[attention].by_place(options)
        _check_used(attention, options, places, [other for other, _ in others.values()])

    def maker(place: str, options: dict[str, Any]) -> Callable[[str], keras.layers.Layer]:
        other, other_options = others.get(place, (None, None))
        if other is None:
            if other_options:
                raise ValueError(
                    f"Expected `{place}_attention`, to which `{place}_options` apply. "
                    f"Received: {place}_attention=None, {place}_options={other_options}"
                )
            return _attention_maker("attention", attention, options, sizes)
        options = {**(options if other == attention else {}), **(other_options or {})}
        return _attention_maker(f"{place}_attention", other, options, sizes)

    return tuple(map(maker, ("encoder", "decoder", "cross"), places))


def _check_used(
    attention: str,
    options: Mapping[str, Any],
    places: Sequence[Mapping[str, Any]],
    others: Sequence[str | keras.layers.Layer | None],
) -> None:
    """Raises an error if an option applies to other attentions than those that are `attention`."""
    *of_others, used = (set(place) for place in places)
    for other, names in zip(others, of_others, strict=True):
        if other is None or other == attention:
            used |= names
    unused = {name: value for name, value in options.items() if name not in used}
    if unused:
        raise ValueError(
            f"Expected options that apply to attention={attention!r} where it is used. Received: "
            f"{unused} with encoder_attention={others[0]!r}, decoder_attention={others[1]!r}"
        )


def _attention_maker(
    argument: str,
    attention: str | keras.layers.Layer,
    options: dict[str, Any],
    sizes: tuple[int, int, float],
) -> Callable[[str], keras.layers.Layer]:
    """Returns a function from a layer's name to a new attention layer."""
    if isinstance(attention, keras.layers.Layer):
        return copies_of(attention, options, argument)
    num_heads, model_dim, attention_dropout = sizes
    entry = _entry_for(argument, attention)
    if entry.takes_memory and "key_dim" not in options:
        check_heads(num_heads, model_dim)
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
