"""Cells of low rank are the cells of Keras with kernels that are products."""

import keras
import numpy as np
import pytest
from conformance import relative_error, saved_and_loaded, to_numpy
from slow_cases import slow_but

from keras_small.storage.low_rank_cells import LOW_RANK_CELLS
from keras_small.storage.quantized import quantized_layer

RNG = np.random.default_rng(0)
L = keras.layers
CELLS = {"simple_rnn": L.SimpleRNNCell, "lstm": L.LSTMCell, "gru": L.GRUCell}
INPUTS = RNG.normal(size=(3, 6, 20)).astype("float32")


def trained(name, **options):
    cell = CELLS[name](24, **options)
    cell.build((None, 20))
    for weight in cell.weights:
        weight.assign(RNG.normal(size=weight.shape) / 4)
    return cell


def outputs_of(cell):
    return to_numpy(L.RNN(cell, return_sequences=True)(INPUTS))


@pytest.mark.parametrize("name", CELLS)
def test_full_rank_is_the_cell(name):
    cell = trained(name)
    new = LOW_RANK_CELLS[type(cell)].from_cell(cell, (99, 99))
    assert (new.ranks, new.name) == ((20, 24), cell.name)
    np.testing.assert_allclose(outputs_of(new), outputs_of(cell), atol=1e-4)
    assert isinstance(new, type(cell))


@pytest.mark.parametrize("name", slow_but(["gru"], CELLS))
def test_is_the_cell_with_the_products(name, tmp_path):
    cell = trained(name, use_bias=name != "gru")
    new = LOW_RANK_CELLS[type(cell)].from_cell(cell, (3, 5))
    same = trained(name, use_bias=name != "gru")
    kernels = [to_numpy(new.kernel), to_numpy(new.recurrent_kernel)]
    assert [np.linalg.matrix_rank(k) for k in kernels] == [3, 5]
    same.set_weights([*kernels, *cell.get_weights()[2:]])
    np.testing.assert_allclose(outputs_of(new), outputs_of(same), atol=1e-5)
    # In a bidirectional layer of two of them, saved, with integers as well.
    for bits in (None, 4):
        make = (lambda: new) if bits is None else (lambda: quantized_layer(new, 4))
        source = keras.Input((None, 20))
        both = L.RNN(make(), return_sequences=True)(source)
        model = keras.Model(source, both)
        saved_and_loaded(model, INPUTS, tmp_path)
        error = relative_error(outputs_of(same), to_numpy(model(INPUTS)))
        assert error < (1e-5 if bits is None else 0.2)


def test_training_moves_all_factors():
    cell = LOW_RANK_CELLS[L.LSTMCell](24, ranks=(3, 5), dropout=0.2)
    model = keras.Sequential([keras.Input((6, 20)), L.RNN(cell), L.Dense(1)])
    model.compile("adam", "mse")
    before = cell.get_weights()
    model.fit(INPUTS, np.ones((3, 1)), epochs=2, verbose=0)
    assert len(before) == 5
    for old, new in zip(before, cell.get_weights(), strict=True):
        assert not np.array_equal(old, new)
    # The kernel has the variance that Keras gives it.
    fresh = LOW_RANK_CELLS[L.LSTMCell](200, ranks=(50, 50))
    fresh.build((None, 300))
    assert 0.7 < to_numpy(fresh.kernel).var() * (300 + 800) / 2 < 1.4


def test_moments_reduce_the_error_of_the_products():
    cell = trained("lstm")
    inputs = RNG.normal(size=(200, 4)) @ RNG.normal(size=(4, 20))
    moment = inputs.T @ inputs / 200
    errors = []
    for moments in ((None, None), (moment, None)):
        new = LOW_RANK_CELLS[L.LSTMCell].from_cell(cell, (3, 5), moments)
        errors.append(np.linalg.norm(inputs @ (to_numpy(new.kernel) - to_numpy(cell.kernel))))
    assert errors[1] < 0.7 * errors[0]


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match="ranks=3"):
        LOW_RANK_CELLS[L.LSTMCell](24, ranks=3)
    with pytest.raises(ValueError, match="ranks=0"):
        LOW_RANK_CELLS[L.LSTMCell](24, ranks=(0, 3))
