"""Layers are observed on the inputs that they really get."""

import keras
import numpy as np
import pytest
from compressing import compress
from keras import ops

from keras_small import Data, Within
from keras_small.asked.data import CalibrationData
from keras_small.asked.errors import DataError
from keras_small.survey import calibration

RNG = np.random.default_rng(0)


def seen_by_embeddings(model, data):
    tables = {x.name: x for x in model.layers if isinstance(x, keras.layers.Embedding)}
    read = CalibrationData(Data(data), len(model.inputs))
    read.cut(512)
    return calibration.observe(model, tables, read.batches, read.arrays)[0]


def test_rows_are_chosen_from_all_of_the_data():
    rows = np.arange(5000)[:, None]
    read = CalibrationData(Data(rows, batch_size=300), 1)
    read.cut(512)
    assert [len(batch) for batch in read.batches] == [300, 300, 300, 124]
    chosen = np.concatenate(read.batches)[:, 0]
    assert (chosen[0], chosen[-1], set(np.diff(chosen))) == (0, 4999, {4, 5})
    np.testing.assert_array_equal(read.arrays, rows)


def test_reports_are_about_some_rows_of_large_arrays():
    few, many = np.arange(70), np.arange(9000)
    read = CalibrationData(Data(few), 1)
    read.cut(32)
    np.testing.assert_array_equal(np.concatenate(list(read.report_batches())), few)
    read = CalibrationData(Data(many), 1)
    read.cut(32)
    chosen = np.concatenate(list(read.report_batches()))
    assert {len(batch) for batch in read.report_batches()} == {32, 31}
    assert (len(chosen), set(np.diff(chosen))) == (1023, {8, 9})
    assert not set(chosen) & set(np.concatenate(read.batches))


@pytest.mark.parametrize("shared", [False, True])
def test_ids_are_counted_in_the_inputs_that_an_embedding_reads(shared):
    ids = {name: keras.Input((6,), dtype="int32", name=name) for name in ("source", "target")}
    tables = [keras.layers.Embedding(50, 4, name=f"{name}_table") for name in ids]
    tables = tables[:1] * 2 if shared else tables
    rows = [table(x) for table, x in zip(tables, ids.values(), strict=True)]
    model = keras.Model(ids, keras.layers.Add()(rows))
    ends = {"source": (0, 10), "target": (40, 50)}
    data = {name: RNG.integers(*x, (2000, 6)).astype("int32") for name, x in ends.items()}
    statistics = seen_by_embeddings(model, data)
    read = {"source": list(data.values())} if shared else data
    for name, arrays in read.items():
        counts = np.bincount(np.ravel(arrays), minlength=50)
        np.testing.assert_array_equal(statistics[f"{name}_table"].counts, counts)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_that_reaches_a_layer_is_reported(value):
    inputs = keras.Input((8,))
    rows = np.ones((4, 8), "float32")
    rows[2, 3] = value
    plain = keras.Model(inputs, keras.layers.Dense(8, name="dense")(inputs))
    with pytest.raises(ValueError, match="NaN inputs of the layer dense"):
        compress(plain, 1.5, data=rows)
    known = keras.ops.where(keras.ops.isfinite(inputs), inputs, 0.0)
    compress(keras.Model(inputs, keras.layers.Dense(8)(known)), Within(0.5), data=rows)


def test_errors_of_the_data_are_one_sentence():
    def watch(path, call, outputs):
        raise DataError("Expected ids from 0 to 5. Received: 6")

    layer = keras.layers.Dense(3)
    wanted = pytest.raises(DataError, match=r"^Expected ids from 0 to 5\. Received: 6$")
    with wanted, calibration.watch_calls({"dense": layer}, watch):
        layer(np.ones((2, 4), "float32"))
    assert layer(np.ones((2, 4), "float32")).shape == (2, 3)


def test_equal_rows_of_a_call_count_once():
    rows = RNG.normal(size=(30, 8)).astype("float32")
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(4, name="dense")(inputs))

    def seen(*batches):
        notes, _ = calibration.observe(model, {"dense": model.layers[1]}, list(batches))
        moment = notes["dense"].second_moment
        return moment.rows, moment._distinct

    assert seen(rows) == (30, 30)
    padded = np.concatenate([rows, np.zeros((70, 8), "float32"), rows[:5]])
    assert seen(padded) == (105, 31)
    assert seen(rows, rows) == (60, 60)
    # Entries in another order are another row.
    assert seen(np.stack([rows[0], rows[0, ::-1]])) == (2, 2)


