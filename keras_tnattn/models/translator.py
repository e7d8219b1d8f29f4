"""The encoder-decoder translator of the power law graph transformer, with any attention."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers import TransformerDecoder, TransformerEncoder
from keras_tnattn.models.embeddings import make_embedding, make_position_encoding
from keras_tnattn.models.translator_attentions import (
    AttentionSizes,
    Choice,
    attention_makers,
)
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class Translator(keras.Model):
    """An encoder-decoder transformer, from source and target ids to logits of the next tokens.

    A functional model from `{"source": (B, S), "target": (B, T)}`, ids with 0 for padding, to
    logits `(B, T, V)`, so that `fit`, `save`, `summary` and `export` work as for any Keras model.
    In addition, `encode` and `decode` compute its two halves, and `keras_tnattn.search.BeamSearch`
    translates with it. `translator` builds one from sizes and names.

    Args:
        source: The layers of the source: one from ids `(B, S)` to vectors `(B, S, d)`, for instance
            `TokenEmbedding` with `mask_zero=True`; one that adds position encodings to these, and
            for the target takes `start_index`, the position of the first vector, as
            `SinusoidalPositionEncoding` does; and a list of `TransformerEncoder` layers.
        target: The same of the target, with `TransformerDecoder` layers.
        logits: Layer from `(B, T, d)` to logits `(B, T, V)`.
        dropout: Dropout rate of the embeddings. Defaults to 0.

    Raises:
        ValueError: If a side is not a tuple of an embedding, positions and a list of layers, or
            there are decoders in `source` or encoders in `target`.

    Attributes:
        source_embedding, source_positions, encoders, target_embedding, target_positions, decoders,
            logits: The layers.
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: Number of target ids `V`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.models import translator
        >>> model = translator(100, 120, attention="sdpa", model_dim=16, num_heads=2)
        >>> source, target = np.array([[2, 7, 9, 3]]), np.array([[2, 5]])
        >>> tuple(model({"source": source, "target": target}).shape)
        (1, 2, 120)
        >>> memory = model.encode(source)
        >>> tuple(model.decode(target, memory, memory_mask=source != 0).shape)
        (1, 2, 120)

        From layers:

        >>> import keras
        >>> import keras_tnattn as tn
        >>> from keras_tnattn.models import Translator
        >>> def attention():
        ...     return keras.layers.MultiHeadAttention(2, 8)
        >>> def embedding(size):
        ...     return tn.TokenEmbedding(size, 16, mask_zero=True)
        >>> encoders = [tn.TransformerEncoder(attention(), 32)]
        >>> decoders = [tn.TransformerDecoder(attention(), attention(), 32)]
        >>> model = Translator(
        ...     (embedding(100), tn.SinusoidalPositionEncoding(), encoders),
        ...     (embedding(120), tn.SinusoidalPositionEncoding(), decoders),
        ...     keras.layers.Dense(120),
        ... )
        >>> tuple(model({"source": source, "target": target}).shape)
        (1, 2, 120)
    """

    def __init__(
        self,
        source: tuple[keras.layers.Layer, keras.layers.Layer, Sequence[TransformerEncoder]],
        target: tuple[keras.layers.Layer, keras.layers.Layer, Sequence[TransformerDecoder]],
        logits: keras.layers.Layer,
        dropout: float = 0.0,
        name: str = "translator",
        **kwargs: Any,
    ) -> None:
        _check_side("source", source)
        _check_side("target", target)
        source_embedding, source_positions, encoders = source
        target_embedding, target_positions, decoders = target
        if any(isinstance(layer, TransformerDecoder) for layer in encoders):
            raise ValueError("Expected encoders in source. Received: a TransformerDecoder")
        if any(isinstance(layer, TransformerEncoder) for layer in decoders):
            raise ValueError("Expected decoders in target. Received: a TransformerEncoder")
        dtype = source_embedding.dtype_policy
        source_dropout = keras.layers.Dropout(dropout, name="source_dropout", dtype=dtype)
        target_dropout = keras.layers.Dropout(dropout, name="target_dropout", dtype=dtype)
        source_ids = keras.Input((None,), dtype="int32", name="source")
        target_ids = keras.Input((None,), dtype="int32", name="target")
        # Keras passes the masks of the embeddings on to the layers.
        memory = source_dropout(source_positions(source_embedding(source_ids)))
        for encoder in encoders:
            memory = encoder(memory)
        x = target_dropout(target_positions(target_embedding(target_ids)))
        for decoder in decoders:
            x = decoder(x, memory)
        ids = {"source": source_ids, "target": target_ids}
        super().__init__(ids, logits(x), name=name, **kwargs)
        self.source_embedding = source_embedding
        self.source_positions = source_positions
        self.source_dropout = source_dropout
        self.encoders = list(encoders)
        self.target_embedding = target_embedding
        self.target_positions = target_positions
        self.target_dropout = target_dropout
        self.decoders = list(decoders)
        self.logits = logits

    @property
    def source_vocabulary_size(self) -> int:
        return self.source_embedding.input_dim

    @property
    def target_vocabulary_size(self) -> int:
        return self.output_shape[-1]

    def encode(
        self, source: Tensor, training: bool | None = None, return_details: bool = False
    ) -> Any:
        """Computes the memory, to which the decoders attend.

        Args:
            source: Integers `(B, S)`, 0 for padding.
            training: Whether dropout is active.
            return_details: Whether to return what the attentions computed, too. Defaults to
                `False`.

        Returns:
            Tensor `(B, S, d)`; with `return_details` also a dict with the keys `encoder_0`,
            `encoder_1` and so on, whose values are those that `TransformerEncoder` returns.
            Encoders whose attention cannot return details are left out.
        """
        source = keras.ops.convert_to_tensor(source, "int32")
        mask = keras.ops.not_equal(source, 0)
        x = self.source_positions(self.source_embedding(source))
        # Copies have no Keras mask attached; the masks are passed explicitly here.
        x = keras.ops.copy(self.source_dropout(x, training=training))
        details: dict[str, Any] = {}
        for i, encoder in enumerate(self.encoders):
            with_details = return_details and encoder.has_details
            x = encoder(x, mask=mask, training=training, return_details=with_details)
            if with_details:
                x, details[f"encoder_{i}"] = x
        memory = keras.ops.copy(x)
        return (memory, details) if return_details else memory

    def embed_target(
        self, target: Tensor, start_index: Tensor = 0, training: bool | None = None
    ) -> Tensor:
        """Embeds target ids for the first decoder.

        Args:
            target: Integers `(B, T)`.
            start_index: Position of the first id, an int or a scalar tensor. Defaults to 0.
            training: Whether dropout is active.

        Returns:
            Tensor `(B, T, d)`.
        """
        x = self.target_embedding(keras.ops.convert_to_tensor(target, "int32"))
        x = self.target_positions(x, start_index=start_index)
        return keras.ops.copy(self.target_dropout(x, training=training))

    def run_decoders(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        return_details: bool = False,
    ) -> Any:
        """Computes the inputs of the layer `logits`; arguments and details as in `decode`.

        Returns:
            Tensor `(B, T, d)`; with `return_details` also a dict.
        """
        target = keras.ops.convert_to_tensor(target, "int32")
        mask = keras.ops.not_equal(target, 0)
        x = self.embed_target(target, training=training)
        details: dict[str, Any] = {}
        for i, decoder in enumerate(self.decoders):
            x = decoder(
                x,
                memory,
                inputs_mask=mask,
                memory_mask=memory_mask,
                training=training,
                return_details=return_details,
            )
            if return_details:
                x, both = x
                details |= {f"decoder_{i}.{kind}": detail for kind, detail in both.items()}
        return (x, details) if return_details else x

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        return_details: bool = False,
    ) -> Any:
        """Computes the logits of the token after each target token.

        Args:
            target: Integers `(B, T)`, 0 for padding.
            memory: Float tensor `(B, S, d)`, as `encode` returns it.
            memory_mask: Boolean tensor `(B, S)`, `True` for a real source token. Default: all are
                real.
            training: Whether dropout is active.
            return_details: Whether to return what the attentions computed, too. Defaults to
                `False`.

        Returns:
            Tensor `(B, T, V)`; with `return_details` also a dict with the keys `decoder_0.self`,
            `decoder_0.cross`, `decoder_1.self` and so on, without those of attentions that cannot
            return details.
        """
        outputs = self.run_decoders(target, memory, memory_mask, training, return_details)
        if return_details:
            return self.logits(outputs[0]), outputs[1]
        return self.logits(outputs)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            name: keras.saving.serialize_keras_object(getattr(self, name)) for name in _LAYERS
        }
        return {**config, "dropout": self.source_dropout.rate, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Translator":
        options = {name: value for name, value in config.items() if name not in _LAYERS}
        *sides, logits = (
            keras.saving.deserialize_keras_object(config[name], custom_objects) for name in _LAYERS
        )
        return cls(tuple(sides[:3]), tuple(sides[3:]), logits, **options)


_LAYERS = (
    "source_embedding",
    "source_positions",
    "encoders",
    "target_embedding",
    "target_positions",
    "decoders",
    "logits",
)


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
    encoder_attention: str | keras.layers.Layer | None = None,
    decoder_attention: str | keras.layers.Layer | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    decoder_options: Mapping[str, Any] | None = None,
    feedforward: str = "dense",
    feedforward_tt_ranks: int = 8,
    position_encoding: str = "sinusoidal",
    max_length: int | None = None,
    embedding: str = "dense",
    embedding_tt_ranks: int = 16,
    **attention_options: Any,
) -> Translator:
    """Builds the translator of Gokden, "Power Law Graph Transformer", section 3.

    The model has embeddings, scaled by `sqrt(d)`, plus position encodings, `TransformerEncoder`
    layers for the source, `TransformerDecoder` layers for the target, and a dense layer that
    computes the logits. Id 0 is padding and masked. The model is not compiled. `PRESETS` has the
    paper's models, `translator(8000, 8000, **PRESETS["plga-2"])`, and two for small
    corpora: there it translates better, and no token of the target depends on later ones (see
    `PowerLawGraphAttention`, whose published metric lets them). Call the model with
    `{"source": ids, "target": ids}`.

    The attentions can differ. `encoder_attention` is the attention of the source to itself, and
    `decoder_attention` that of the target to itself, which has to be causal. The attention of the
    target to the source is always `attention`, which has to be called with query and value.

    Args:
        source_vocabulary_size: Number of source ids, padding included.
        target_vocabulary_size: Number of target ids, padding included.
        attention: `"plga"` (default), power law graph attention; `"sdpa"`, scaled dot-product
            attention (`keras.layers.MultiHeadAttention`); or a layer that is called with query and
            value, in which case each block gets a copy with its own weights.
        num_layers: Number of encoder layers, and of decoder layers. Defaults to 1.
        model_dim: Size `d` of embeddings and layers. Defaults to 512.
        num_heads: Number of heads of an attention given by name. Defaults to 8.
        feedforward_dim: Hidden size of the feed-forward nets. Defaults to 2048.
        dropout: Dropout rate of the embeddings and of each branch before its residual sum. Defaults
            to 0.4, the paper's value for PLGA (0.1 for SDPA).
        attention_dropout: Dropout rate of the scores and, for PLGA, in the residual units, for an
            attention given by name. Defaults to 0.1, the paper's value for PLGA.
        encoder_attention: Attention of the encoders: a name in
            `keras_tnattn.models.attentions.ATTENTIONS`, such as `"tsa"`, `"tga"`, `"tn"` or
            `"rgtn"`, or a layer. Defaults to `attention`, with its options.
        decoder_attention: Attention of the target to itself: a name or a layer that can be causal,
            such as `"tsa"` or `"rgtn"`. Defaults to `attention`, with its options.
        encoder_options: Further arguments of an `encoder_attention` given by name.
        decoder_options: Further arguments of a `decoder_attention` given by name.
        feedforward: `"dense"` (default), or `"tensor_train"` for feed-forward nets of `TTDense`
            layers, or `"swiglu"` for `SwiGLU` nets.
        feedforward_tt_ranks: Int, the maximum TT-rank of these layers. Defaults to 8.
        position_encoding: `"sinusoidal"` (default) or `"learned"`.
        max_length: Number of learned positions of source and target.
        embedding: The embeddings of source and target: `"dense"` (default), full tables;
            `"tensor_train"`, `TTEmbedding` layers; or `"low_rank"`, `LowRankEmbedding` layers.
        embedding_tt_ranks: Int, their maximum TT-rank or their rank. Defaults to 16.
        **attention_options: Further arguments of an `attention` given by name, for instance
            `residual_units=2`; the layer checks them. Those that suit only some places go there, as
            its entry in `keras_tnattn.models.attentions.ATTENTIONS` says: of PLGA, `causal_metric`
            to the decoder, `metric_from` to the attention of the target to the source.

    Returns:
        A `Translator`.

    Raises:
        ValueError: For an unknown name, a size out of range, options of an attention that is a
            layer, or an attention that cannot be causal or attend to another sequence as required.

    Example:
        >>> from keras_tnattn.models import translator
        >>> model = translator(
        ...     100, 120, "sdpa", model_dim=16, num_heads=2, feedforward_dim=32,
        ...     encoder_attention="tsa", encoder_options={"damping": 0.5},
        ...     decoder_attention="rgtn", feedforward="tensor_train",
        ... )
        >>> model.output_shape
        (None, None, 120)
    """
    check_int("source_vocabulary_size", source_vocabulary_size, at_least=2)
    check_int("target_vocabulary_size", target_vocabulary_size, at_least=2)
    check_int("num_layers", num_layers)
    check_int("model_dim", model_dim)
    check_int("num_heads", num_heads)
    make_encoder, make_decoder, make_cross = attention_makers(
        Choice(attention, attention_options),
        Choice(encoder_attention, encoder_options),
        Choice(decoder_attention, decoder_options),
        AttentionSizes(num_heads, model_dim, attention_dropout),
    )
    block: dict[str, Any] = {
        "feedforward_dim": feedforward_dim,
        "dropout": dropout,
        "feedforward": feedforward,
        "feedforward_tt_ranks": feedforward_tt_ranks,
    }

    def make_layers(side: str, vocabulary_size: int) -> tuple[keras.layers.Layer, Any]:
        table = make_embedding(
            embedding, vocabulary_size, model_dim, embedding_tt_ranks, f"{side}_embedding"
        )
        positions = make_position_encoding(position_encoding, max_length, True, f"{side}_positions")
        return table, positions

    source_layers = make_layers("source", source_vocabulary_size)
    target_layers = make_layers("target", target_vocabulary_size)
    encoders = [
        TransformerEncoder(make_encoder("attention"), **block, name=f"encoder_{i}")
        for i in range(num_layers)
    ]
    decoders = [
        TransformerDecoder(
            make_decoder("self_attention"),
            make_cross("cross_attention"),
            **block,
            name=f"decoder_{i}",
        )
        for i in range(num_layers)
    ]
    # The softmax over the vocabulary needs float32 under mixed precision, too.
    wide = at_least_float32(keras.config.floatx())
    logits = keras.layers.Dense(target_vocabulary_size, dtype=wide, name="logits")
    return Translator((*source_layers, encoders), (*target_layers, decoders), logits, dropout)


def _check_side(name: str, layers: Any) -> None:
    is_side = isinstance(layers, list | tuple) and len(layers) == 3
    if not (is_side and isinstance(layers[2], list | tuple)):
        raise ValueError(
            f"Expected {name}=(embedding, positions, [layer, ...]). "
            f"Received: {name}={reprlib.repr(layers)}"
        )
