"""Models that run many times are compiled, and keep their states."""

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays
from keras import ops

from keras_small.survey import on_backends
from keras_small.survey.running import Runner, outputs_of

IDS = np.random.default_rng(0).integers(0, 9, (4, 5))


@pytest.mark.parametrize(("runs", "first"), [(7, 8), (8, 0)])
def test_runs_are_calls_of_the_model_with_its_present_weights_and_states(runs, first):
    inputs = keras.Input((5,), batch_size=4, dtype="int32", name="ids")
    states = keras.layers.GRU(3, stateful=True)(keras.layers.Embedding(9, 2)(inputs))
    model = keras.Model({"ids": inputs}, [keras.layers.Dense(2)(states), states])
    kernel, ids = model.layers[-1].kernel, {"ids": IDS}
    python_calls = 0

    def call(inputs):
        nonlocal python_calls
        python_calls += 1
        return model(inputs, training=False)

    run = Runner(model, call, runs=runs)
    for number in range(10):
        kernel.assign(kernel + number)
        assert_same_arrays(run(ids), outputs_of(model, ids), atol=1e-6)
        first_compiled = {"tensorflow": first, "jax": 0}.get(keras.backend.backend(), 10)
        assert python_calls == min(number, first_compiled) + 1
    (state,) = model.layers[2].states
    assert not ops.convert_to_numpy(state).any()


def test_not_every_length_is_compiled():
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Embedding(9, 2)(inputs))
    python_calls = []

    def call(ids):
        python_calls.append(ids.shape[1])
        return model(ids, training=False)

    run = Runner(model, call, runs=60)
    for _ in range(2):
        for length in range(1, 31):
            run(np.ones((1, length), "int32"))
    first = {"tensorflow": [1, 2], "jax": [1, 2]}.get(keras.backend.backend(), [])
    others = [length for length in python_calls if length not in first]
    assert [python_calls.count(length) for length in first] == [1] * len(first)
    assert len(others) == 2 * (30 - len(first))


def test_what_cannot_be_compiled_runs_step_by_step():
    class InNumPy(keras.layers.Layer):
        def call(self, inputs):
            return ops.convert_to_tensor(np.sort(ops.convert_to_numpy(inputs)))

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5)])
    layer, kernel = InNumPy(), model.layers[0]
    run = Runner(model, lambda x: layer(kernel(x)))
    for _ in range(6):
        (actual,) = run(IDS.astype("float32"))
        assert (np.diff(actual) >= 0).all()


def test_what_is_run_through_notes_the_same_on_each_backend():
    shapes = []

    def note(x):
        shapes.append(tuple(keras.ops.matmul(x, keras.ops.ones((3, 5))).shape))

    on_backends.run_through(note, np.ones((2, 3), "float32"))
    assert shapes == [(2, 5)]

    def with_numbers(x):
        shapes.append(float(keras.ops.convert_to_numpy(x).sum()))

    on_backends.run_through(with_numbers, np.ones((2, 3), "float32"))
    assert shapes[-1] == 6
    with pytest.raises(ZeroDivisionError):
        on_backends.run_through(lambda x: 1 / 0, np.ones(2))
