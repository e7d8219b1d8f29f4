"""The seven-layer text classifier of the tensorized attention papers."""

from typing import Any

import keras

from keras_tnattn.layers import (
    MaskedAveragePooling1D,
    MultiHeadAdditiveAttention,
    MultiHeadDotProductAttention,
    PowerLawGraphAttention,
    TensorizedGraphAttention,
    TensorizedSpectralAttention,
    TensorizeTokens,
    TNAttention,
)

ATTENTIONS = {
    "tsa": TensorizedSpectralAttention,
    "tga": TensorizedGraphAttention,
    "dpa": MultiHeadDotProductAttention,
    "ada": MultiHeadAdditiveAttention,
    "tn": TNAttention,
    "plga": PowerLawGraphAttention,
    "sdpa": keras.layers.MultiHeadAttention,
}


def text_classifier(
    vocabulary_size: int,
    num_classes: int,
    attention: str | keras.layers.Layer = "tsa",
    embedding_dim: int = 64,
    num_heads: int = 2,
    sequence_length: int | None = None,
    dropout_rate: float = 0.1,
    hidden_units: int = 20,
    **attention_options: Any,
) -> keras.Model:
    """Builds the classifier of Xu et al., "A Tensorized Spectral Attention Mechanism", section 6.

    Embedding, attention, average over the tokens, dropout, `Dense(20, relu)`, dropout,
    `Dense(num_classes, softmax)`. Id 0 is padding and masked. Not compiled.

    Args:
        vocabulary_size: Number of token ids, padding included.
        num_classes: Number of classes, at least 2.
        attention: `"tsa"`, `"tga"`, `"dpa"`, `"ada"`, `"tn"`, `"plga"`, `"sdpa"`, or a layer
            `(B, L, I) -> (B, L, ...)`; of `keras.layers.MultiHeadAttention`, which `"sdpa"` is
            too, query and value are the same.
        embedding_dim: Size `I` of the embedding. Defaults to 64.
        num_heads: Heads of an attention given by name. Defaults to 2. `"tn"` has none; its
            attention tensor is of order 2 unless an option says otherwise, since the entries of
            the embedding take both signs.
        sequence_length: Fixes the length of the input. Default: any length.
        dropout_rate: Of both dropouts. Defaults to 0.1.
        hidden_units: Of the hidden dense layer. Defaults to 20.
        **attention_options: Further arguments of an attention given by name, for instance
            `damping=0.5`.

    Returns:
        A functional model from ids, int `(B, L)`, to probabilities `(B, num_classes)`; its
        attention is named `"attention"`, its embedding `"embedding"`.

    Raises:
        ValueError: For an unknown name, or options beside a layer.
    """
    for name, value, least in (
        ("vocabulary_size", vocabulary_size, 2),
        ("num_classes", num_classes, 2),
    ):
        if value < least:
            raise ValueError(f"Expected at least {least}. Received: {name}={value}")
    ids = keras.Input((sequence_length,), dtype="int32", name="ids")
    x = keras.layers.Embedding(vocabulary_size, embedding_dim, mask_zero=True, name="embedding")(
        ids
    )
    if isinstance(attention, str):
        if attention not in ATTENTIONS:
            raise ValueError(
                f"Expected one of {sorted(ATTENTIONS)} or a layer. "
                f"Received: attention={attention!r}"
            )
        if attention == "tga":
            x = TensorizeTokens(name="tokens")(x)
        if attention == "tn":
            attention_options = {"attention_order": 2, **attention_options}
        else:
            attention_options["num_heads"] = num_heads
        if attention == "sdpa":
            attention_options.setdefault("key_dim", max(embedding_dim // num_heads, 1))
        attention = ATTENTIONS[attention](name="attention", **attention_options)
    elif attention_options:
        raise ValueError(
            "Expected no options beside a layer, which has its own. "
            f"Received: attention_options={attention_options}"
        )
    multi_head = isinstance(attention, keras.layers.MultiHeadAttention)
    x = attention(x, x) if multi_head else attention(x)
    x = MaskedAveragePooling1D(name="pooling")(x)
    if len(x.shape) > 2:
        x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dropout(dropout_rate, name="pooling_dropout")(x)
    x = keras.layers.Dense(hidden_units, activation="relu", name="hidden")(x)
    x = keras.layers.Dropout(dropout_rate, name="hidden_dropout")(x)
    # Probabilities are computed in float32 under mixed precision too.
    outputs = keras.layers.Dense(
        num_classes, activation="softmax", dtype="float32", name="probabilities"
    )(x)
    return keras.Model(ids, outputs, name="text_classifier")