@keras.saving.register_keras_serializable(package="tests")
class Flat(keras.layers.Layer):
    """Makes one sample of each position, whose number is known only if `known`."""

    def __init__(self, known=True, **kwargs):
        super().__init__(**kwargs)
        self.known = known
        self.dense = keras.layers.Dense(4, name="dense")

    def build(self, input_shape):
        self.dense.build((None, 8))

    def call(self, inputs):
        rows = keras.ops.reshape(inputs, (-1, 8))
        if not self.known and not isinstance(inputs, keras.KerasTensor):
            (places,) = keras.ops.nonzero(keras.ops.max(rows, axis=-1) > -1e9)
            rows = keras.ops.take(rows, places, axis=0)
        outputs = self.dense(rows)
        return keras.ops.reshape(outputs, (-1, 20, 4))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 20, 4)


@pytest.mark.parametrize("layer", [keras.layers.Dense(4), Flat(), Flat(known=False)])
def test_few_rows_are_returned_for_each_sample_however_they_are_shaped(layer, monkeypatch):
    monkeypatch.setattr(calibration, "_RETURNED_ENTRIES", 800)
    inputs = keras.Input((20, 8))
    model = keras.Model(inputs, layer(inputs))
    dense = getattr(layer, "dense", layer)
    batches = [RNG.normal(size=(30, 20, 8)).astype("float32") for _ in range(10)]
    statistics, _ = calibration.observe(model, {"dense": dense}, batches)
    note = statistics["dense"]
    # 100 rows of 8 entries: 4 positions of each of 30 samples.
    assert (note.failure, note.second_moment.rows) == ("", 10 * 4 * 30)
    rows = np.concatenate(batches).reshape(-1, 8)
    np.testing.assert_allclose(note.moment, rows.T @ rows / len(rows), atol=0.15)


def test_few_rows_of_logits_are_returned(monkeypatch):
    monkeypatch.setattr(calibration, "_RETURNED_ENTRIES", 800)
    table = keras.layers.ReversibleEmbedding(50, 8, name="table")
    ids = keras.Input((20,), dtype="int32")
    model = keras.Model(ids, table(table(ids), reverse=True))
    batch = RNG.integers(0, 50, (30, 20)).astype("int32")
    note = calibration.observe(model, {"table": table}, [batch])[0]["table"]
    assert note.second_moment.rows == 4 * 30
    assert note.counts.sum() == 600


class Batches:
    """An iterable of batches that is as long as it says."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows) // 32

    def __iter__(self):
        return (self.rows[start : start + 32] for start in range(0, len(self.rows), 32))


@pytest.mark.parametrize("row", [0, 700, 1900])
def test_ids_that_a_table_lacks_are_named_wherever_they_are(row):
    if keras.backend.backend() == "jax" and row == 1900:
        pytest.skip("JAX looks up another row")
    parts = [keras.layers.Embedding(50, 16, name="words"), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *parts, keras.layers.Dense(3)])
    ids = RNG.integers(1, 50, (1920, 6)).astype("int32")
    ids[row, 2] = 50
    with pytest.raises(ValueError, match=r"ids from 0 to 49 for words. Received: .* to 50$"):
        compress(model, 2.0, data=Batches(ids), verbose=0)
    assert "call" not in vars(model.layers[0])


def test_a_layer_that_cannot_be_watched_ends_with_its_activation():
    def watch(path, call, outputs):
        assert ops.convert_to_numpy(outputs).min() < 0
        raise TypeError("no reason")

    layer = keras.layers.Dense(3, activation="relu")
    rows = RNG.normal(size=(8, 4)).astype("float32")
    expected = ops.convert_to_numpy(layer(rows))
    with calibration.watch_calls({"dense": layer}, watch, before_activation=True) as failures:
        outputs = ops.convert_to_numpy(layer(rows))
    np.testing.assert_array_equal(outputs, expected)
    assert "no reason" in failures["dense"]
