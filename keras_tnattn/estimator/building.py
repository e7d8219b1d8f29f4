"""Builds the model of a text classifier and the batches that it is trained with."""

from typing import Any

import keras
from sklearn.utils.class_weight import compute_sample_weight

from keras_tnattn.estimator.batches import MAX_TOKENS, GroupedTextBatches, TextBatches
from keras_tnattn.estimator.parts import Part
from keras_tnattn.estimator.settings import Settings
from keras_tnattn.models import text_classifier
from keras_tnattn.models.attentions import copies_of

# Texts of up to this many words share batches whatever their lengths.
SHORT_TEXTS = 256


def compiled_model(
    settings: Settings,
    vocabulary_size: int,
    classes: int,
    steps: int,
    max_words: int | None = None,
) -> keras.Model:
    """Builds a compiled model from ids `(B, L)` to probabilities `(B, classes)`.

    Args:
        settings: The settings; of an attention that is a layer, the model gets a copy.
        vocabulary_size: The number of ids.
        classes: The number of classes.
        steps: Those of an epoch.
        max_words: The number of learned positions. Default: that of the settings.
    """
    attention = settings.attention
    if not isinstance(attention, str):
        attention = copies_of(attention, {})("attention")
    learned = settings.position_encoding == "learned"
    model = text_classifier(
        vocabulary_size,
        classes,
        attention=attention,
        embedding_dim=settings.embedding_dim,
        num_heads=settings.num_heads,
        num_layers=settings.num_layers,
        embedding=settings.embedding,
        embedding_tt_ranks=settings.embedding_tt_ranks,
        word_dropout=settings.word_dropout,
        dropout=settings.dropout,
        normalization=settings.normalization,
        feedforward_dim=settings.feedforward_dim,
        position_encoding=settings.position_encoding,
        max_length=(max_words or settings.max_words) if learned else None,
        feedforward=settings.feedforward,
        **settings.attention_options,
    )
    # XLA need not store the sums of additive attention over all pairs.
    automatic = settings.attention == "ada" or "auto"
    jit_compile = {"auto": automatic, "on": True, "off": False}[settings.jit_compile]
    rate: Any = settings.learning_rate
    if settings.decay:
        rate = keras.optimizers.schedules.CosineDecay(rate, settings.epochs * steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    return model


def training_batches(settings: Settings, train: Part) -> TextBatches:
    """Returns the batches of the training part."""
    weights = None
    if settings.class_weight is not None:
        weights = compute_sample_weight(settings.class_weight, train.labels).astype("float32")
    arguments = (train.ids, train.labels, settings.batch_size)
    if train.ids.shape[1] <= SHORT_TEXTS:
        return TextBatches(*arguments, settings.seed, weights)
    return GroupedTextBatches(*arguments, MAX_TOKENS, settings.seed, weights)
