"""The encoder-decoder translator of the power law graph transformer, and its rival."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_tnattn.layers import (
    PowerLawGraphAttention,
    SinusoidalPositionEncoding,
    TokenEmbedding,
    TransformerDecoder,
    TransformerEncoder,
)

_PLGA = {"attention": "plga", "num_layers": 1, "dropout": 0.4}
# Table 1 of the paper. The metric of its decoder sums over the whole target, as published: loss and
# accuracy under teacher forcing see later tokens. `causal_metric=True` removes that.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "plga-1": {**_PLGA, "num_heads": 16, "residual_dim": 128, "residual_units": 10},
    "plga-2": {**_PLGA, "num_heads": 8, "residual_dim": 256, "residual_units": 9},
    "plga-3": {**_PLGA, "num_heads": 8, "residual_dim": 256, "residual_units": 8},
    "plga-4": {**_PLGA, "num_heads": 4, "residual_dim": 512, "residual_units": 5},
    "plga-5": {**_PLGA, "num_heads": 2, "residual_dim": 1024, "residual_units": 2},
    "plga-6": {**_PLGA, "num_heads": 1, "residual_dim": 2048, "residual_units": 1},
    "sdpa": {
        "attention": "sdpa",
        "num_layers": 4,
        "num_heads": 8,
        "dropout": 0.1,
        "attention_dropout": 0.0,
    },
}


def translator(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    attention: str | keras.layers.Layer = "plga",
    num_layers: int = 1,
    model_dim: int = 512,
    num_heads: int = 8,
    feedforward_dim: int = 2048,
    dropout: float = 0.4,
    attention_dropout: float = 0.1,
    **attention_options: Any,
) -> keras.Model:
    """Builds the translator of Gokden, "Power Law Graph Transformer", section 3.

    Embeddings times `sqrt(d)` plus sinusoidal positions, `TransformerEncoder`s on the source,
    `TransformerDecoder`s on the target, a dense layer to the logits. Id 0 is padding and masked.
    Not compiled. The paper's models: `translator(8000, 8000, **PRESETS["plga-2"])`.

    As published, the metric of PLGA in the decoder sums over the whole target: under teacher
    forcing the logits depend on later tokens, the one to predict included, so that loss and
    accuracy, in training and in validation, are not those of decoding. `causal_metric=True` removes
    this: each position of the decoder has the metric of the tokens up to it.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        attention: `"plga"`, power law graph attention; `"sdpa"`, scaled dot-product attention
            (`keras.layers.MultiHeadAttention`); or a layer called with query and value, of which
            each block gets a copy with weights of its own.
        num_layers: Encoder layers, and decoder layers.
        model_dim: Size `d` of embeddings and layers.
        num_heads: Heads of an attention given by name.
        feedforward_dim: Hidden size of the feed-forward nets.
        dropout: Rate on the embeddings and on each branch before its sum. Defaults to 0.4, the
            paper's for PLGA; for SDPA it has 0.1.
        attention_dropout: Rate on the scores, and of PLGA on the residual units, for an attention
            given by name. Defaults to 0.1, the paper's for PLGA.
        **attention_options: Further arguments of an attention given by name, for instance
            `residual_units=2`. `causal_metric` goes to the decoder's attentions alone: the encoder
            knows its whole sentence.

    Returns:
        A functional model from ids `{"source": (B, S), "target": (B, T)}`, int, to logits
        `(B, T, target_vocabulary_size)` of the tokens that follow each target token; any `B`, `S`
        and `T`.

    Raises:
        ValueError: For an unknown name, a size out of range, or options beside a layer.
    """
    for name, value, least in (
        ("source_vocabulary_size", source_vocabulary_size, 2),
        ("target_vocabulary_size", target_vocabulary_size, 2),
        ("num_layers", num_layers, 1),
        ("model_dim", model_dim, 1),
    ):
        if value < least:
            raise ValueError(f"Expected at least {least}. Received: {name}={value}")
    if attention == "plga":
        attention_options = {"residual_dropout": attention_dropout, **attention_options}
    if isinstance(attention, str):
        attention_options["dropout"] = attention_dropout
    make_attention = _attention_maker(attention, num_heads, model_dim, attention_options)
    encoder_options = {k: v for k, v in attention_options.items() if k != "causal_metric"}
    make_encoder_attention = _attention_maker(attention, num_heads, model_dim, encoder_options)
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    memory = _embedded(source, "source", source_vocabulary_size, model_dim, dropout)
    for i in range(num_layers):
        memory = TransformerEncoder(
            make_encoder_attention("attention"), feedforward_dim, dropout, name=f"encoder_{i}"
        )(memory)
    x = _embedded(target, "target", target_vocabulary_size, model_dim, dropout)
    for i in range(num_layers):
        x = TransformerDecoder(
            make_attention("self_attention"),
            make_attention("cross_attention"),
            feedforward_dim,
            dropout,
            name=f"decoder_{i}",
        )(x, memory)
    # The softmax over the vocabulary needs float32 under mixed precision too.
    logits = keras.layers.Dense(target_vocabulary_size, dtype="float32", name="logits")(x)
    return keras.Model({"source": source, "target": target}, logits, name="translator")


def _embedded(
    ids: keras.KerasTensor, side: str, vocabulary_size: int, model_dim: int, dropout: float
) -> keras.KerasTensor:
    x = TokenEmbedding(vocabulary_size, model_dim, mask_zero=True, name=f"{side}_embedding")(ids)
    x = SinusoidalPositionEncoding(scale=True, name=f"{side}_positions")(x)
    return keras.layers.Dropout(dropout, name=f"{side}_dropout")(x)


def _attention_maker(
    attention: str | keras.layers.Layer, num_heads: int, model_dim: int, options: dict
) -> Callable[[str], keras.layers.Layer]:
    """Returns a function from a layer's name to a new attention layer."""
    if isinstance(attention, keras.layers.Layer):
        if options:
            raise ValueError(
                "Expected no options beside a layer, which has its own. "
                f"Received: attention_options={options}"
            )
        config = attention.get_config()
        return lambda name: type(attention).from_config({**config, "name": name})
    if model_dim % num_heads:
        raise ValueError(
            "Expected num_heads to divide model_dim. "
            f"Received: num_heads={num_heads}, model_dim={model_dim}"
        )
    if attention == "plga":
        return lambda name: PowerLawGraphAttention(num_heads, name=name, **options)
    if attention == "sdpa":
        key_dim = model_dim // num_heads
        return lambda name: keras.layers.MultiHeadAttention(
            num_heads, key_dim, name=name, **options
        )
    raise ValueError(f"Expected 'plga', 'sdpa' or a layer. Received: attention={attention!r}")
