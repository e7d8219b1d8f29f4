"""How sensitive a model's outputs are to noise on a layer."""

import tracemalloc

import keras
import numpy as np
import pytest
from compressing import compress, error_of
from conformance import to_numpy

from keras_small.asked.batches import outputs_of
from keras_small.survey import calibration, sensitivity

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (40, 1)).astype("int32")
TABLE = RNG.uniform(-0.05, 0.05, (50, 6)).astype("float32")


def measured(kernel, activation):
    """The sensitivities of the outputs to a lookup and to the dense map of its rows."""
    layer = keras.layers.Embedding(50, len(kernel))
    dense = keras.layers.Dense(kernel.shape[1], activation, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer, dense])
    layer.set_weights([TABLE])
    dense.set_weights([kernel])
    layers = {"table": layer, "dense": dense}
    statistics = {path: calibration.Statistics() for path in layers}
    outputs = [to_numpy(model(IDS))]
    sensitivity.measure_sensitivity(model, layers, [IDS], statistics, [outputs])
    assert dense.activation == keras.activations.get(activation)
    return [statistics[path].sensitivity for path in layers]


def test_a_model_that_is_sure_is_as_sensitive_as_its_logits():
    kernel = 30 * RNG.normal(size=(6, 3)).astype("float32")
    kernel -= kernel.mean(axis=1, keepdims=True)
    logits, probabilities = (measured(kernel, activation) for activation in (None, "softmax"))
    assert logits == pytest.approx([1, 1], rel=0.1)
    # Of the noise on three logits, one direction in three does not change the probabilities.
    assert probabilities == pytest.approx([logits[0], logits[1] * (2 / 3) ** 0.5], rel=0.05)


def test_noise_on_outputs_that_are_probabilities_themselves():
    # A table of distributions: no activation keeps what noise makes of them positive.
    layer = keras.layers.Embedding(50, 6)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer])
    layer.set_weights([RNG.dirichlet(np.full(6, 0.2), 50).astype("float32")])
    statistics = {"table": calibration.Statistics()}
    outputs = [to_numpy(model(IDS))]
    sensitivity.measure_sensitivity(model, {"table": layer}, [IDS], statistics, [outputs])
    assert 0 < statistics["table"].sensitivity < np.inf


def test_a_small_sensitivity_is_relative_to_the_largest():
    # The outputs are 100 and the rows of two tables, of which one is multiplied by a number.
    def sensitivities(factor):
        ids, other = keras.Input((1,), dtype="int32"), keras.Input((1,), dtype="int32")
        layers = {name: keras.layers.Embedding(50, 6) for name in ("one", "small")}
        outputs = 100.0 + layers["one"](ids) + factor * layers["small"](other)
        model = keras.Model([ids, other], outputs)
        for layer in layers.values():
            layer.set_weights([TABLE])
        statistics = {name: calibration.Statistics() for name in layers}
        outputs = [to_numpy(model([IDS, IDS]))]
        sensitivity.measure_sensitivity(model, layers, [[IDS, IDS]], statistics, [outputs])
        return [statistics[name].sensitivity for name in layers]

    one, small = sensitivities(0.1)
    assert 0 < one < 1e-3
    assert small == pytest.approx(0.1 * one, rel=0.1)
    one, small = sensitivities(1e-5)
    assert small == pytest.approx(1e-3 * one)


def test_masked_logits_do_not_count():
    dense = keras.layers.Dense(4, use_bias=False)
    inputs = keras.Input((6,))
    masked = keras.ops.array([0.0, 0.0, 0.0, -np.inf])
    model = keras.Model(inputs, dense(inputs) + masked)
    rows = RNG.normal(size=(100, 6)).astype("float32")
    statistics = {"dense": calibration.Statistics()}
    outputs = [to_numpy(model(rows))]
    sensitivity.measure_sensitivity(model, {"dense": dense}, [rows], statistics, [outputs])
    assert statistics["dense"].sensitivity == pytest.approx(1, rel=0.1)


def test_a_model_of_few_outputs_is_measured_on_several_batches():
    # Only the rows of the second batch reach the output.
    inputs = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Model(inputs, dense(inputs))
    batches = [np.zeros((8, 1), "float32"), np.ones((8, 1), "float32")]
    statistics = {"dense": calibration.Statistics()}
    outputs = [[to_numpy(model(batch))] for batch in batches]
    sensitivity.measure_sensitivity(model, {"dense": dense}, batches, statistics, outputs)
    assert 0.3 < statistics["dense"].sensitivity < 3
    assert statistics["dense"].sensitivity != 1.0  # as if nothing reached the output
    statistics = {"dense": calibration.Statistics()}
    sensitivity.measure_sensitivity(model, {"dense": dense}, batches[:1], statistics, outputs)
    assert statistics["dense"].sensitivity == 1.0


