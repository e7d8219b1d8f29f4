"""The registry of the attentions that models and training commands accept by name.

A new attention needs one entry in `attentions.json`, and `text_classifier`, `translator` and the
commands take its name. An entry has a `summary`, the name of its `layer`, the `options` that it is
made with, if any, and the facts of `Attention` that differ from their defaults.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras

from keras_tnattn import layers
from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.ops.spectral_filter import is_banded
from keras_tnattn.typing import Tensor

Places: TypeAlias = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def _everywhere(options: Mapping[str, Any]) -> Places:
    return dict(options), dict(options), dict(options)


def _power_law_places(options: Mapping[str, Any]) -> Places:
    """Encoders read whole sentences, and so does a metric of the source: neither is causal."""

    def drop(*names: str) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name not in names}

    of_source = drop("causal_metric") if options.get("metric_from") == "key" else drop()
    return drop("causal_metric", "metric_from"), drop("metric_from"), of_source


@dataclasses.dataclass(frozen=True)
class Attention:
    """Describes an attention to models and commands.

    Attributes:
        summary: A short description for help texts.
        make: Function of `(num_heads, dim, **options)` that creates the layer for features of size
            `dim`.
        has_heads: Whether it has heads, so that `num_heads` applies.
        takes_memory: Whether it can attend to another sequence (cross-attention).
        can_be_causal: Whether a decoder can use it for the attention of the target to itself.
        stacked_options: Options that give its output the shape of its input, for residual sums.
        causal_options: Options that make it causal, if it does not take a causal mask.
        dropout_options: The names of the options that are dropout rates.
        by_place: Function from the options of a translator's attention to those of its encoders, of
            the target to itself and of the target to the source. Default: the same for all three.
        tensor_tokens: Whether its tokens are tensors, `(B, L, I_1, ..., I_N)`.
        arguments: The arguments of the layer that `classify` has options for.
        pairs: Which pairs of tokens it compares: `"all"` (default), `"none"`, `"band"`, those of a
            band where that is faster, or `"graph"`, those that its time graph joins.
        table_dim: The size of the tokens at which two heads have about 300 weights, as in Table 1
            of the paper on tensorized spectral attention; without an attention that of the first
            row; `None` for others.
    """

    summary: str
    make: Callable[..., keras.layers.Layer]
    has_heads: bool = True
    takes_memory: bool = False
    can_be_causal: bool = False
    stacked_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    causal_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dropout_options: tuple[str, ...] = ()
    by_place: Callable[[Mapping[str, Any]], Places] = _everywhere
    tensor_tokens: bool = False
    arguments: tuple[str, ...] = ()
    pairs: str = "all"
    table_dim: int | None = None

    def compares_pairs(self, length: int, dim: int, bandwidth: int | None = None) -> bool:
        """Returns whether its cost grows with the square of the length, as its layer's adapter.

        Args:
            length: The number of tokens.
            dim: The number of features of a token.
            bandwidth: That of its time graph. Default: it has none, or one without a bandwidth.
        """
        if self.pairs == "band":
            return not is_banded(bandwidth, "auto", dim, length)
        if self.pairs == "graph":
            return bandwidth is None
        return self.pairs == "all"


def _scaled_dot_product(num_heads: int, dim: int, **options: Any) -> keras.layers.Layer:
    key_dim = max(dim // num_heads, 1)
    return keras.layers.MultiHeadAttention(num_heads, **{"key_dim": key_dim, **options})


def _entry(layer: str, options: Mapping[str, Any], **facts: Any) -> Attention:
    has_heads = facts.get("has_heads", True)

    def make(num_heads: int, dim: int, **others: Any) -> keras.layers.Layer:
        heads = (num_heads,) if has_heads else ()
        cls = getattr(layers, layer, None) or getattr(keras.layers, layer)
        return cls(*heads, **{**options, **others})

    lists = {name: tuple(fact) for name, fact in facts.items() if isinstance(fact, list)}
    return Attention(
        make=_scaled_dot_product if layer == "MultiHeadAttention" else make,
        by_place=_power_law_places if layer == "PowerLawGraphAttention" else _everywhere,
        **{**facts, **lists},
    )


def _registry() -> dict[str, Attention]:
    # A file of its own, because the commands read it without importing Keras.
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return {name: _entry(**{"options": {}, **entry}) for name, entry in json.loads(text).items()}


ATTENTIONS: Mapping[str, Attention] = _registry()


def find_attention(name: str, argument: str = "attention") -> Attention:
    """Returns the entry of a name, or raises an error that lists the names.

    Args:
        name: A key of `ATTENTIONS`.
        argument: The argument that holds it, for the error message.

    Raises:
        ValueError: If there is no such name.
    """
    if name not in ATTENTIONS:
        raise ValueError(
            f"Expected one of {sorted(ATTENTIONS)} or a layer. Received: {argument}={name!r}"
        )
    return ATTENTIONS[name]


def copies_of(
    attention: keras.layers.Layer, options: Mapping[str, Any], argument: str = "attention"
) -> Callable[[str], keras.layers.Layer]:
    """Returns a function from a name to a copy of a layer, of weights of its own; no `options`."""
    if options:
        raise ValueError(
            f"Expected no further options if `{argument}` is a layer. "
            f"Received: {argument}={attention!r}, options={options}"
        )
    config = attention.get_config()
    return lambda name: type(attention).from_config({**config, "name": name})


def check_heads(num_heads: int, model_dim: int) -> None:
    """Raises a `ValueError` unless the heads divide the size of the tokens."""
    if model_dim % num_heads:
        raise ValueError(
            "Expected num_heads to divide model_dim. "
            f"Received: num_heads={num_heads}, model_dim={model_dim}"
        )


def attend(attention: keras.layers.Layer, inputs: Tensor) -> Tensor:
    """Calls any attention layer on one sequence, in a functional model.

    Args:
        attention: The layer.
        inputs: Tensor `(B, L, ...)`.
    """
    return attention(inputs, inputs) if adapter_of(attention).takes_memory else attention(inputs)
