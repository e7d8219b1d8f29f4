"""Decoder-only language models with any causal attention, and those of power law attention."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers import SinusoidalPositionEncoding, TransformerDecoder
from keras_tnattn.layers.embedding_scale import EmbeddingScale
from keras_tnattn.models.embeddings import make_embedding
from keras_tnattn.models.language_model_attentions import attention_maker
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Tensor

FEEDFORWARDS = ("relu", "swiglu")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LanguageModel(keras.Model):
    """A decoder-only transformer, from ids to logits of the next ids.

    A functional model from ids `(B, T)`, 0 for padding, to logits `(B, T, V)`, so that `fit`,
    `save`, `summary` and `export` work as for any Keras model. `keras_tnattn.search.Generator`
    continues texts with it. `language_model` builds one from sizes and names.

    Args:
        embedding: Layer from ids `(B, T)` to vectors `(B, T, d)`, for instance a `TokenEmbedding`
            with `mask_zero=True`. Its vectors are multiplied by `sqrt(d)`.
        positions: Layer that adds position encodings to these vectors; `None` if the attention
            rotates queries and keys, or needs no positions.
        decoders: The `TransformerDecoder` layers, without cross-attention.
        logits: Layer from `(B, T, d)` to logits `(B, T, V)`; `None` for logits that are tied to the
            embedding, which is then called with `reverse=True`.
        embedding_norm: Normalization of the embedded tokens, or `None`.
        final_norm: Normalization before the logits, or `None`.
        dropout: Dropout rate of the embeddings. Defaults to 0.
        max_length: The number of tokens that the model was made for, or `None`. Searches refuse
            longer sequences.

    Attributes:
        embedding, positions, decoders, logits, embedding_norm, final_norm, max_length: As above.
        vocabulary_size: Number of ids `V`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.models import language_model
        >>> model = language_model(100, "sdpa", model_dim=16, num_heads=2, feedforward_dim=32)
        >>> tuple(model(np.array([[5, 7, 9]])).shape)
        (1, 3, 100)
    """

    def __init__(
        self,
        embedding: keras.layers.Layer,
        positions: keras.layers.Layer | None,
        decoders: Sequence[TransformerDecoder],
        logits: keras.layers.Layer | None = None,
        embedding_norm: keras.layers.Layer | None = None,
        final_norm: keras.layers.Layer | None = None,
        dropout: float = 0.0,
        max_length: int | None = None,
        name: str = "language_model",
        **kwargs: Any,
    ) -> None:
        dtype = embedding.dtype_policy
        scale = EmbeddingScale(name="embedding_scale", dtype=dtype)
        embedding_dropout = keras.layers.Dropout(dropout, name="embedding_dropout", dtype=dtype)
        ids = keras.Input((None,), dtype="int32", name="ids")
        # Keras passes the mask of the embedding on to the layers.
        x = scale(embedding(ids))
        for layer in (positions, embedding_norm, embedding_dropout, *decoders, final_norm):
            x = x if layer is None else layer(x)
        outputs = embedding(x, reverse=True) if logits is None else logits(x)
        super().__init__(ids, outputs, name=name, **kwargs)
        self.embedding = embedding
        self.embedding_scale = scale
        self.positions = positions
        self.embedding_norm = embedding_norm
        self.embedding_dropout = embedding_dropout
        self.decoders = list(decoders)
        self.final_norm = final_norm
        self.logits = logits
        self.max_length = None if max_length is None else check_int("max_length", max_length)

    @property
    def vocabulary_size(self) -> int:
        return self.output_shape[-1]

    def embed(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeds ids for the first decoder, without dropout.

        Args:
            ids: Integers `(B, T)`, 0 for padding.
            positions: Integers `(B, T)`, the positions of consecutive tokens. Default: from 0 on.

        Returns:
            Tensor `(B, T, d)`.
        """
        x = self.embedding_scale(self.embedding(ops.cast(ids, "int32")))
        if self.positions is not None:
            start = 0 if positions is None else positions[:, :1]
            x = self.positions(x, start_index=start)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        # A copy has no Keras mask attached; the masks are passed explicitly.
        return ops.copy(x)

    def run_decoders(
        self, ids: Tensor, positions: Tensor | None = None, return_details: bool = False
    ) -> Any:
        """Computes what `compute_logits` takes, without dropout.

        Args:
            ids: Integers `(B, T)`, 0 for padding.
            positions: Integers `(B, T)`, the positions of consecutive tokens. Default: from 0 on.
            return_details: Whether to return what the attentions computed, too. Defaults to
                `False`.

        Returns:
            Tensor `(B, T, d)`; with `return_details` also a dict with the keys `decoder_0`,
            `decoder_1` and so on, whose values are those that `TransformerEncoder` returns.
        """
        mask = ops.not_equal(ids, 0)
        x = self.embed(ids, positions)
        details: dict[str, Any] = {}
        for i, decoder in enumerate(self.decoders):
            x = decoder(
                x,
                inputs_mask=mask,
                training=False,
                return_details=return_details,
                positions=positions,
            )
            if return_details:
                x, both = x
                details |= {f"decoder_{i}": detail for detail in both.values()}
        return (x, details) if return_details else x

    def compute_logits(self, x: Tensor) -> Tensor:
        """Returns the logits `(..., V)` for outputs `(..., d)` of the last decoder."""
        if self.final_norm is not None:
            x = self.final_norm(x)
        return self.embedding(x, reverse=True) if self.logits is None else self.logits(x)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            name: keras.saving.serialize_keras_object(getattr(self, name)) for name in _LAYERS
        }
        return {
            **config,
            "dropout": self.embedding_dropout.rate,
            "max_length": self.max_length,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "LanguageModel":
        layers = {
            name: config[name]
            and keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in _LAYERS
        }
        return cls(**{**config, **layers})


_LAYERS = ("embedding", "positions", "decoders", "logits", "embedding_norm", "final_norm")


def language_model(
    vocabulary_size: int,
    attention: str | keras.layers.Layer = "plga",
    num_layers: int = 2,
    model_dim: int = 128,
    num_heads: int = 4,
    feedforward_dim: int = 512,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    feedforward: str = "swiglu",
    position_encoding: str | None = None,
    norm_first: bool = False,
    tie_logits: bool = False,
    embedding_norm: bool = False,
    max_length: int | None = None,
    embedding: str = "dense",
    embedding_tt_ranks: int = 16,
    **attention_options: Any,
) -> LanguageModel:
    """Builds a decoder-only language model around any causal attention.

    Embeddings, scaled by `sqrt(d)`, `TransformerDecoder` layers without cross-attention, and a
    layer that computes the logits. Id 0 is padding and masked. The model is not compiled.
    `LANGUAGE_MODELS` has published models: `language_model(32000, **LANGUAGE_MODELS["pldr-v510"])`
    is PLDR-LLM v510 (Gokden, https://arxiv.org/abs/2502.13502): its equations, compared with
    numbers of the published code, and the sizes which that code has by default; its weights are
    random.

    The metric of PLGA, as published, sums over the whole sequence and so reads ahead: in training
    the logits depend on later tokens, including the one to predict, and loss and accuracy differ
    from those in generation. `causal_metric=True` prevents this, at the cost of one pass through
    the metric's net per token; so does a metric that `keras_tnattn.freeze_metric` has frozen.

    Args:
        vocabulary_size: Number of ids `V`, padding included.
        attention: `"plga"` (default), in language models a `PLDRAttention`; `"sdpa"`, a
            `MetricAttention`; `"tsa"`, `"rgtn"`, `"tn"` (with left contexts only), `"none"`, or
            another causal one of `keras_tnattn.models.attentions.ATTENTIONS`; or a layer, of which
            each block gets a copy with its own weights.
        num_layers: Number of decoder layers. Defaults to 2.
        model_dim: Size `d` of embeddings and layers. Defaults to 128.
        num_heads: Number of heads of an attention given by name. Defaults to 4.
        feedforward_dim: Hidden size of the feed-forward nets. Defaults to 512.
        dropout: Dropout rate of the embeddings and of each branch before its residual sum. Defaults
            to 0.
        attention_dropout: Dropout rate of the scores and, for PLGA, in the residual units. Defaults
            to 0.
        feedforward: The feed-forward net, `"swiglu"` (default) or `"relu"`.
        position_encoding: `"rotary"`, for PLGA and SDPA, `"sinusoidal"`, or `"none"`. Default:
            `"rotary"` where it is possible, else `"sinusoidal"`.
        norm_first: Whether the inputs of the branches are normalized (and the inputs of the logits)
            instead of the residual sums. Defaults to `False`.
        tie_logits: Whether the logits are products with the embedding. Defaults to `False`: they
            have weights of their own.
        embedding_norm: Whether the embedded tokens are normalized. Defaults to `False`.
        max_length: The number of tokens that the model is made for. Defaults to `None`, any.
        embedding: `"dense"` (default), a full table; `"tensor_train"`, a `TTEmbedding`; or
            `"low_rank"`, a `LowRankEmbedding`.
        embedding_tt_ranks: Int, its maximum TT-rank or its rank. Defaults to 16.
        **attention_options: Further arguments of an `attention` given by name, for instance
            `causal_metric=True`.

    Returns:
        A `LanguageModel`.

    Raises:
        ValueError: For an unknown name, a size out of range, an attention that cannot be causal, or
            rotary positions of an attention that has no queries and keys.

    Example:
        >>> from keras_tnattn.models import language_model
        >>> model = language_model(
        ...     100, "plga", model_dim=16, num_heads=2, feedforward_dim=32, norm_first=True,
        ...     residual_units=1, residual_dim=8, causal_metric=True,
        ... )
        >>> model.output_shape
        (None, None, 100)
    """
    check_int("vocabulary_size", vocabulary_size, at_least=2)
    check_int("num_layers", num_layers)
    check_int("model_dim", model_dim)
    check_int("num_heads", num_heads)
    if feedforward not in FEEDFORWARDS:
        raise ValueError(f"Expected one of {FEEDFORWARDS}. Received: feedforward={feedforward!r}")
    make_attention, position_encoding = attention_maker(
        attention, attention_options, position_encoding, num_heads, model_dim, attention_dropout
    )
    positions = None
    if position_encoding == "sinusoidal":
        positions = SinusoidalPositionEncoding(name="positions")
    decoders = [
        TransformerDecoder(
            make_attention("self_attention"),
            None,
            feedforward_dim,
            dropout=dropout,
            norm_first=norm_first,
            feedforward="swiglu" if feedforward == "swiglu" else "dense",
            name=f"decoder_{i}",
        )
        for i in range(num_layers)
    ]

    def norm(name: str, wanted: bool) -> keras.layers.Layer | None:
        return keras.layers.LayerNormalization(epsilon=1e-6, name=name) if wanted else None

    # The softmax over the vocabulary needs float32 under mixed precision, too.
    wide = at_least_float32(keras.config.floatx())
    logits = None if tie_logits else keras.layers.Dense(vocabulary_size, dtype=wide, name="logits")
    return LanguageModel(
        make_embedding(embedding, vocabulary_size, model_dim, embedding_tt_ranks, "embedding"),
        positions,
        decoders,
        logits,
        embedding_norm=norm("embedding_norm", embedding_norm),
        final_norm=norm("final_norm", norm_first),
        dropout=dropout,
        max_length=max_length,
    )
