"""A recurrent layer on other cells goes on as before."""

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, to_numpy

from keras_small.storage.recurrent import cells_of, on_other_cells, states_of

RNG = np.random.default_rng(0)
L = keras.layers
INPUTS = RNG.normal(size=(3, 6, 5)).astype("float32")
LAYERS = {
    "simple_rnn": lambda: L.SimpleRNN(4, return_sequences=True),
    "lstm": lambda: L.LSTM(4, return_state=True, go_backwards=True),
    "gru": lambda: L.GRU(4, return_sequences=True, unroll=True, reset_after=False),
    "rnn": lambda: L.RNN(L.GRUCell(4)),
    "zeros": lambda: L.RNN(L.GRUCell(4), return_sequences=True, zero_output_for_mask=True),
    "stacked": lambda: L.RNN([L.LSTMCell(4), L.SimpleRNNCell(3)]),
}


def copied(cell):
    new = type(cell).from_config(cell.get_config())
    new.build_from_config(cell.get_build_config())
    new.set_weights(cell.get_weights())
    return new


@pytest.mark.parametrize("name", LAYERS)
def test_equal_cells_give_equal_outputs(name):
    layer = LAYERS[name]()
    expected = keras.tree.flatten(to_numpy(layer(INPUTS)))
    new = on_other_cells(layer, copied)
    assert type(new) is L.RNN
    assert new.name == layer.name
    assert not {id(c) for c in cells_of(new)} & {id(c) for c in cells_of(layer)}
    outputs = keras.tree.flatten(to_numpy(new(INPUTS)))
    assert_same_arrays(outputs, expected, atol=1e-6)
    mask = np.array([[True] * 4 + [False] * 2] * 3)
    old, new = (keras.tree.flatten(to_numpy(x(INPUTS, mask=mask)))[0] for x in (layer, new))
    np.testing.assert_allclose(new, old, atol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
def test_states_are_those_of_the_steps(backwards):
    layer = L.SimpleRNN(4, go_backwards=backwards)
    layer.build((None, None, 5))
    kernel, recurrent, bias = layer.get_weights()
    states, rows = np.zeros((3, 4)), []
    for step in range(6)[:: -1 if backwards else 1]:
        rows.append(states)
        states = np.tanh(INPUTS[:, step] @ kernel + states @ recurrent + bias)
    expected = np.stack(rows, axis=1).reshape(-1, 4)
    np.testing.assert_allclose(states_of(layer, INPUTS), expected, atol=1e-5)
