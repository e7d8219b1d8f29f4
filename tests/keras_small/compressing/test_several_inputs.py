"""Layers and models of several inputs and outputs: states, masks, lists, dicts, nested ones."""

import functools
import itertools

import keras
import numpy as np
import pytest
from compressing import Holder, compress, error_of
from conformance import saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_small import Data, Within
from keras_small.storage.sizes import byte_count

L = keras.layers
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(8, 5, 12)).astype("float32")
STATE = RNG.normal(size=(8, 16)).astype("float32")
IDS = RNG.integers(0, 40, (8, 5)).astype("int32")


@keras.saving.register_keras_serializable(package="test_several_inputs")
class Cell(L.Layer):
    """A cell of two dense layers, which are replaced inside it."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units
        self.rows, self.state = L.Dense(units), L.Dense(units)

    def build(self, input_shape):
        self.rows.build(input_shape)
        self.state.build((None, self.units))
        self.built = True

    def call(self, inputs, states, training=False):
        state = ops.tanh(self.rows(inputs) + self.state(states[0]))
        return state, [state]


@keras.saving.register_keras_serializable(package="test_several_inputs")
class Mapped(L.Layer):
    """Calls a layer in a compiled loop, where nobody can look at its inputs."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(units)

    def build(self, input_shape):
        self.dense.build((None, input_shape[-1]))
        self.built = True

    def call(self, inputs):
        return ops.vectorized_map(lambda row: self.dense(row[None])[0], inputs)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.dense.units)


def states_returned():
    inputs = keras.Input((5, 12))
    outputs, state = L.GRU(16, return_state=True, name="gru")(inputs)
    return keras.Model(inputs, L.Dense(3, name="dense")(outputs + state)), ROWS


def states_given():
    inputs, state = keras.Input((5, 12)), keras.Input((16,))
    outputs = L.GRU(16, name="gru")(inputs, initial_state=[state])
    return keras.Model([inputs, state], L.Dense(3, name="dense")(outputs)), [ROWS, STATE]


def stacked():
    inputs, states = keras.Input((5, 12)), [keras.Input((16,)) for _ in range(3)]
    cells = [L.LSTMCell(16), L.GRUCell(16)]
    layer = L.RNN(cells, return_state=True, return_sequences=True, name="stacked")
    outputs, *ends = layer(inputs, initial_state=[states[:2], states[2]])
    heads = {"rows": L.Dense(8)(outputs), "states": keras.tree.flatten(ends)}
    return keras.Model([inputs, *states], heads), [ROWS, STATE, STATE, STATE]


def bidirectional():
    inputs, states = keras.Input((5, 12)), [keras.Input((16,)) for _ in range(4)]
    outputs = L.Bidirectional(L.LSTM(16, return_state=True))(inputs, initial_state=states)
    return keras.Model([inputs, *states], outputs), [ROWS, *[STATE] * 4]


def by_keyword():
    inputs = keras.Input((5, 12))
    x = L.LSTM(16, return_sequences=True, name="lstm")(sequences=inputs)
    return keras.Model(inputs, L.Dense(16)(inputs=x)), ROWS


def of_own_cell():
    inputs = keras.Input((5, 12))
    outputs, _ = L.RNN(Cell(16), return_state=True)(inputs)
    return keras.Model(inputs, L.Dense(24)(outputs)), ROWS


def sequence_to_sequence():
    source, target = (keras.Input((5,), dtype="int32", name=name) for name in ("a", "b"))
    x, y = (L.Embedding(40, 12, mask_zero=True)(ids) for ids in (source, target))
    _, *states = L.LSTM(16, return_state=True)(x)
    decoder = L.LSTM(16, return_sequences=True, return_state=True)
    y, *_ = decoder(y, initial_state=states)
    return keras.Model([source, target], L.TimeDistributed(L.Dense(40, "softmax"))(y)), [IDS, IDS]


def nested():
    inputs = {"x": keras.Input((12,), name="x"), "y": keras.Input((12,), name="y")}
    outputs = {"u": L.Dense(12)(inputs["x"]), "v": (L.Dense(12)(inputs["y"]), inputs["x"])}
    return keras.Model(inputs, outputs), {"x": ROWS[:, 0], "y": ROWS[:, 1]}


MODELS = [states_returned, states_given, stacked, bidirectional, by_keyword, of_own_cell]
MODELS += [sequence_to_sequence, nested]
FAST = [bidirectional, by_keyword, of_own_cell, nested]


