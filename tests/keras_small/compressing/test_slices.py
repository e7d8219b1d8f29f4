"""A model runs on as many rows at once as its memory allows."""

import keras
import numpy as np
import pytest
from compressing import compress

from keras_small import Data
from keras_small.asked.data import CalibrationData
from keras_small.asked.inputs import fixed_rows
from keras_small.survey import calibration, running, sensitivity
from keras_small.survey.inventory import Inventory

RNG = np.random.default_rng(0)


def cut(model, rows, **options):
    data = CalibrationData(Data(rows, **options), 1, fixed_rows(model))
    running.cut_to_memory(data, Inventory.of(model))
    return data


def test_the_outputs_of_all_layers_stay_within_the_bound(monkeypatch):
    inputs = keras.Input((10,))
    model = keras.Model(inputs, keras.layers.Dense(90)(keras.layers.Dense(110)(inputs)))
    monkeypatch.setattr(running, "_MAXIMUM_BYTES", 10_000)  # of a row 4 x (110 + 90) = 800
    rows = np.ones((64, 10), "float32")
    data = cut(model, rows)
    assert {len(batch) for batch in data.small_batches} == {12, 4}
    assert sum(map(len, data.batches)) == sum(map(len, data.small_batches)) == 64
    assert {len(batch) for batch in cut(model, rows, batch_size=4).small_batches} == {4}


@pytest.mark.parametrize(
    ("rows", "maximum_rows", "compiled"),
    [(1000, 256, 50), (64, 256, 12), (120, 256, 15), (1000, 20, 20)],
)
def test_compiled_runs_have_a_bound_of_their_own(rows, maximum_rows, compiled, monkeypatch):
    inputs = keras.Input((10,))
    model = keras.Model(inputs, keras.layers.Dense(90)(keras.layers.Dense(110)(inputs)))
    monkeypatch.setattr(running, "_MAXIMUM_BYTES", 10_000)  # 12 rows, and 50 if compiled
    monkeypatch.setattr(running, "_MAXIMUM_ROWS", maximum_rows)
    data = cut(model, np.ones((rows, 10), "float32"))
    # Of fewer than 8 runs none is compiled.
    of_torch = keras.backend.backend() == "torch"
    assert len(data.batches[0]) == (12 if of_torch else compiled)
    assert len(data.small_batches[0]) == 12


def test_a_row_beyond_the_bound_runs_alone(monkeypatch):
    inputs = keras.Input((10,))
    model = keras.Model(inputs, keras.layers.Dense(100)(inputs))
    monkeypatch.setattr(running, "_MAXIMUM_BYTES", 90)
    data = cut(model, np.ones((64, 10), "float32"))
    assert {len(batch) for batch in data.batches} == {1}


def test_a_model_of_a_fixed_number_of_rows_gets_them():
    inputs = keras.Input((10,), batch_size=4)
    states = keras.layers.GRU(8, stateful=True, return_sequences=True)(
        keras.layers.Reshape((5, 2))(inputs)
    )
    model = keras.Model(inputs, keras.layers.Dense(32)(states))
    rows = RNG.normal(size=(16, 10)).astype("float32")
    assert {len(batch) for batch in cut(model, rows).batches} == {4}
    assert compress(model, bits=8, data=rows, verbose=0).report.rows == 16


def test_layers_that_read_one_tensor_share_its_moment():
    inputs = keras.Input((3, 8))
    layers = {name: keras.layers.Dense(4, name=name) for name in ("one", "two", "third")}
    first = layers["one"](inputs)
    outputs = [first, layers["two"](inputs), layers["third"](keras.ops.tanh(inputs))]
    model = keras.Model(inputs, outputs)
    rows = RNG.normal(size=(20, 3, 8)).astype("float32")
    notes, _ = calibration.observe(model, layers, [rows])
    assert notes["one"].second_moment is notes["two"].second_moment
    flat = rows.reshape(-1, 8)
    np.testing.assert_allclose(notes["two"].moment, flat.T @ flat / 60, atol=1e-5)
    assert notes["two"].second_moment.rows == 60
    flat = np.tanh(flat)
    np.testing.assert_allclose(notes["third"].moment, flat.T @ flat / 60, atol=1e-5)


def test_noise_finds_what_gradients_miss():
    # The gradient of a sign is 0, but noise changes some of them.
    inputs = keras.Input((16,))
    layers = {name: keras.layers.Dense(64, name=name) for name in ("signs", "floats")}
    signs = keras.ops.sign(layers["signs"](inputs))
    model = keras.Model(inputs, keras.layers.Concatenate()([signs, layers["floats"](inputs)]))
    rows = RNG.normal(size=(200, 16)).astype("float32")
    data = cut(model, rows)
    notes, outputs = calibration.observe(model, layers, data.batches)
    sensitivity.measure_sensitivity(model, layers, data, notes, outputs)
    assert notes["signs"].sensitivity > 0.5 * notes["floats"].sensitivity


def test_without_gradients_noise_is_added_to_each_layer(caplog):
    class InNumPy(keras.layers.Layer):
        def call(self, inputs):
            return keras.ops.convert_to_tensor(keras.ops.convert_to_numpy(inputs))

        def compute_output_shape(self, shape):
            return shape

    dense = keras.layers.Dense(4)
    own = InNumPy()

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = dense
            self.own = own

        def call(self, inputs):
            return self.own(self.dense(inputs))

    model = Model()
    rows = RNG.normal(size=(40, 6)).astype("float32")
    model(rows)
    notes = {"dense": calibration.Statistics()}
    data = CalibrationData(Data(rows), 1)
    data.cut(40)
    caplog.set_level("INFO", "keras_small")
    outputs = [keras.ops.convert_to_numpy(model(rows))]
    sensitivity.measure_sensitivity(model, {"dense": dense}, data, notes, [outputs])
    assert "no gradients" in caplog.text
    assert notes["dense"].sensitivity == pytest.approx(1, rel=0.3)
    assert notes["dense"].sensitivity != 1


def test_batches_of_a_fixed_number_of_rows_are_whole():
    inputs = keras.Input((10,), batch_size=4)
    model = keras.Model(inputs, keras.layers.Dense(32)(inputs))
    rows = RNG.normal(size=(18, 10)).astype("float32")
    assert {len(batch) for batch in cut(model, rows).report_batches()} == {4}
    assert compress(model, bits=8, data=rows, verbose=0).report.rows == 16
    with pytest.raises(ValueError, match=r"at least the 4 rows.*3 rows"):
        cut(model, rows[:3])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of graphs of TensorFlow")
def test_what_only_single_runs_know_is_observed_step_by_step():
    import tensorflow as tf

    class Chosen(keras.layers.Layer):
        def call(self, inputs):
            return tf.boolean_mask(inputs, inputs[0, :, 0] > -9, axis=1)

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((12, 4))
    convolution = keras.layers.Conv1D(16, 3)
    model = keras.Model(inputs, convolution(Chosen()(inputs)))
    batches = [RNG.normal(size=(2, 12, 4)).astype("float32") for _ in range(20)]
    notes, _ = calibration.observe(model, {"convolution": convolution}, batches)
    assert notes["convolution"].failure == ""
    assert notes["convolution"].moment.shape == (12, 12)
