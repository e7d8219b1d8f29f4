"""How sensitive a model's outputs are to noise on a layer."""

import keras
import numpy as np
import pytest
from compressing import compress, error_of
from conformance import to_numpy

from keras_small import Data
from keras_small.asked.data import CalibrationData
from keras_small.survey import calibration, changes, sensitivity

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (40, 1)).astype("int32")
TABLE = RNG.uniform(-0.05, 0.05, (50, 6)).astype("float32")


def read(batches):
    """Batches of inputs, which a model takes as they are."""
    data = CalibrationData(Data(iter(batches)), None)
    data.cut(10_000)
    return data


def measured(kernel, activation):
    """The sensitivities of the outputs to a lookup and to the dense map of its rows."""
    layer = keras.layers.Embedding(50, len(kernel))
    dense = keras.layers.Dense(kernel.shape[1], activation, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer, dense])
    layer.set_weights([TABLE])
    dense.set_weights([kernel])
    layers = {"table": layer, "dense": dense}
    statistics = {path: calibration.Statistics() for path in layers}
    ids = np.repeat(IDS, 20, axis=0)
    outputs = [to_numpy(model(ids))]
    sensitivity.measure_sensitivity(model, layers, read([ids]), statistics, [outputs])
    assert dense.activation == keras.activations.get(activation)
    return [statistics[path].sensitivity for path in layers]


def test_a_model_that_is_sure_is_as_sensitive_as_its_logits():
    kernel = 30 * RNG.normal(size=(6, 3)).astype("float32")
    kernel -= kernel.mean(axis=1, keepdims=True)
    logits, probabilities = (measured(kernel, activation) for activation in (None, "softmax"))
    rows = TABLE[IDS[:, 0]]
    # Of noise on rows of six features, about that of the rows in the directions of the kernel.
    size = np.linalg.norm(kernel) * np.linalg.norm(rows) / 6**0.5 / np.linalg.norm(rows @ kernel)
    assert logits == pytest.approx([size, 1], rel=0.05)
    # Of the noise on three logits, one direction in three does not change the probabilities.
    assert probabilities == pytest.approx([logits[0], logits[1] * (2 / 3) ** 0.5], rel=0.05)


def test_noise_on_outputs_that_are_probabilities_themselves():
    # A table of distributions: no activation keeps what noise makes of them positive.
    layer = keras.layers.Embedding(50, 6)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer])
    layer.set_weights([RNG.dirichlet(np.full(6, 0.2), 50).astype("float32")])
    statistics = {"table": calibration.Statistics()}
    outputs = [to_numpy(model(IDS))]
    sensitivity.measure_sensitivity(model, {"table": layer}, read([IDS]), statistics, [outputs])
    assert 0 < statistics["table"].sensitivity < np.inf


def test_a_small_sensitivity_is_relative_to_the_largest():
    # The outputs are 100 and the rows of two tables, of which one is multiplied by a number.
    def sensitivities(factor):
        ids = keras.Input((1,), dtype="int32", name="one")
        other = keras.Input((1,), dtype="int32", name="other")
        layers = {name: keras.layers.Embedding(50, 6) for name in ("one", "small")}
        outputs = 100.0 + layers["one"](ids) + factor * layers["small"](other)
        model = keras.Model([ids, other], outputs)
        for layer in layers.values():
            layer.set_weights([TABLE])
        statistics = {name: calibration.Statistics() for name in layers}
        outputs = [to_numpy(model([IDS, IDS]))]
        sensitivity.measure_sensitivity(
            model, layers, read([{"one": IDS, "other": IDS}]), statistics, [outputs]
        )
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
    dense.set_weights([np.eye(6, 4, dtype="float32")])
    rows = RNG.normal(size=(1000, 6)).astype("float32")
    statistics = {"dense": calibration.Statistics()}
    outputs = [to_numpy(model(rows))]
    sensitivity.measure_sensitivity(model, {"dense": dense}, read([rows]), statistics, [outputs])
    assert statistics["dense"].sensitivity == pytest.approx(1, rel=0.1)


def test_a_model_of_few_outputs_is_measured_on_several_batches():
    # Only the rows of the second batch reach the output.
    inputs = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Model(inputs, 3.0 + dense(inputs))
    batches = [np.zeros((8, 1), "float32"), np.ones((8, 1), "float32")]
    statistics = {"dense": calibration.Statistics()}
    outputs = [[to_numpy(model(batch))] for batch in batches]
    sensitivity.measure_sensitivity(model, {"dense": dense}, read(batches), statistics, outputs)
    (kernel,) = dense.get_weights()
    expected = abs(kernel.item()) * 8**0.5 / np.linalg.norm(outputs)
    assert statistics["dense"].sensitivity == pytest.approx(expected, rel=1e-3)
    statistics = {"dense": calibration.Statistics()}
    sensitivity.measure_sensitivity(model, {"dense": dense}, read(batches[:1]), statistics, outputs)
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
    sensitivity.measure_sensitivity(model, {"table": layer}, read([ids]), statistics, [outputs])
    np.testing.assert_array_equal(layer.get_weights(), before)
    return statistics["table"].response


def test_the_response_is_that_of_the_kernel():
    kernel = RNG.normal(size=(6, 3)).astype("float32")
    expected = kernel @ kernel.T
    expected *= 6 / np.trace(expected)
    response = response_of(*embedding_and_dense(kernel))
    np.testing.assert_allclose(response, expected, atol=0.1)


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


@pytest.mark.parametrize("signs", [(1,) * 9, (1, -1)])
def test_the_noise_of_a_call_tells_nothing_of_that_of_another(signs):
    inputs = [keras.Input((6,)) for _ in signs]
    layer = keras.layers.Dense(6, use_bias=False)
    outputs = [sign * layer(x) for sign, x in zip(signs, inputs, strict=True)]
    model = keras.Model(inputs, keras.layers.Add()(outputs))
    rows = [RNG.normal(size=(1000, 6)).astype("float32") for _ in signs]
    noise = changes.Noise(model, {"shared": layer}, [False], rows)
    assert noise.change(["shared"]) == pytest.approx(1, rel=0.15)


def test_the_noise_of_one_layer_tells_nothing_of_that_of_another():
    inputs = keras.Input((6,))
    layers = {name: keras.layers.Dense(6) for name in ("one", "other")}
    model = keras.Model(inputs, layers["one"](inputs) + layers["other"](inputs))
    rows = RNG.normal(size=(1000, 6)).astype("float32")
    noise = changes.Noise(model, layers, [False], rows)
    both = noise.change(["one", "other"])
    assert both == pytest.approx(np.hypot(noise.change(["one"]), noise.change(["other"])), rel=0.1)
