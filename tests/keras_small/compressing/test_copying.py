"""A model is copied with all its state, or refused; the original stays as it is."""

import functools
import threading

import keras
import numpy as np
import pytest
from compressing import compress, error_of
from conformance import saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_small import Data, Promise
from keras_small.survey.copying import (
    copy_of,
    custom_objects,
    share_weights,
)
from keras_small.survey.inventory import Inventory
from keras_small.survey.survey import survey_of

RNG = np.random.default_rng(0)
ROWS = (50 + 7 * RNG.normal(size=(64, 32))).astype("float32")


def of_rank(rank, rows, columns):
    return RNG.normal(size=(rows, rank)) @ RNG.normal(size=(rank, columns))


def test_adapted_statistics_come_along(tmp_path):
    normalization = keras.layers.Normalization()
    normalization.adapt(ROWS)
    inputs = keras.Input((32,))
    dense = keras.layers.Dense(64, "relu")
    model = keras.Model(inputs, keras.layers.Dense(3)(dense(normalization(inputs))))
    dense.kernel.assign(of_rank(6, 32, 64))
    result = compress(model, 2.0, data=ROWS, verbose=0)
    error = error_of(model, result.model, ROWS)
    # The kernel is of the rank that is left: nothing is lost but by rounding.
    assert error < 1e-5
    assert result.report.error == pytest.approx(error, rel=1e-4, abs=1e-7)
    saved_and_loaded(result.model, ROWS, tmp_path)


class Scaled(keras.layers.Layer):
    """Keeps a number that only its own saving knows. It is not registered."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = 1.0

    def build(self, input_shape):
        self.dense = keras.layers.Dense(32)
        self.dense.build(input_shape)
        self.built = True

    def call(self, inputs):
        return self.scale * self.dense(inputs)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["scale"] = np.array(self.scale)

    def load_own_variables(self, store):
        self.scale = float(store["scale"][()])


def test_own_saving_and_classes_that_are_not_registered_come_along():
    layer = Scaled()
    model = keras.Sequential([keras.Input((32,)), layer])
    layer.scale = 49.0
    layer.dense.kernel.assign(of_rank(6, 32, 32))
    result = compress(model, 2.0, data=ROWS, verbose=0)
    error = error_of(model, result.model, ROWS)
    assert error < 1e-5
    assert result.report.error == pytest.approx(error, rel=1e-4, abs=1e-7)
    assert result.model.layers[0].scale == 49.0


@keras.saving.register_keras_serializable(package="test_copying")
class Forgetful(keras.layers.Layer):
    factor = 1.0

    def call(self, inputs):
        return self.factor * inputs


def test_a_copy_that_answers_differently_is_refused():
    layer = Forgetful()
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32), layer])
    for factor, data in ((2.0, None), (2.0, ROWS), (1.005, ROWS)):
        layer.factor = factor
        with pytest.raises(ValueError, match="whose copy has other outputs"):
            compress(model, 2.0, data=data, verbose=0)


class Same(keras.layers.Layer):
    def call(self, inputs):
        return inputs


class Hidden(Same):
    def __init__(self, function):
        super().__init__()
        self.function = function


class Strict(Same):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def get_config(self):
        return {**super().get_config(), "size": self.size}


class Small(Same):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        if size > 1:
            raise ValueError("a size of at most 1")

    def get_config(self):
        return {**super().get_config(), "size": 2}


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        (Hidden(object()), "Hidden"),
        (Strict(1), r"Strict.__init__\(\) got an unexpected keyword argument 'name'"),
        (Small(1), "ValueError: a size of at most 1|TypeError: a size of at most 1"),
    ],
)
def test_the_error_of_a_model_that_cannot_be_saved_has_the_cause_alone(layer, cause):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32), layer])
    with pytest.raises(ValueError, match=f"Could not copy.*{cause}") as caught:
        compress(model, 2.0, verbose=0)
    assert len(str(caught.value)) < 700
    assert "config={" not in str(caught.value)


class Around(keras.layers.Layer):
    """Is not registered, and holds a layer that its config does not return."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(32)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return self.dense(inputs)


def test_a_file_names_the_class_that_is_not_registered(tmp_path):
    model = keras.Sequential([keras.Input((32,)), Around()])
    compress(model, 2.0, verbose=0).model.save(tmp_path / "small.keras")
    message = "Could not load a compressed Around: .*'Around'"
    with pytest.raises(ValueError, match=message) as error:
        keras.models.load_model(tmp_path / "small.keras")
    assert len(str(error.value)) < 400
    loaded = keras.models.load_model(tmp_path / "small.keras", {"Around": Around})
    assert type(loaded.layers[0].dense).__name__ == "LowRankDense"


