"""Tests of biases that are corrected so that layers have the original's mean outputs."""

import keras
import numpy as np
import pytest
from compressing import compress
from conformance import to_numpy
from keras import ops

from keras_small import Data, Smaller, Within
from keras_small.asked.data import spread_batches
from keras_small.building import biases
from keras_small.planning.plan import make_plan
from keras_small.survey.calibration import observe
from keras_small.survey.comparing import Comparison
from keras_small.survey.output_moments import bias_of

INPUTS = np.random.default_rng(0).normal(0.5, 1, size=(64, 24)).astype("float32")
IMAGES = np.random.default_rng(0).normal(0.5, 1, size=(32, 6, 6, 4)).astype("float32")


def dense_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(12, "tanh"), keras.layers.Dense(5)]
    return keras.Sequential([keras.Input((24,)), *layers])


def test_second_moments_end_with_the_layers_that_need_them(monkeypatch):
    made = []

    def spy(*arguments):
        made.append(make_plan(*arguments))
        return made[-1]

    monkeypatch.setattr("keras_small.compressing.make_plan", spy)
    compress(dense_model(), 4, data=INPUTS, bits=4, verbose=0)
    (plan,) = made
    assert len(plan.statistics) == 3
    assert all(note.second_moment is None for note in plan.statistics.values())


