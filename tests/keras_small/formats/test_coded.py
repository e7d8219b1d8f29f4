"""`compress(coded=True)`: the bytes of a coded file, shared out among steps of whole kernels."""

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import layers
from slow_cases import slow_but

from keras_small import Data, Keeping, compress
from keras_small.coding import arrays
from keras_small.coding.files import load_model
from keras_small.formats import coded, dense
from keras_small.goals import smaller
from keras_small.planning import plan
from keras_small.planning.table_costs import measure_tables
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import row_weights, table_error
from keras_small.survey.moments import SecondMoment

pytest.importorskip("constriction")
RNG = np.random.default_rng(0)
ENTROPY_CODES = [method for method in arrays.METHODS if method != "lzma"]
# Some directions matter more than others, as for trained layers.
INPUTS = (RNG.normal(size=(400, 96)) * 0.95 ** np.arange(96)) @ RNG.normal(size=(96, 96))
INPUTS = INPUTS.astype("float32")


def dense_layer(inputs, units):
    layer = layers.Dense(units, kernel_initializer=keras.initializers.RandomNormal(seed=0))
    layer.build((None, inputs))
    return layer


def statistics_of(rows, times=1):
    moment = SecondMoment()
    for _ in range(times):
        moment.add(rows)
    return Statistics(second_moment=moment)


def error_by_columns(layer, new, moment):
    """`||C^{1/2} (W - W')|| / ||C^{1/2} W||` in float64."""
    old, near = (to_numpy(x.kernel).astype("float64") for x in (layer, new))
    squares = [sum(w @ moment @ w for w in matrix.T) for matrix in (near - old, old)]
    return (squares[0] / squares[1]) ** 0.5


@pytest.mark.parametrize("shape", [(96, 60), (40, 700)])
def test_candidates_have_the_bytes_and_the_error_of_their_layers(shape):
    layer = dense_layer(*shape)
    statistics = statistics_of(INPUTS[:, : shape[0]])
    moment = statistics.shrunk_moment
    found = coded.candidates(layer, statistics, None)
    assert len(found) > 10
    for candidate in found[::4]:
        new = candidate.finish(layer)
        assert new.bits == candidate.bits
        assert candidate.error == pytest.approx(error_by_columns(layer, new, moment), rel=0.05)
        numbers = new.stored_matrices()["kernel"]
        assert np.ptp(numbers.scales) == np.ptp(numbers.zeros) == 0
        kernel = len(arrays.encode(to_numpy(new.kernel_integers))[1])
        assert candidate.bytes - 4 * shape[1] == pytest.approx(kernel, rel=0.02, abs=60)


def test_a_kernel_takes_fewer_bytes_than_in_groups_of_the_same_error():
    layer, statistics = dense_layer(96, 200), statistics_of(INPUTS, times=20)  # hardly shrunk
    found = sorted(coded.candidates(layer, statistics, None), key=lambda c: c.error)
    for bits, most in ((4, 0.93), (3, 0.89), (2, 0.76)):
        new = dense.quantize(layer, bits, 32, statistics)
        error = error_by_columns(layer, new, statistics.shrunk_moment)
        size = sum(len(arrays.encode(to_numpy(weight))[1]) for weight in new.packed_weights)
        by_error = np.log([c.error for c in found]), [c.bytes - 4 * 200 for c in found]
        assert np.interp(np.log(error), *by_error) < most * size