@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
@pytest.mark.parametrize(
    ("make", "bits"),
    slow_but(
        [(states_given, None), (nested, None), *((make, 4) for make in FAST)],
        itertools.product(MODELS, [None, 32, 4]),
    ),
)
def test_every_model_goes_through(make, bits, tmp_path):
    model, data = make()
    batches = Data(data, batch_size=8)
    for rows in (None, batches) if bits is None else (batches,):
        result = compress(model, Within(0.9), data=rows, bits=bits, verbose=0)
        assert result.report.ratio > 1
        reasons = {row.reason for row in result.report.layers}
        # JAX compiles the loop in which a cell calls its layers.
        in_a_loop = make is of_own_cell and keras.backend.backend() == "jax"
        assert in_a_loop == any("cannot be watched" in reason for reason in reasons)
    assert result.report.error == pytest.approx(error_of(model, result.model, data), rel=1e-3)
    saved_and_loaded(result.model, data, tmp_path)


@pytest.mark.parametrize("make", [states_returned, states_given])
def test_the_error_is_that_of_all_outputs_with_the_given_states(make):
    model, data = make()
    result = compress(model, Within(0.9), data=Data(data, batch_size=8), verbose=0)
    arguments = {"initial_state": [STATE]} if make is states_given else {}
    cells = [functools.partial(m.get_layer("gru"), **arguments) for m in (model, result.model)]
    row = next(row for row in result.report.layers if row.path == "gru")
    assert row.format == "low_rank"
    assert row.error == pytest.approx(error_of(*cells, ROWS), rel=1e-4)


def test_a_layer_that_cannot_be_watched_stays():
    model = keras.Sequential([keras.Input((12,)), Mapped(16), L.Dense(16)])
    result = compress(model, 1.2, data=ROWS[:, 0], verbose=0)
    (reason,) = [row.reason for row in result.report.layers if row.path.endswith("mapped/dense")]
    assert reason.startswith("cannot be watched or replaced (")


def test_a_layer_whose_candidates_fail_stays(monkeypatch):
    def fail(layer, *_):
        raise ArithmeticError("no singular values")

    monkeypatch.setattr("keras_small.formats.low_rank.candidates", fail)
    report = compress(keras.Sequential([keras.Input((12,)), L.Dense(16)]), verbose=0).report
    assert report.layers[0].reason.endswith("(ArithmeticError: no singular values)")


EQUATIONS = [
    ("bsd,ckdh->cbskh", (2, 5, 3, 8), (2, 5, 12), None),
    ("bsd,dkh->kbsh", (3, 5, 8), (3, 5, 12), None),
    ("bsd,dkh->bksh", (6, 5, 8), (None, 5, 12), "kh"),
    ("bsde,dekh->bshk", (5, 6, 8), (None, 5, 4, 3), "h"),
    ("...d,dkh->...hk", (6, 8), (None, 5, 12), "hk"),
    ("bd...,dkh->bhk...", (6, 8), (None, 12, 5), "h"),
    ("abc,cd->ad", (16,), (None, 5, 12), None),
]


@pytest.mark.parametrize(("equation", "sizes", "shape", "bias_axes"), EQUATIONS)
def test_einsums_with_any_order_of_axes(equation, sizes, shape, bias_axes, tmp_path):
    inputs = keras.Input(batch_shape=shape)
    layer = L.EinsumDense(equation, sizes, bias_axes=bias_axes, bias_initializer="normal")
    model = keras.Model(inputs, layer(inputs))
    rows = RNG.normal(size=(shape[0] or 8, *shape[1:])).astype("float32")
    small = compress(model, Within(0.9), data=Data(rows, batch_size=shape[0] or 8), verbose=0).model
    assert type(small.layers[1]).__name__ == "LowRankEinsumDense"
    left, right = (to_numpy(part.kernel) for part in (small.layers[1].inner, small.layers[1].outer))
    labels = equation.split(",")[1].split("->")[0]
    summed = "".join(c for c in labels if c in equation.split(",")[0])
    new = "".join(c for c in labels if c not in summed)
    kernel = np.einsum(f"{summed}z,z{new}->{labels}", left, right)
    expected = np.einsum(equation, rows, kernel)
    if bias_axes:
        expected = expected + to_numpy(small.layers[1].outer.bias)
    np.testing.assert_allclose(to_numpy(small(rows)), expected, rtol=1e-4, atol=1e-5)
    saved_and_loaded(small, rows, tmp_path)


@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"goal": Within(0.5)}])
def test_a_result_is_never_larger_than_the_model(options):
    shared, inputs = L.Dense(12), keras.Input((12,))
    x = Holder(shared)(Holder(shared)(inputs))
    model = keras.Model(inputs, L.Dense(2)(x))
    result = compress(model, data=ROWS[:, 0], verbose=0, **options)
    assert result.model is model
    assert result.report.bytes_after == byte_count(model)
    assert {row.format for row in result.report.layers} == {"kept"}
    assert "The result is the model itself" in str(result.report)
    with pytest.raises(ValueError, match="became smaller"):
        result.heal(ROWS[:, 0])