def test_what_a_model_is_compiled_with_comes_along(tmp_path):
    # Keras finds no class of a function by its module.
    class Descent(keras.optimizers.SGD):
        pass

    class Halved(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5

        def get_config(self):
            return {}

    class Error(keras.losses.MeanSquaredError):
        pass

    class Mean(keras.metrics.MeanAbsoluteError):
        pass

    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32)])
    model.compile(Descent(Halved()), Error(), metrics=[Mean()])
    model.evaluate(ROWS, ROWS, verbose=0)
    small = compress(model, 2.0, verbose=0)
    assert type(small.model.optimizer) is Descent
    assert type(small.model.loss) is Error
    small.save(tmp_path / "small.keras")
    known = {kind.__name__: kind for kind in (Descent, Halved, Error, Mean)}
    assert set(known) <= set(custom_objects(Inventory.of(model)))
    again = keras.models.load_model(tmp_path / "small.keras", known)
    assert type(again.optimizer) is Descent


def test_an_error_of_the_system_is_not_one_of_the_model():
    class Reader(Same):
        def save_own_variables(self, store):
            raise PermissionError(13, "Permission denied", "table.txt")

    model = keras.Sequential([keras.Input((32,)), Reader(), keras.layers.Dense(32)])
    with pytest.raises(PermissionError, match=r"table\.txt"):
        compress(model, 2.0, verbose=0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="string inputs")
def test_adapted_vocabularies_come_along(tmp_path):
    texts = np.array([["a b c"], ["c d"], ["b e f g"]] * 8, dtype=object)
    vectorize = keras.layers.TextVectorization(output_sequence_length=4)
    vectorize.adapt(texts)
    inputs = keras.Input((1,), dtype="string")
    x = keras.layers.Embedding(600, 16)(vectorize(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))
    data = keras.ops.convert_to_tensor(texts.tolist())
    result = compress(model, 2.0, data=data, verbose=0)
    assert result.report.ratio >= 2
    saved_and_loaded(result.model, data, tmp_path)


def test_states_of_recurrent_layers_do_not_move():
    inputs = keras.Input(batch_shape=(8, 5, 16))
    x = keras.layers.GRU(8, stateful=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(64)(x))
    rows = RNG.normal(size=(8, 5, 16)).astype("float32")
    model(rows)
    (state,) = model.layers[1].states
    before = to_numpy(state)
    result = compress(model, 1.1, data=Data(rows, batch_size=8), verbose=0)
    np.testing.assert_array_equal(to_numpy(result.model.layers[1].states[0]), before)
    if keras.backend.backend() != "torch":  # there Keras cannot train stateful layers
        result.heal(rows, batch_size=8)
    assert np.abs(before).max() > 0
    np.testing.assert_array_equal(to_numpy(state), before)


def test_other_threads_get_the_original_answers_all_the_time():
    model = keras.Sequential(
        [keras.Input((32,)), keras.layers.Dense(48, "relu"), keras.layers.Dense(3)]
    )
    expected = to_numpy(model(ROWS))
    wrong, done = [], threading.Event()

    def ask():
        while not done.is_set():
            wrong.append(not np.array_equal(to_numpy(model(ROWS)), expected))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        small = functools.partial(compress, model, 2.0, data=ROWS, verbose=0)
        compressing = [threading.Thread(target=small) for _ in range(2)]
        for thread in compressing:
            thread.start()
        for thread in compressing:
            thread.join()
    finally:
        done.set()
        asking.join()
    assert wrong
    assert not any(wrong)
    assert model.layers[0].activation is keras.activations.relu