@pytest.mark.parametrize("first", [None, 2])
def test_tables_in_principal_axes_have_the_bytes_and_the_error_of_their_layers(first, monkeypatch):
    monkeypatch.setattr(coded, "_TABLE_STEPS", coded._TABLE_STEPS[::6])
    table = layers.Embedding(3000, 24)
    table.build()
    mixed = RNG.normal(size=(3000, 24)) * 0.8 ** np.arange(24) @ RNG.normal(size=(24, 24))
    table.set_weights([mixed + 1])
    counts = np.floor(1e5 / np.arange(1, 3001) ** 1.5)
    statistics = Statistics(counts=counts, kept_ids=first)
    weights, rows = row_weights(table, statistics), to_numpy(table.embeddings).astype("float64")
    found = coded.candidates(table, statistics, None)
    by_format = {name: [] for name in ("dense", "low_rank")}
    for candidate in found:
        new = candidate.finish(candidate.make())
        order = np.arange(3000) if candidate.id_order() is None else candidate.id_order()
        assert (order[:2] == [0, 1]).all()
        assert (order[2:] == np.arange(2, 3000)).all() == (candidate.id_order() is None)
        near = to_numpy(new(np.argsort(order))).astype("float64")
        error = table_error(rows, near, weights)
        size = sum(len(arrays.encode(to_numpy(w), ENTROPY_CODES)[1]) for w in new.weights)
        by_format[candidate.format].append((size, error))
        if candidate.format == "low_rank":
            assert candidate.error == pytest.approx(error, rel=0.05)
            assert candidate.bytes == pytest.approx(size, rel=0.03, abs=700)
            steps = to_numpy(new.packed.stored_matrix().scales)[np.argsort(order), 0]
            assert steps[100] < steps[1000] < steps[2500] == steps[-1]
    sizes, errors = np.log(np.array(sorted(by_format["low_rank"]))).T
    for size, error in by_format["dense"]:
        if sizes[0] < np.log(size) < sizes[-1]:
            assert np.exp(np.interp(np.log(size), sizes, errors)) < 0.6 * error
    assert coded.candidates(table, Statistics(), None)[-1].format == "dense"


def test_axes_are_rotated_to_those_of_few_large_coordinates():
    mixing = np.linalg.qr(RNG.normal(size=(16, 16)))[0].astype("float32")
    few = RNG.exponential(size=(5000, 16)) * (RNG.random((5000, 16)) < 0.2)
    found = coded._rotation((few @ mixing).astype("float32"), coded._ROTATIONS)
    np.testing.assert_allclose(found.T @ found, np.eye(16), atol=1e-5)
    assert (mixing @ found).max(axis=1).min() > 0.95


@pytest.mark.parametrize("rank", [0, 3])
def test_tables_of_low_rank_have_the_error_of_their_layers(rank):
    table = layers.Embedding(200, 24)
    table.build()
    rows = RNG.normal(size=(200, rank)) @ RNG.normal(size=(rank, 24))
    table.set_weights([rows])
    statistics = Statistics(counts=RNG.integers(0, 9, 200))
    found = [c for c in coded.candidates(table, statistics, None) if c.format == "low_rank"]
    for candidate in found[::5]:
        near = to_numpy(candidate.finish(candidate.make())(np.arange(200)))
        error = table_error(rows, near, row_weights(table, statistics))
        assert candidate.error == pytest.approx(error, rel=0.01)
    assert len(found) > 10


def network():
    x = inputs = keras.Input((6,), dtype="int32")
    x = layers.LSTM(24)(layers.Embedding(300, 16)(x))
    return keras.Model(inputs, layers.Dense(4)(layers.Dense(400, "tanh")(x)))


def bits_of_vectors(model):
    vectors = [to_numpy(weight) for weight in model.weights if len(weight.shape) == 1]
    return [vector.view("uint32") for vector in vectors if vector.dtype == "float32"]


def test_the_file_is_as_small_as_asked(tmp_path, capsys):
    model, ids = network(), RNG.integers(0, 300, (64, 6))
    model.compile("adam", "mse", metrics=["mae"])
    result = compress(model, 6.0, data=ids, coded=True, verbose=0)
    size, report = result.save(tmp_path / "small.tnz"), result.report
    assert size == report.file_bytes
    assert report.bytes_before / 6.2 < size <= report.bytes_before / 6
    assert all((bits & 0xFFFF == 0).all() for bits in bits_of_vectors(result.model))
    assert "The bytes of a coded file (.tnz) were shared out" in str(report)
    assert report.error < 0.1
    again = load_model(tmp_path / "small.tnz")
    np.testing.assert_array_equal(to_numpy(again(ids)), to_numpy(result.model(ids)))
    loss = result.heal(ids)
    assert len(loss) <= 1
    assert all((bits & 0xFFFF == 0).all() for bits in bits_of_vectors(result.model))


