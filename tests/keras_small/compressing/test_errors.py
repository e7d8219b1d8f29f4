"""The reported errors are those by which the candidates were chosen."""

import keras
import numpy as np
import pytest
from compressing import compress
from conformance import assert_same_arrays, relative_error, to_numpy

from keras_small import Data, Smaller, Within
from keras_small.survey import errors
from keras_small.survey.calibration import Statistics
from keras_small.survey.watching import Call
from keras_tnattn.layers import LowRankEmbedding

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("bits", [32, 8])
def test_the_row_of_padding_does_not_count(bits):
    # The row of padding is large and the data are full of it, but it is masked.
    model = keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            keras.layers.Embedding(200, 16, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    table = RNG.normal(size=(200, 4)) @ RNG.normal(size=(4, 16))
    table += 0.01 * RNG.normal(size=table.shape)
    table[0] = 10 * RNG.normal(size=16)
    model.layers[0].set_weights([table.astype("float32")])
    ids = RNG.integers(1, 200, (64, 20)).astype("int32")
    ids[:, 8:] = 0
    report = compress(model, Within(0.05), data=ids, formats="low_rank", bits=bits).report
    (row,) = report.layers
    assert row.format == "low_rank"
    assert 0 < row.error <= 0.05
    assert any(np.isclose(row.error, error, rtol=0.05) for _, error, _ in row.curve)


@pytest.mark.parametrize(
    "activation", ["softmax", keras.layers.LeakyReLU(0.2)], ids=["a function", "a layer"]
)
def test_errors_of_kernels_are_those_before_the_activation(activation):
    dense = keras.layers.Dense(48, activation)
    model = keras.Sequential([keras.Input((64,)), dense])
    dense.kernel.assign(RNG.normal(size=(64, 4)) @ RNG.normal(size=(4, 48)))
    rows = RNG.normal(size=(32, 64)).astype("float32")
    result = compress(model, Within(0.01), data=rows, formats="low_rank")
    (row,) = [row for row in result.report.layers if row.path == dense.name]
    assert row.ranks == (4,)
    assert row.error < 1e-4
    assert dense.activation is activation or dense.activation is keras.activations.softmax


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": "["}, r"regular expressions.*filters='\['"),
        ({"filters": ["a", 3]}, "regular expressions"),
        ({"filters": 3}, "regular expressions"),
        ({"goal": Smaller(1, metric=lambda model: None)}, r"metric\(model\)=None"),
        ({"filters": "zzz"}, "select a layer.*filters='zzz'"),
    ],
)
def test_arguments_out_of_range(options, message):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    with pytest.raises(ValueError, match=message):
        compress(model, **{"goal": 2, "data": np.ones((4, 64), "float32"), **options})


def test_numbers_of_healing_out_of_range():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    result = compress(model, 2)
    before = result.model.get_weights()
    for name, values in (("epochs", (-1, 1.5)), ("batch_size", (0,)), ("learning_rate", (-1.0,))):
        for value in values:
            with pytest.raises(ValueError, match=f"{name}={value}"):
                result.heal(np.ones((4, 64), "float32"), **{name: value})
    assert_same_arrays(before, result.model.get_weights())
    model.trainable = False
    with pytest.raises(ValueError, match="trainable weights"):
        compress(model, bits=8).heal(np.ones((4, 64), "float32"))


def test_large_tables_are_measured_in_parts(monkeypatch):
    layer = keras.layers.Embedding(250, 12)
    layer.build()
    weights = RNG.uniform(0, 9, 250).astype(int)
    small = LowRankEmbedding.from_embedding(layer, rank=5)
    order = RNG.permutation(250)
    whole = errors.layer_error(layer, small, Statistics(counts=weights), order)
    factors = errors.factors_of(layer, Statistics(counts=weights))
    monkeypatch.setattr(errors, "_ROWS_AT_ONCE", 100)
    monkeypatch.setattr(errors, "_IDS_AT_ONCE", 30)
    parts = errors.layer_error(layer, small, Statistics(counts=weights), order)
    assert parts == pytest.approx(whole, rel=1e-5)
    table, approximation = (to_numpy(x(np.arange(250))).astype("float64") for x in (layer, small))
    by_hand = errors.table_error(
        table,
        approximation[np.argsort(order)],
        errors.row_weights(layer, Statistics(counts=weights)),
    )
    assert parts == pytest.approx(by_hand, rel=1e-5)
    again = errors.factors_of(layer, Statistics(counts=weights))
    np.testing.assert_allclose(again.squares, factors.squares, rtol=1e-4)
    np.testing.assert_allclose(again.coordinates @ again.basis, table, atol=1e-5)
    np.testing.assert_allclose(table @ again.inverse, again.coordinates, atol=1e-5)


@pytest.mark.parametrize("kind", [keras.layers.LSTM, keras.layers.GRU])
def test_stateful_layers_begin_with_the_states_of_the_original(kind):
    rows = RNG.normal(size=(4, 6, 16)).astype("float32")
    layers = [kind(32, stateful=True), keras.layers.Dense(8)]
    model = keras.Sequential([keras.Input((6, 16), batch_size=4), *layers])
    for _ in range(3):
        model(3 * rows)
    before = [to_numpy(state) for state in model.layers[0].states]
    data = Data(np.tile(rows, (4, 1, 1)), batch_size=4)
    result = compress(model, bits=8, data=data, verbose=0)
    assert result.report.error < 0.01
    for state, former in zip(result.model.layers[0].states, before, strict=True):
        np.testing.assert_array_equal(to_numpy(state), former)
    assert relative_error(to_numpy(result.model(rows)), to_numpy(model(rows))) < 0.01


def test_outputs_are_those_of_a_call_with_all_its_arguments():
    layer = keras.layers.LSTM(3)
    inputs = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    call = Call((inputs,), {"mask": mask, "training": False})
    (outputs,) = errors._float_outputs(layer, call)
    expected = to_numpy(layer(inputs, mask=mask))
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    assert not np.allclose(outputs, to_numpy(layer(inputs)), atol=1e-3)
