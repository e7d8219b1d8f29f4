"""The deep tensor network that learns a rule, and the baselines beside it."""

from typing import Any

import keras
from keras import ops

from keras_tnattn.layers import LocalEmbedding, SinusoidalPositionEncoding
from keras_tnattn.models import deep_tensor_network
from keras_tnattn.typing import Tensor
from keras_tnattn_train.rules.config import RulesConfig

NUM_HEADS = 2


def network(config: RulesConfig) -> keras.Model:
    """Returns a network, not compiled, from bits `(B, N)` to logits `(B, N, 2)`."""
    if config.model == "tn":
        return _tensor_network(config)
    bits = keras.Input((None,), dtype="int32", name="sites")
    if config.model == "lstm":
        x = _lstm(config, bits)
    elif config.model == "convolution":
        x = _convolutions(config, bits)
    else:
        x = _transformer(config, bits)
    logits = keras.layers.Dense(2, dtype="float32", name="logits")(x)
    return keras.Model(bits, logits, name=config.model.replace("-", "_"))


def _tensor_network(config: RulesConfig) -> keras.Model:
    ends: dict[str, dict[str, Any]] = {
        "periodic": {"boundary": "closed"},
        "fixed": {"boundary": "open", "trainable_boundary": True},
    }
    return deep_tensor_network(
        2,
        LocalEmbedding("one_hot", num_ids=2),
        num_layers=config.num_layers,
        bond_dim=config.bond_dim,
        head="sequence",
        initial_deviation=config.initial_deviation,
        **ends[config.boundary],
    )


def _lstm(config: RulesConfig, bits: Tensor) -> Tensor:
    x = LocalEmbedding("one_hot", num_ids=2, name="embedding")(bits)
    lstm = keras.layers.LSTM(config.model_dim, return_sequences=True)
    x = keras.layers.Bidirectional(lstm, name="lstm")(x)
    # Without a hidden layer, the logits were sums of a function of the cells to the left and one of
    # those to the right, and could not express the rules.
    return keras.layers.Dense(2 * config.model_dim, activation="relu", name="hidden")(x)


def _convolutions(config: RulesConfig, bits: Tensor) -> Tensor:
    """A layer for each step sees one more cell on either side; a ring is continued at its ends."""
    x = LocalEmbedding("one_hot", num_ids=2, name="embedding")(bits)
    periodic = config.boundary == "periodic"
    for n in range(config.steps):
        if periodic:
            x = ops.concatenate([x[:, -1:], x, x[:, :1]], axis=1)
        x = keras.layers.Conv1D(
            config.model_dim,
            3,
            padding="valid" if periodic else "same",
            activation="relu",
            name=f"convolution_{n}",
        )(x)
    return x


def _transformer(config: RulesConfig, bits: Tensor) -> Tensor:
    """An encoder that normalizes before each attention and feed-forward network, and at the end."""
    dim = config.model_dim
    # Keras' default, numbers of at most 0.05, would be lost beside the positions.
    x = keras.layers.Embedding(
        2, dim, keras.initializers.RandomNormal(stddev=1.0), name="embedding"
    )(bits)
    x = SinusoidalPositionEncoding(name="positions")(x)
    for n in range(2 if config.model == "large-transformer" else 1):
        y = keras.layers.LayerNormalization(name=f"normalization_{n}a")(x)
        y = keras.layers.MultiHeadAttention(NUM_HEADS, dim // NUM_HEADS, name=f"attention_{n}")(
            y, y
        )
        x = keras.layers.Add(name=f"residual_{n}a")([x, y])
        y = keras.layers.LayerNormalization(name=f"normalization_{n}b")(x)
        y = keras.layers.Dense(2 * dim, activation="relu", name=f"hidden_{n}")(y)
        y = keras.layers.Dense(dim, name=f"feedforward_{n}")(y)
        x = keras.layers.Add(name=f"residual_{n}b")([x, y])
    return keras.layers.LayerNormalization(name="normalization")(x)
