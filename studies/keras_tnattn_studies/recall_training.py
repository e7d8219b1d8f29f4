"""Trains and measures a reader of the texts of `recall`."""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.layers import (
    SinusoidalPositionEncoding,
    TensorizedSpectralAttention,
    TokenEmbedding,
)
from keras_tnattn_studies.alone import peak_memory, restart_peak
from keras_tnattn_studies.recall import LETTERS, REACH, SECTION, VOCABULARY_SIZE, recall_texts
from keras_tnattn_train.runs.training import reset_session

DIM = 32
# At the greatest distance of an answer, 8, its weight is 0.17; at that of another section's letters
# it is at most 0.004.
DAMPING = 0.8
# The parts of a seed's texts.
TRAINING, VALIDATION, TEST = range(3)


class LocalAttention(keras.layers.Layer):
    """`MultiHeadAttention` of each token to itself and the 64 before it, in blocks of 64 tokens.

    A block attends to itself and the block before, so that scores take `B L 128` and not `B L^2`
    entries for each head. Lengths are multiples of 64.
    """

    def __init__(self, num_heads: int, key_dim: int) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(num_heads, key_dim)

    def build(self, input_shape: tuple) -> None:
        self.attention.build(input_shape, input_shape)

    def call(self, inputs: Any) -> Any:
        ops = keras.ops
        blocks = ops.reshape(inputs, (-1, SECTION, DIM))
        number = ops.shape(inputs)[1] // SECTION
        before = ops.roll(blocks, 1, axis=0)
        distance = np.arange(SECTION, 2 * SECTION)[:, None] - np.arange(2 * SECTION)
        near = ops.convert_to_tensor((distance >= 0) & (distance <= SECTION))
        # The first block of a text has none before it.
        has_former = ops.arange(ops.shape(blocks)[0]) % number > 0
        is_own = ops.convert_to_tensor(np.arange(2 * SECTION) >= SECTION)
        mask = near & (has_former[:, None, None] | is_own)
        both = ops.concatenate([before, blocks], axis=1)
        outputs = self.attention(blocks, both, attention_mask=mask)
        return ops.reshape(outputs, ops.shape(inputs))


def recall_model(model: str, settings: Mapping[str, Any]) -> keras.Model:
    """Builds a compiled reader: embedding, what mixes the tokens, and two dense layers.

    Each token receives from earlier ones only; with `"tsa_symmetric"` also from later ones.

    Returns:
        A model from ids `(B, L)` to probabilities of the letters `(B, L, 8)`.
    """
    optimizer = keras.optimizers.Adam(settings["learning_rate"])
    heads = settings.get("num_heads", 1)
    ids = keras.Input((None,), dtype="int32")
    # Embeddings as large as the position encoding.
    large = keras.initializers.RandomNormal(stddev=0.5)
    x = TokenEmbedding(VOCABULARY_SIZE, DIM, embeddings_initializer=large)(ids)
    if model in ("tsa", "tsa_symmetric"):
        layer = TensorizedSpectralAttention(
            heads, DIM // heads, damping=DAMPING, head_combination="project"
        )
        mixed = layer(x, use_causal_mask=model == "tsa")
    elif model == "mha":
        x = SinusoidalPositionEncoding()(x)
        mixed = keras.layers.MultiHeadAttention(heads, DIM // heads)(x, x, use_causal_mask=True)
    elif model == "window":
        mixed = LocalAttention(heads, DIM // heads)(SinusoidalPositionEncoding()(x))
    elif model == "convolution":
        mixed = keras.layers.Conv1D(DIM, REACH + 1, padding="causal", activation="relu")(x)
    elif model == "gru":
        mixed = keras.layers.GRU(DIM, return_sequences=True)(x)
    else:
        mixed = x
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, mixed]))
    x = keras.layers.Dense(2 * DIM, activation="relu")(x)
    outputs = keras.layers.Dense(LETTERS, activation="softmax")(x)
    reader = keras.Model(ids, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    # Without XLA, whose compilation would take longer than most trainings here.
    reader.compile(optimizer, loss, weighted_metrics=["accuracy"], jit_compile=False)
    return reader


def train_recall(
    model: str,
    settings: Mapping[str, Any],
    length: int,
    seed: int,
    steps: int,
    step_tokens: int,
    max_seconds: float,
    part: int = TEST,
) -> dict[str, Any]:
    """Trains one reader and measures it.

    Seconds are those that the processor spent in this process, which other processes do not
    lengthen much.

    Returns:
        `accuracy`, `steps`, `seconds` in all, `seconds_per_step` (the median), and `megabytes`, the
        peak of the memory in training less the memory before, with the model compiled.
    """
    reset_session(seed)
    reader = recall_model(model, settings)
    _compile_steps(reader)
    before = restart_peak()
    seconds: list[float] = []
    for batch in itertools.islice(_batches(length, step_tokens, seed, TRAINING), steps):
        began = time.process_time()
        reader.train_on_batch(*batch)
        seconds.append(time.process_time() - began)
        if sum(seconds) > max_seconds:
            break
    megabytes = peak_memory() - before
    right = total = 0.0
    for ids, labels, weights in itertools.islice(_batches(length, step_tokens, seed, part), 4):
        predicted = keras.ops.convert_to_numpy(reader.predict_on_batch(ids)).argmax(axis=-1)
        right += float(((predicted == labels) * weights).sum())
        total += float(weights.sum())
    return {
        "accuracy": right / total,
        "steps": len(seconds),
        "seconds": sum(seconds),
        "seconds_per_step": statistics.median(seconds),
        "megabytes": megabytes,
    }


def choose_settings(
    model: str,
    choices: Sequence[Mapping[str, Any]],
    length: int,
    steps: int,
    step_tokens: int,
    max_seconds: float,
) -> dict[str, Any]:
    """Trains a reader with each of some settings, with seed 0.

    Returns:
        `accuracies`, that of each on the validation part.
    """
    accuracies = [
        train_recall(model, one, length, 0, steps, step_tokens, max_seconds, VALIDATION)["accuracy"]
        for one in choices
    ]
    return {"accuracies": accuracies}


def _compile_steps(reader: keras.Model) -> None:
    """Compiles training and prediction for any shape, on short texts that change no weight."""
    for count in (1, 2):  # TensorFlow lets sizes vary that differ between the first two calls
        ids, labels, weights = recall_texts(count, count * SECTION, np.random.default_rng(0))
        reader.train_on_batch(ids, labels, 0 * weights)
        reader.predict_on_batch(ids)
    reader.optimizer.iterations.assign(0)


def _batches(
    length: int, step_tokens: int, seed: int, part: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng((seed, part))
    while True:
        yield recall_texts(step_tokens // length, length, rng)
