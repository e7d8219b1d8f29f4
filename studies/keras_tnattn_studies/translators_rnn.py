"""The recurrent peer of the studies of translators: LSTM layers with additive attention."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.layers import TokenEmbedding
from keras_tnattn.search import Start
from keras_tnattn.text.reserved import START
from keras_tnattn.typing import Tensor
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.loading import TrainedTranslator
from keras_tnattn_train.translate.predicting import corpus_of


def recurrent_translator(config: TranslateConfig, sizes: tuple[int, int]) -> keras.Model:
    """Returns a translator of one LSTM for each direction of the source, and one for the target.

    The states of the target, computed from the tokens so far, attend to those of the source by
    additive attention (Bahdanau et al., 2014, https://arxiv.org/abs/1409.0473, appendix A.1.2); the
    logits follow from both. The last states of the source begin those of the target. From ids `(B,
    S)` and `(B, T)` to logits `(B, T, V)`, as those of `keras_tnattn.models.Translator`.
    """
    units, rate = config.model_dim, config.dropout or 0.0
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    x = _embedding(sizes[0], units, name="source_embedding", mask_zero=True)(source)
    x = keras.layers.Dropout(rate)(x)
    lstm = keras.layers.LSTM(units, return_sequences=True, return_state=True)
    memory, *states = keras.layers.Bidirectional(lstm, name="encoder")(x)
    state = _start_state(
        states, [keras.layers.Dense(units, "tanh", name=f"start_{part}") for part in "hc"]
    )
    y = _embedding(sizes[1], units, name="target_embedding")(target)
    y = keras.layers.Dropout(rate)(y)
    y = keras.layers.LSTM(units, return_sequences=True, name="decoder")(y, initial_state=state)
    query = keras.layers.Dense(units, use_bias=False, name="query")(y)
    key = keras.layers.Dense(units, name="key")(memory)
    found = keras.layers.AdditiveAttention(name="attention")([query, memory, key])
    z = keras.layers.Dense(units, "tanh", name="mixture")(ops.concatenate([y, found], axis=-1))
    z = keras.layers.Dropout(rate)(z)
    logits = keras.layers.Dense(sizes[1], dtype="float32", name="logits")(z)
    inputs = {"source": source, "target": target}
    return keras.Model(inputs, logits, name="recurrent_translator")


def _embedding(vocabulary_size: int, units: int, **options: Any) -> keras.layers.Layer:
    limit = 0.05 * math.sqrt(units)  # as large as in `Translator`, which multiplies by the root
    initial = keras.initializers.RandomUniform(-limit, limit)
    return TokenEmbedding(vocabulary_size, units, embeddings_initializer=initial, **options)


def _start_state(states: Sequence[Any], layers: Sequence[keras.layers.Layer]) -> list[Any]:
    """The first state of the target, from the last `h` and `c` of each direction."""
    forward_h, forward_c, backward_h, backward_c = states
    both = [(forward_h, backward_h), (forward_c, backward_c)]
    return [layer(ops.concatenate(pair, axis=-1)) for layer, pair in zip(layers, both, strict=True)]


class RecurrentSteps:
    """The steps of `recurrent_translator`."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.input_vocabulary_size = self._layer("source_embedding").input_dim
        self.vocabulary_size = self._layer("target_embedding").input_dim

    def _layer(self, name: str) -> Any:
        return self.model.get_layer(name)

    def pack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        width = -(-max([1, *map(len, rows)]) // 8) * 8  # so that few shapes are compiled
        return np.array([np.pad(row, (0, width - len(row))) for row in rows], "int32")

    def start(self, inputs: Tensor) -> Start:
        mask = inputs != 0
        x = self._layer("source_embedding")(inputs)
        memory, *states = self._layer("encoder")(x, mask=mask, training=False)
        state = _start_state(states, [self._layer(f"start_{part}") for part in "hc"])
        context = {"memory": memory, "key": self._layer("key")(memory), "mask": mask}
        ids = ops.full((ops.shape(inputs)[0], 1), START, dtype="int32")
        logits, state = self.step(ids, ops.zeros((), "int32"), context, state)
        limit = ops.sum(ops.cast(mask, "int32"), axis=1)
        return Start(ids, limit, context, state, logits)

    def step(self, ids: Tensor, position: Tensor, context: Any, state: Any) -> tuple[Tensor, Any]:
        x = self._layer("target_embedding")(ops.take(ids, position, axis=1))
        y, state = self._layer("decoder").cell(x, state, training=False)
        # The hypotheses of a sentence attend together: (B, K, d).
        batch = ops.shape(context["mask"])[0]
        query = self._layer("query")(y)
        found = self._layer("attention")(
            [
                ops.reshape(query, (batch, -1, query.shape[-1])),
                context["memory"],
                context["key"],
            ],
            mask=[None, context["mask"]],
        )
        found = ops.reshape(found, (-1, found.shape[-1]))
        z = self._layer("mixture")(ops.concatenate([y, found], axis=-1))
        return self._layer("logits")(z), list(state)

    def with_room(self, state: Any, num_tokens: Tensor) -> Any:
        return state


def load_recurrent(folder: str | Path, checkpoint: str | None = None) -> TrainedTranslator:
    """Loads the finished `recurrent_translator` of a run; it has no checkpoints to choose."""
    corpus = corpus_of(Path(folder))
    model = load_model(Path(folder, "model.keras"), "Delete the run's folder to train it again")
    return TrainedTranslator(RecurrentSteps(model), corpus, *corpus.tokenizers)