def convolutional_model():
    """Returns a network whose convolutions have no biases but those of normalizations."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 6, 4))
    x = keras.layers.Conv2D(16, 3, use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="first")(x))
    x = keras.layers.DepthwiseConv2D(3, use_bias=False)(x)
    x = keras.layers.BatchNormalization(name="second")(x)
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))


def mean_outputs(model):
    """Returns the means before the activations, layer after layer, by the formula of each."""
    x, means = INPUTS.astype("float64"), []
    for layer in model.layers:
        x = to_numpy(layer(x.astype("float32"))).astype("float64")
        linear = np.arctanh(x) if layer.activation is keras.activations.tanh else x
        means.append(linear.mean(axis=0))
    return means


@pytest.mark.parametrize(
    "options", [{"bits": 2, "formats": ()}, {"goal": Within(0.7), "formats": "low_rank"}]
)
def test_mean_outputs_are_those_of_the_original(options):
    model = dense_model()
    result = compress(model, data=Data(INPUTS, batch_size=64), verbose=0, **options)
    assert all(row.format != "kept" for row in result.report.layers)
    small = result.model
    # The first layer alone has an activation that hides the mean.
    pairs = zip(mean_outputs(model)[1:], mean_outputs(small)[1:], strict=True)
    for expected, actual in pairs:
        np.testing.assert_allclose(actual, expected, atol=2e-4)


def test_normalizations_restore_means_and_deviations():
    model = convolutional_model()
    small = compress(model, data=IMAGES, bits=2, formats=(), verbose=0).model
    for name in ("first", "second"):
        expected, actual = (
            to_numpy(keras.Model(x.input, x.get_layer(name).output)(IMAGES)) for x in (model, small)
        )
        assert np.abs(actual - expected).max() > 0.01
        axes = (0, 1, 2)
        np.testing.assert_allclose(actual.mean(axes), expected.mean(axes), atol=1e-4)
        np.testing.assert_allclose(actual.std(axes), expected.std(axes), rtol=1e-3)


@pytest.mark.parametrize(("axis", "is_last"), [(1, False), (2, False), (3, True), (-1, True)])
def test_only_normalizations_of_the_last_axis_have_a_bias_for_outputs(axis, is_last):
    layer = keras.layers.BatchNormalization(axis=axis)
    layer.build((None, 4, 4, 4))
    assert (bias_of(layer) is not None) == is_last


@pytest.mark.parametrize("rows", [len(INPUTS), 17])  # or one batch and a row
def test_several_batches_have_the_mean_over_all_rows(rows):
    model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(8)])
    inputs = INPUTS[:rows].copy()
    inputs[-1] *= 30
    small = compress(model, data=Data(inputs, batch_size=16), bits=2, formats=(), verbose=0).model
    expected, actual = (to_numpy(x(inputs)).mean(axis=0) for x in (model, small))
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_of_many_rows_some_batches_have_the_mean():
    model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(8)])
    inputs = np.resize(INPUTS, (512, 24)) * np.linspace(1, 5, 512, dtype="float32")[:, None]
    small = compress(model, data=Data(inputs, batch_size=16), bits=2, formats=(), verbose=0).model
    chosen = np.concatenate(spread_batches([inputs[i : i + 16] for i in range(0, 512, 16)]))
    assert len(chosen) == 256
    expected, actual = (to_numpy(x(chosen)).mean(axis=0) for x in (model, small))
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_the_batches_are_from_all_parts_of_the_data():
    batches = [np.full((32, 1), n) for n in range(32)]
    assert [int(x[0, 0]) for x in spread_batches(batches)] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert [int(x[0, 0]) for x in spread_batches(batches[:15])] == [0, 1, 3, 5, 7, 9, 11, 13]
    assert len(spread_batches(batches[:3])) == 3
    assert spread_batches([]) == []


def test_few_rows_say_nothing_of_deviations():
    model = convolutional_model()
    small = compress(model, data=IMAGES[:16], bits=2, formats=(), verbose=0).model
    for name in ("first", "second"):
        before, after = (x.get_layer(name) for x in (model, small))
        assert np.array_equal(to_numpy(before.gamma), to_numpy(after.gamma))
        assert not np.array_equal(to_numpy(before.beta), to_numpy(after.beta))


@pytest.mark.parametrize(
    "options", [{"bits": 2, "formats": ()}, {"goal": 1.5, "coded": True, "bits": None}]
)
def test_normalizations_that_are_not_selected_stay(options):
    model = convolutional_model()
    model.get_layer("second").beta.assign(np.linspace(0, 1, 16))
    small = compress(model, data=IMAGES, filters="conv", verbose=0, **options).model
    assert any(hasattr(layer, "bits") for layer in small.layers)
    before, after = (to_numpy(x.get_layer("second").beta) for x in (model, small))
    assert np.array_equal(before, after)


def test_biases_stay_if_the_metric_would_fall(capsys):
    model = dense_model()
    biases = [to_numpy(layer.bias) for layer in model.layers]

    def metric(small):
        pairs = zip(small.layers, biases, strict=True)
        return -sum(np.abs(to_numpy(x.bias) - bias).sum() for x, bias in pairs)

    small = compress(model, Smaller(1, metric=metric), data=INPUTS, bits=2, formats=()).model
    assert (metric(small), "metric would be -" in capsys.readouterr().out) == (0, True)


def test_normalizations_stay_if_the_metric_would_fall(capsys):
    model = convolutional_model()

    def vectors(model):
        layers = [model.get_layer(name) for name in ("first", "second")]
        return np.concatenate([to_numpy(x) for layer in layers for x in (layer.gamma, layer.beta)])

    before = vectors(model)

    def metric(small):
        return -np.abs(vectors(small) - before).sum()

    goal = Smaller(1, metric=metric)
    small = compress(model, goal, data=IMAGES, bits=2, formats=()).model
    assert (metric(small), "metric would be -" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize(("rows", "runs"), [(64, 2), (1500, 3)])
@pytest.mark.parametrize("refused", [False, True])
def test_the_report_has_the_error_that_the_correction_measured(rows, runs, refused, monkeypatch):
    model = dense_model()
    inputs = np.resize(INPUTS, (rows, 24))
    measured = []
    error_of = Comparison.error_of

    def spy(*arguments):
        measured.append(error_of(*arguments))
        return measured[-1]

    monkeypatch.setattr(Comparison, "error_of", spy)
    if refused:
        monkeypatch.setattr(
            biases,
            "corrections",
            lambda layers, *_: {path: (np.float32(1), np.float32(9)) for path in layers},
        )
    result = compress(model, data=inputs, bits=2, formats=(), verbose=0)
    assert len(measured) == runs
    assert (measured[1] > measured[0]) == refused
    expected, actual = (to_numpy(x(inputs)) for x in (model, result.model))
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.report.error == pytest.approx(error, rel=1e-4)
    assert result.report.rows == rows


def test_healing_starts_from_corrected_biases():
    result = compress(dense_model(), data=INPUTS, bits=2, formats=(), verbose=0)
    before = to_numpy(result.model(INPUTS))
    result.heal(INPUTS, learning_rate=1e-12)
    np.testing.assert_allclose(to_numpy(result.model(INPUTS)), before, atol=1e-5)


def output_moments(model, layers, batches):
    statistics, _ = observe(model, {}, batches, normalizations=layers)
    return {path: statistics[path].output_moments for path in layers}


def test_a_layer_may_have_any_name():
    def changes(name):
        first = keras.layers.Dense(4, name=name)
        last = keras.layers.Dense(4, name="last")
        model = keras.Sequential([keras.Input((4,)), first, last])
        for layer in (first, last):
            layer.set_weights([np.eye(4, dtype="float32"), np.ones(4, "float32")])
        normal = np.random.default_rng(0).normal
        batches = [normal(size=(32, 4)).astype("float32") for _ in range(2)]
        layers = {name: first, "last": last}
        expected = output_moments(model, layers, batches)
        return biases.corrections(layers, model, batches, expected)["last"][1]

    for name in ("other", "batch"):
        np.testing.assert_allclose(changes(name), 0, atol=1e-5)


def test_compiled_corrections_are_those_step_by_step(monkeypatch):
    model = convolutional_model()
    small = compress(model, data=IMAGES, bits=2, formats=(), verbose=0).model
    names = ("first", "second")
    batches = [IMAGES[i : i + 2] for i in range(0, 32, 2)]
    layers = {name: model.get_layer(name) for name in names}
    expected = output_moments(model, layers, batches)
    layers = {name: small.get_layer(name) for name in names}
    compiled = biases.corrections(layers, small, batches, expected)
    run = biases.Runner.nested

    def step_by_step(self, inputs):
        self._compiled = None
        return run(self, inputs)

    monkeypatch.setattr(biases.Runner, "nested", step_by_step)
    single = biases.corrections(layers, small, batches, expected)
    for name in names:
        for actual, wanted in zip(compiled[name], single[name], strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-4)


@keras.saving.register_keras_serializable(package="tests")
class NormalizingCell(keras.layers.Layer):
    """A recurrent cell with a batch normalization, which runs in a compiled loop."""

    state_size = 6

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization()

    def build(self, input_shape):
        self.norm.build((None, 6))

    def call(self, inputs, states, training=False):
        state = ops.tanh(self.norm(inputs + states[0], training=False))
        return state, [state]


@pytest.mark.parametrize("goal", [None, 3])
def test_normalizations_in_a_loop_are_not_corrected(goal):
    rows = np.random.default_rng(0).normal(size=(40, 5, 6)).astype("float32")
    inputs = keras.Input((5, 6))
    states = keras.layers.RNN(NormalizingCell())(inputs)
    model = keras.Model(inputs, keras.layers.Dense(64)(keras.layers.Dense(64)(states)))
    assert compress(model, goal, data=rows, verbose=0).report.error < 0.1
