import keras
import numpy as np
import oracles
import pytest
from conformance import to_numpy
from differentiation import gradients
from keras import ops
from slow_cases import slow_but

from keras_tnattn.ops import time_graph
from keras_tnattn.ops.time_graph import time_filter

DIRECTIONS = ("later", "earlier", "both")


def sequence(batch, length, width=3, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, length, width)).astype("float32")


@pytest.mark.parametrize("receive_from", DIRECTIONS)
@pytest.mark.parametrize("damping", [0.0, 1e-60, 0.3, 0.9, 0.999])
# JAX compiles each operation for each length.
@pytest.mark.parametrize(
    "length", slow_but([0, 1, 33, 1025], [0, 1, 2, 31, 32, 33, 65, 1023, 1025])
)
def test_filter_is_the_product_with_the_adjacency(length, damping, receive_from):
    x = sequence(2, length)
    got = to_numpy(time_filter(ops.convert_to_tensor(x), damping, receive_from))
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    a = np.where(distance > 0, float(damping) ** np.maximum(distance, 1), 0)
    expected = oracles.in_direction(a, receive_from) @ x
    scale = 1 + np.abs(expected).max(initial=0)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("receive_from", DIRECTIONS)
@pytest.mark.parametrize("length", slow_but([0, 1, 33, 100], [0, 1, 5, 32, 33, 64, 65, 100, 200]))
@pytest.mark.parametrize(
    ("named", "weights"),
    [
        (time_graph.Window(3), lambda d: d <= 3),
        (time_graph.Window(40), lambda d: d <= 40),
        (time_graph.PowerLaw(1.5), lambda d: np.maximum(d, 1.0) ** -1.5),
        (time_graph.Exponential(0.2, 1.4), lambda d: np.exp(-0.2 * np.maximum(d, 0.0) ** 1.4)),
    ],
)
def test_filters_of_other_graphs(named, weights, length, receive_from):
    x = sequence(2, length)
    got = to_numpy(time_filter(ops.convert_to_tensor(x), named, receive_from))
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    a = np.where(distance > 0, weights(distance), 0.0)
    expected = oracles.in_direction(a, receive_from) @ x
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_powers_keep_the_precision_of_float64(float64):
    for size in (0, 60):
        a = to_numpy(time_graph.time_adjacency(size, 0.9, dtype="float64"))
        np.testing.assert_allclose(a, oracles.time_adjacency(size, 0.9), rtol=1e-13)
    omega = time_graph.time_adjacency(60, time_graph.PowerLaw(1.7), "both", "float64")
    assert to_numpy(omega)[0, 7] == pytest.approx(7**-1.7 / 2, rel=1e-14)


@pytest.mark.parametrize(("length", "damping"), [(700, 0.9), (100, 0.5)])
def test_vanishing_terms_are_those_of_the_formula(length, damping):
    # Far behind a silence: every tier must hand on small numbers as they are.
    x = np.zeros((1, length, 1), "float32")
    x[0, -1] = 1
    got = to_numpy(time_filter(ops.convert_to_tensor(x), damping))[0, :, 0]
    np.testing.assert_allclose(got, oracles.time_adjacency(length, damping)[:, -1], rtol=1e-5)


@pytest.mark.parametrize("receive_from", ["later", "earlier"])
def test_long_sequences_equal_the_recurrence(receive_from):
    x = sequence(1, 40_000, 2)
    got = to_numpy(time_filter(ops.convert_to_tensor(x), 0.9999, receive_from))
    steps = x[0].astype("float64")
    steps = steps[::-1] if receive_from == "later" else steps
    expected, state = np.zeros_like(steps), np.zeros(2)
    for n, step in enumerate(steps):
        expected[n] = state
        state = 0.9999 * (state + step)
    # What a step receives is the state damped once more on the way from its neighbor.
    expected = expected[::-1] if receive_from == "later" else expected
    np.testing.assert_allclose(got[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("receive_from", DIRECTIONS)
@pytest.mark.parametrize("length", [5, 100])
def test_gradient_is_the_transposed_product(length, receive_from):
    x, weight = sequence(2, length), sequence(2, length, seed=1)
    tensor = ops.convert_to_tensor(weight)
    (grad,) = gradients(lambda x: ops.sum(tensor * time_filter(x, 0.8, receive_from)), [x])
    a = oracles.in_direction(oracles.time_adjacency(length, 0.8), receive_from)
    np.testing.assert_allclose(grad, a.T @ weight, 1e-5, 1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="lengths are static on JAX")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("damping", [0.0, 0.9, 0.9999])
def test_one_trace_serves_all_lengths(damping, jit_compile):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None, 2))], jit_compile=jit_compile)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = time_filter(x, damping, "both")
        return outputs, tape.gradient(outputs, x)

    for batch, length in [(2, 1), (0, 3), (2, 70), (1, 1100)]:
        x = sequence(batch, length, 2)
        outputs, grad = run(x)
        expected = to_numpy(time_filter(ops.convert_to_tensor(x), damping, "both"))
        np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-5, atol=1e-4)
        ones = time_filter(tf.ones_like(x), damping, "both")
        np.testing.assert_allclose(grad.numpy(), ones.numpy(), rtol=1e-5, atol=1e-4)
    assert run.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_only_rounds_at_the_end(dtype):
    x = ops.cast(sequence(2, 300), dtype)
    got = time_filter(x, 0.99)
    assert keras.backend.standardize_dtype(got.dtype) == dtype
    expected = ops.cast(time_filter(ops.cast(x, "float32"), 0.99), dtype)
    np.testing.assert_array_equal(*(to_numpy(ops.cast(t, "float32")) for t in (got, expected)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": 1.0}, r"damping=1\.0"),
        ({"graph": -0.1}, r"damping=-0\.1"),
        ({"graph": 0.5, "receive_from": "past"}, "receive_from='past'"),
    ],
)
def test_errors_name_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        time_filter(ops.ones((1, 4, 2)), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: time_graph.Window(0), "window=0"),
        (lambda: time_graph.PowerLaw(0.0), r"exponent=0\.0"),
        (lambda: time_graph.Geometric(1.0), r"damping=1\.0"),
        (lambda: time_graph.Exponential(0.0), r"rate=0\.0"),
    ],
)
def test_graphs_check_their_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