def embedding_and_dense(kernel, table=TABLE, activation=None):
    layer = keras.layers.Embedding(len(table), table.shape[1])
    dense = keras.layers.Dense(kernel.shape[1], activation, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer, dense])
    layer.set_weights([table])
    dense.set_weights([kernel])
    return model, layer


def response_of(model, layer, ids=IDS):
    statistics = {"table": calibration.Statistics(counts=np.bincount(ids.ravel(), minlength=50))}
    outputs = [to_numpy(model(ids))]
    before = layer.get_weights()
    sensitivity.measure_responses(model, {"table": layer}, [ids], statistics, [outputs])
    np.testing.assert_array_equal(layer.get_weights(), before)
    return statistics["table"].response


def test_the_response_is_that_of_the_kernel():
    kernel = RNG.normal(size=(6, 3)).astype("float32")
    expected = kernel @ kernel.T
    expected *= 6 / np.trace(expected)
    response = response_of(*embedding_and_dense(kernel))
    np.testing.assert_allclose(response, expected, atol=1e-3)


def test_the_memory_of_the_response_is_bounded(monkeypatch):
    # 16 x 200,000 changes in float64 would take 26 MB, and the samples take 1.6 MB.
    monkeypatch.setattr(sensitivity, "_COMPARED_ENTRIES", 10_000)
    table = RNG.normal(size=(50, 16)).astype("float32")
    kernel = np.zeros((16, 1000), "float32")
    kernel[0] = RNG.normal(size=1000)
    model, layer = embedding_and_dense(kernel, table)
    ids = RNG.integers(0, 50, (200, 1)).astype("int32")
    tracemalloc.start()
    response = response_of(model, layer, ids)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    np.testing.assert_allclose(response, np.diag([16.0] + [0] * 15), atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((1280, 40_000), (16, 4096)), ((1280, 1000), (65, 1000)), ((4, 10**6), (4, 16_384))],
)
def test_some_rows_of_wide_outputs_are_compared(shape, kept):
    found = [
        size if isinstance(some, slice) else len(set(some.tolist()))
        for size, some in zip(shape, sensitivity._some_entries(shape, 2**16), strict=True)
    ]
    assert tuple(found) == kept


def change_of(model, inputs, entries):
    outputs = [to_numpy(x) for x in keras.tree.flatten(model(inputs))]
    return sensitivity.change_of_outputs(lambda: outputs_of(model, inputs), outputs, entries)


def test_random_rows_and_columns_are_compared():
    inputs = np.arange(64, dtype="float32").reshape(32, 2)
    wide = keras.layers.Dense(500, use_bias=False)
    first, second = keras.layers.Dense(2, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = keras.Input((2,))
    model = keras.Model(x, [wide(x), first(x), second(x)])
    compared = {}
    for entries in (None, 3 * 200, 3 * 20):
        change, _ = change_of(model, inputs, entries)
        before = model.get_weights()
        model.set_weights([w + 1 for w in before])  # changes each row by the sum of its numbers
        compared[entries] = change()
        model.set_weights(before)
    assert compared[None].size == 32 * 503
    assert compared[600].size == 16 * 12 + 64 + 32
    assert compared[60].size == 16 + 16 + 20
    assert len(set(compared[60][32:].round(2))) == 20  # of as many rows


def test_without_a_gain_all_directions_count_alike():
    # Every direction counts alike, so heeding the response cannot make the outputs better.
    assert response_of(*embedding_and_dense(np.eye(6, dtype="float32"))) is None


def test_what_no_output_reads_costs_no_bytes():
    """A quarter of the features decide; the others are larger, but the model ignores them."""
    table = RNG.normal(size=(400, 16)).astype("float32")
    table[:, 4:] *= 3
    kernel = np.zeros((16, 5), "float32")
    kernel[:4] = np.eye(4, 5)
    model, _ = embedding_and_dense(kernel, table)
    ids = RNG.integers(0, 400, (500, 1)).astype("int32")
    result = compress(model, 3.0, data=ids, formats="low_rank")
    assert error_of(model, result.model, ids) < 0.1
