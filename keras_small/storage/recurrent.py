"""Replaces the cells of recurrent layers, so that a trained one gets smaller kernels."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

_LAYER_OPTIONS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "unroll",
    "zero_output_for_mask",
)


def cells_of(layer: keras.layers.RNN) -> list[keras.layers.Layer]:
    """Returns the cells of a recurrent layer, the first one first."""
    cell = layer.cell
    return list(cell.cells) if isinstance(cell, keras.layers.StackedRNNCells) else [cell]


def on_other_cells(
    layer: keras.layers.RNN, convert: Callable[[keras.layers.Layer], keras.layers.Layer]
) -> keras.layers.RNN:
    """Returns a recurrent layer with other cells.

    Args:
        layer: A built `keras.layers.RNN`, `SimpleRNN`, `LSTM` or `GRU`. It does not change.
        convert: Function from a cell to a built cell with states of the same sizes.

    Returns:
        A built `keras.layers.RNN` of the same name and options, in the same states if it is
        stateful.

    Example:
        >>> from keras_small.storage.quantized import quantized_layer
        >>> lstm = keras.layers.LSTM(8, return_sequences=True)
        >>> lstm.build((None, None, 4))
        >>> small = on_other_cells(lstm, lambda cell: quantized_layer(cell, bits=4))
        >>> tuple(small(np.ones((2, 5, 4), "float32")).shape)
        (2, 5, 8)
    """
    cells = [convert(cell) for cell in cells_of(layer)]
    stacked = isinstance(layer.cell, keras.layers.StackedRNNCells)
    new = keras.layers.RNN(
        keras.layers.StackedRNNCells(cells) if stacked else cells[0],
        activity_regularizer=layer.activity_regularizer,
        trainable=layer.trainable,
        dtype=layer.dtype_policy,
        name=layer.name,
        **{name: getattr(layer, name) for name in _LAYER_OPTIONS},
    )
    new.supports_masking = layer.supports_masking
    new.build_from_config(layer.get_build_config())
    states = zip(keras.tree.flatten(new.states), keras.tree.flatten(layer.states), strict=True)
    for state, former in states:
        if state is not None:  # of a stateful layer
            state.assign(former)
    return new


def states_of(
    layer: keras.layers.RNN, inputs: np.ndarray, initial_state: Any = None, **kwargs: Any
) -> np.ndarray:
    """Returns the states `(n, U)` that the recurrent kernel of a layer of one cell multiplies.

    Args:
        layer: A built recurrent layer whose first state is its output.
        inputs: Float array `(B, T, I)`.
        initial_state: The states `(B, U)`, as for the layer. Default: 0.
        **kwargs: Further arguments of a call of the layer, such as `mask`.
    """
    same = keras.layers.RNN(
        layer.cell, return_sequences=True, go_backwards=layer.go_backwards, dtype=layer.dtype_policy
    )
    outputs = ops.convert_to_numpy(same(inputs, initial_state=initial_state, **kwargs))
    first = np.zeros_like(outputs[:, 0])
    if initial_state is not None:
        first = keras.tree.flatten(initial_state)[0]
    before = np.concatenate([first[:, None], outputs[:, :-1]], axis=1)
    return before.reshape(-1, before.shape[-1])