def test_renumbered_ids_take_fewer_bytes(tmp_path):
    inputs = keras.Input((6,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(1000, 16)(inputs))
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile("adam", "mse")
    ids, sizes = RNG.integers(0, 1000, (500, 6)), {}
    result = compress(model, 12.0, data=Data(ids, kept_ids=1), coded=True, verbose=0)
    most, error = result.report.bytes_before / 12, result.report.error
    assert 0.9 * most < result.save(tmp_path / "small.tnz") <= most
    again = load_model(tmp_path / "small.tnz")
    before, after = to_numpy(model(ids)), to_numpy(again(result.renumbering(ids)))
    assert np.linalg.norm(after - before) / np.linalg.norm(before) < 1.1 * error
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), atol=2e-4)
    integers, order = to_numpy(again.layers[1].packed.weights[0]), result.renumbering.old_ids
    for name, rows in {"renumbered": np.arange(1000), "as before": np.argsort(order)}.items():
        sizes[name] = len(arrays.encode(integers[rows])[1])
    assert sizes["renumbered"] < 0.95 * sizes["as before"]
    kept = compress(model, 12.0, data=ids, coded=True, verbose=0)
    assert error < 0.95 * kept.report.error


def test_arguments_that_contradict_each_other():
    with pytest.raises(ValueError, match=r"coded without bits\. Received: coded=True, bits=4"):
        compress(network(), 4.0, bits=4, coded=True)
    with pytest.raises(ValueError, match=r"Expected formats among .* Received: .*'coded'"):
        compress(network(), 4.0, formats=("coded", "low_rank"))


def test_what_cannot_be_reached_is_told():
    with pytest.raises(ValueError, match="Expected a factor of at most"):
        compress(network(), 500.0, coded=True, verbose=0)


def test_stateful_layers_go_on_from_their_states(tmp_path):
    x = RNG.normal(size=(4, 3, 16)).astype("float32")
    cell = layers.LSTM(24, stateful=True)
    model = keras.Sequential([keras.Input((3, 16), batch_size=4), cell, layers.Dense(8)])
    result = compress(
        model, 3.0, data=Data(np.tile(x, (2, 1, 1)), batch_size=4), coded=True, verbose=0
    )
    result.save(tmp_path / "small.tnz")
    again = load_model(tmp_path / "small.tnz")
    for one in (result.model, again):
        one.layers[0].reset_states()
    outputs = [[to_numpy(one(x)) for _ in range(2)] for one in (result.model, again)]
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-6)
    assert np.abs(outputs[0][1] - outputs[0][0]).max() > 1e-3


def twice(inputs):
    return 2 * inputs