class Pair(keras.layers.Layer):
    """Holds two layers, which may be the same."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second, self.third = first, second, keras.layers.Dense(2)


def test_a_layer_that_two_attributes_hold_is_found_in_the_copy():
    shared = keras.layers.Dense(2)
    copy = Pair(keras.layers.Dense(2), keras.layers.Dense(2))
    assert Inventory.of(Pair(shared, shared)).of_copy(copy).shared == {"first", "second"}
    assert Inventory.of(Pair(keras.layers.Dense(2), shared)).of_copy(copy).shared == set()


@keras.saving.register_keras_serializable(package="tests")
class Doubled(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(32)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, inputs):
        return 2 * self.dense(inputs)


def test_a_layer_that_is_the_function_of_a_lambda_comes_along(tmp_path):
    parts = [keras.layers.Dense(32), keras.layers.Lambda(Doubled(), name="mine")]
    model = keras.Sequential([keras.Input((32,)), *parts])
    result = compress(model, 3.0, data=ROWS, verbose=0)
    formats = {row.path: row.format for row in result.report.layers}
    assert formats["mine/function/dense"] != "kept"
    assert result.report.error == pytest.approx(error_of(model, result.model, ROWS), rel=1e-3)
    assert 0 < result.report.error < 0.2
    saved_and_loaded(result.model, ROWS, tmp_path)


STRUCTURES = [lambda p, n: [n, p], lambda p, n: {"p": p, "n": n}]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="string outputs")
@pytest.mark.parametrize("structure", slow_but(STRUCTURES[:1], STRUCTURES))
def test_outputs_that_are_texts_are_left_out(structure, tmp_path):
    inputs = keras.Input((32,))
    hidden = keras.layers.Dense(64, "relu", name="hidden")(inputs)
    probabilities = keras.layers.Dense(3, "softmax")(hidden)
    names = keras.layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0, invert=True)
    classes = names(keras.ops.argmax(probabilities, axis=-1))
    both = keras.Model(inputs, structure(probabilities, classes))
    result = compress(both, 3.0, data=ROWS, verbose=0)
    alone = compress(keras.Model(inputs, probabilities), 3.0, data=ROWS, verbose=0)
    assert result.report.layers == alone.report.layers
    assert result.report.error == pytest.approx(alone.report.error, rel=1e-5)
    assert result.heal(ROWS, epochs=1, learning_rate=1e-4) is not None
    assert result.heal(ROWS, epochs=1, learning_rate=1e-4, outputs=["hidden"]) is not None
    promise = Promise(max_flips=0.5, confidence=0.6)
    assert compress(both, promise, data=ROWS, verbose=0).report.ratio > 1


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="string outputs")
def test_texts_alone_are_outputs_too():
    names = keras.layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0, invert=True)
    inputs = keras.Input((32,))
    hidden = keras.layers.Dense(64)(inputs)
    classes = names(keras.ops.argmax(keras.layers.Dense(3)(hidden), axis=-1))
    report = compress(keras.Model(inputs, classes), 3.0, data=ROWS, verbose=0).report
    assert (report.ratio > 3, report.error) == (True, 0)


@pytest.mark.parametrize("options", [{"bits": 32, "formats": "low_rank"}, {"bits": 4}])
def test_training_a_small_model_leaves_the_original(options):
    layers = [keras.layers.Dense(48, "relu", name="replaced"), keras.layers.Dense(4, name="kept")]
    model = keras.Sequential([keras.Input((32,)), *layers])
    before = [np.array(to_numpy(weight)) for weight in model.weights]
    result = compress(model, 1.5, data=ROWS, filters="replaced", verbose=0, **options)
    result.heal(ROWS, epochs=1)
    result.model.compile("adam", "mse")
    result.model.fit(ROWS, np.zeros((64, 4)), verbose=0)
    for weight, array in zip(model.weights, before, strict=True):
        assert np.array_equal(to_numpy(weight), array)
    kept = result.model.get_layer("kept").kernel
    assert not np.array_equal(to_numpy(kept), before[2])


def test_a_copy_shares_arrays_until_one_is_changed():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(4)])
    original = Inventory.of(model)
    copy = copy_of(original)
    (kernel, _), (twin, _) = model.weights, copy.model.weights
    assert not have_one_array(kernel, twin)
    share_weights(original, copy)
    assert have_one_array(kernel, twin) == (keras.backend.backend() == "tensorflow")
    before = np.array(to_numpy(kernel))
    twin.assign_add(ops.ones((32, 4)))
    assert np.array_equal(to_numpy(kernel), before)
    assert np.array_equal(to_numpy(twin), before + 1)


def test_a_survey_has_the_weights_in_memory_once():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(4)])
    survey = survey_of(Inventory.of(model), None, None, lambda layer: True)
    assert list(survey.copy.replaceable) == [model.layers[0].name]
    shared = have_one_array(model.weights[0], survey.copy.model.weights[0])
    assert shared == (keras.backend.backend() == "tensorflow")


def have_one_array(*weights):
    tensors = [ops.stop_gradient(ops.convert_to_tensor(weight)) for weight in weights]
    return np.shares_memory(*map(np.asarray, tensors))
