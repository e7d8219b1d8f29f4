"""The recurrent peer of the study `language`: layers of `keras.layers.LSTM`, and its steps."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.search import Start
from keras_tnattn.typing import Tensor


def lstm_language_model(vocabulary_size: int, num_layers: int, units: int) -> keras.Model:
    """Returns a language model of LSTM layers, from ids `(B, T)` to logits `(B, T, V)`."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(vocabulary_size, units, name="embedding")(ids)
    for number in range(num_layers):
        x = keras.layers.LSTM(units, return_sequences=True, name=f"lstm_{number}")(x)
    return keras.Model(ids, keras.layers.Dense(vocabulary_size, name="logits")(x))


class LSTMSteps:
    """The steps of `lstm_language_model` for prompts of one length, which are not padded."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.embedding, *self.layers, self.logits = model.layers[1:]
        self.vocabulary_size = self.input_vocabulary_size = self.embedding.input_dim

    def pack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(rows)

    def start(self, inputs: Tensor) -> Start:
        x, state = self.embedding(inputs), []
        for layer in self.layers:
            cells = layer.cell.get_initial_state(ops.shape(inputs)[0])
            x, cells = _unrolled(layer.cell, x, cells)
            state.append(cells)
        last = ops.zeros_like(inputs[:, 0]) + ops.shape(inputs)[1] - 1
        return Start(inputs, last, {}, state, self.logits(x[:, -1]))

    def step(self, ids: Tensor, position: Tensor, context: Any, state: Any) -> tuple[Tensor, Any]:
        x, new_state = self.embedding(ops.take(ids, position, axis=1)), []
        for layer, cells in zip(self.layers, state, strict=True):
            x, cells = layer.cell(x, cells)
            new_state.append(list(cells))
        return self.logits(x), new_state

    def with_room(self, state: Any, num_tokens: Tensor) -> Any:
        return state


def _unrolled(cell: keras.layers.Layer, x: Tensor, state: list[Tensor]) -> tuple[Tensor, Any]:
    outputs = []
    for t in range(x.shape[1]):
        output, state = cell(x[:, t], state)
        outputs.append(output)
    return ops.stack(outputs, axis=1), list(state)