def test_classes_that_keras_does_not_know_are_named_when_loading(tmp_path):
    class Block(layers.Layer):
        units = 32

        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = layers.Dense(self.units, twice)

        def build(self, shape):
            self.inner.build(shape)

        def call(self, inputs):
            return self.inner(inputs)

    first = Block

    class Block(first):
        units = 64

    class Network(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.blocks, self.last = [Block(), Block()], layers.Dense(8, twice)

        def call(self, inputs):
            return self.last(self.blocks[1](self.blocks[0](inputs)))

    model = Network()
    model(INPUTS)
    functional = keras.Sequential([keras.Input(INPUTS.shape[1:]), Block(), layers.Dense(8, twice)])
    for kind in (model, functional):
        with keras.saving.custom_object_scope({"twice": twice}):
            result = compress(kind, 4.0, data=INPUTS, coded=True, verbose=0)
            result.save(tmp_path / "small.tnz", overwrite=True)
        with pytest.raises(ValueError, match="Could not locate"):
            load_model(tmp_path / "small.tnz")
        names = {"Network": Network, "Block": Block, "twice": twice}
        with keras.saving.custom_object_scope(names):
            again = load_model(tmp_path / "small.tnz", {"Block": first})
        np.testing.assert_array_equal(to_numpy(again(INPUTS)), to_numpy(result.model(INPUTS)))


def test_means_and_other_layers_are_not_rounded():
    x = (RNG.normal(size=(64, 32)) + 5000).astype("float32")
    normalization, kept = layers.BatchNormalization(), layers.Dense(8, name="kept")
    model = keras.Sequential([keras.Input((32,)), normalization, layers.Dense(64, "relu"), kept])
    normalization.moving_mean.assign(x.mean(axis=0))
    kept.bias.assign(RNG.normal(size=8))
    small = compress(model, 2.5, data=x, coded=True, filters="^(?!kept)", verbose=0)
    assert small.report.error < 0.5  # several, if the mean is rounded
    assert (bits_of_vectors(small.model.layers[1])[0] & 0xFFFF == 0).all()
    np.testing.assert_array_equal(to_numpy(small.model.layers[2].bias), to_numpy(kept.bias))


def test_a_file_larger_than_asked_is_told(monkeypatch):
    monkeypatch.setattr(smaller, "file_bytes", lambda *_: 100_000)
    result = compress(network(), 6.0, coded=True, verbose=0)
    assert "The coded file is larger than asked" in str(result)


@pytest.mark.parametrize("kept_ids", slow_but([None], [None, 2]))
def test_tables_cost_what_they_change_the_outputs(kept_ids, monkeypatch):
    table = layers.Embedding(300, 16)
    inputs = keras.Input((6,), dtype="int32")
    outputs = layers.Dense(4, "tanh")(layers.Flatten()(table(inputs)))
    model, ids = keras.Model(inputs, outputs), RNG.integers(0, 300, (64, 6))
    known = to_numpy(model(ids)).astype("float64")
    counts = np.bincount(ids.ravel(), minlength=300)
    found = coded.candidates(table, Statistics(counts=counts, kept_ids=kept_ids), 8)
    measured = measure_tables(model, table, ids, 0.5, found)
    np.testing.assert_array_equal(to_numpy(model(ids)), known)
    for name in ("dense", "low_rank"):
        group = sorted((c for c in measured if c.format == name), key=lambda c: c.error)
        costs = [c.cost for c in group]
        assert len(costs) > 10
        assert costs == sorted(costs)
        for candidate in (group[0], group[-1]):
            order = candidate.id_order()
            new_ids = ids if order is None else np.argsort(order)[ids]
            near = candidate.finish(candidate.make())(new_ids)
            changed = to_numpy(model.layers[-1](layers.Flatten()(near))).astype("float64")
            change = np.linalg.norm(changed - known) / np.linalg.norm(known)
            assert candidate.cost == pytest.approx(change / 0.5, rel=1e-4)
    used = []
    monkeypatch.setattr(plan, "measure_tables", lambda *given: used.append(given) or given[-1])
    compress(model, 2.0, data=ids, coded=True, verbose=0)
    assert used
    monkeypatch.setattr(np.linalg, "norm", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure_tables(model, table, ids, 0.5, found)
    np.testing.assert_array_equal(to_numpy(model(ids)), known)


def test_the_bound_of_a_metric_is_kept_with_all_vectors():
    model = keras.Sequential([keras.Input((96,)), layers.Dense(60), layers.Dense(4)])
    model.layers[1].bias.assign([1 / 3] * 4)

    def metric(small):  # falls with any change of the last bias
        return -float(np.abs(to_numpy(small.layers[1].bias) - np.float32(1 / 3)).max())

    result = compress(model, Keeping(metric, 1e-5), data=INPUTS[:64], coded=True, verbose=0)
    assert result.report.metric_after >= -1e-5
