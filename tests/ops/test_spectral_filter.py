import keras
import numpy as np
import oracles
import pytest
from conformance import to_numpy
from differentiation import check_gradients, gradients
from keras import ops
from slow_cases import slow_but

from keras_tnattn.ops import spectral_filter, time_graph


def keys_and_values(*lead, length, key_dim=4, value_dim=3, seed=0):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(*lead, length, key_dim)).astype("float32")
    values = rng.normal(size=(*lead, length, value_dim)).astype("float32")
    return keys, values


def scaled(keys):
    return (keys * keys.shape[-1] ** -0.25).astype("float32")


def plan(damping):
    return spectral_filter.banded_plan(time_graph.bandwidth(damping), features=3.5)


def filter_oracle(keys, values, damping, coefficients=(1.0, 1.0)):
    psi = oracles.attention_graph(keys, damping)
    terms = [alpha * np.linalg.matrix_power(psi, n) for n, alpha in enumerate(coefficients)]
    return sum(terms) @ values


@pytest.mark.parametrize("damping", [0.0, 0.3, 0.9])
def test_adjacencies_are_those_of_the_paper(damping):
    a = to_numpy(time_graph.time_adjacency(5, damping))
    omega = to_numpy(time_graph.time_adjacency(5, damping, "both"))
    np.testing.assert_allclose(omega, oracles.bidirectional_adjacency(5, damping), atol=1e-7)
    np.testing.assert_allclose((a + a.T) / 2, omega, atol=1e-7)
    assert (np.tril(a) == 0).all()
    block = to_numpy(time_graph.time_adjacency(2, damping, "both", offset=3))
    np.testing.assert_allclose(block, omega[3:5, 0:2], atol=1e-7)


def test_bandwidth_is_where_the_damping_vanishes():
    assert [time_graph.bandwidth(c) for c in (0.0, 0.5, 0.9, 0.97)] == [1, 25, 159, 548]
    for damping in (0.1, 0.5, 0.9):
        width = time_graph.bandwidth(damping)
        assert damping**width < 2.0**-24 < damping ** (width - 2)
    with pytest.raises(ValueError, match=r"damping=1\.0"):
        time_graph.bandwidth(1.0)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_filter_and_graph_are_those_of_the_paper(damping, length):
    keys, values = keys_and_values(2, length=length)
    got = to_numpy(spectral_filter.spectral_filter(scaled(keys), values, damping))
    psi = to_numpy(spectral_filter.attention_graph(scaled(keys), damping))
    for n in range(2):
        np.testing.assert_allclose(
            got[n], filter_oracle(keys[n], values[n], damping), rtol=1e-5, atol=1e-5
        )
        expected = oracles.attention_graph(keys[n], damping)
        np.testing.assert_allclose(psi[n], expected, rtol=1e-5, atol=1e-6)
    # Not equal: on some processors the order of a sum depends on where an entry stands.
    np.testing.assert_allclose(psi, psi.swapaxes(1, 2), rtol=1e-6)
    assert (psi >= 0).all()
    assert (np.diagonal(psi, axis1=1, axis2=2) == 0).all()


def test_polynomial_equals_the_spectral_form():
    keys, values = keys_and_values(length=8)
    coefficients = np.array([0.7, -1.1, 0.4, 0.2], "float32")
    got = spectral_filter.spectral_filter(scaled(keys), values, 0.8, coefficients)
    eigenvalues, vectors = np.linalg.eigh(oracles.attention_graph(keys, 0.8))
    response = sum(alpha * eigenvalues**k for k, alpha in enumerate(coefficients))
    expected = vectors @ (response[:, None] * (vectors.T @ values))
    np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-4, atol=1e-4)


def boundary_lengths():
    """Lengths around every block boundary, for one and for two block diagonals and more."""
    cases = []
    for damping in (0.1, 0.5, 0.8):
        marks = () if damping == 0.5 else pytest.mark.slow
        block, num_offsets, shortest = plan(damping)
        counts = {1, 2, num_offsets + 1, num_offsets + 2}
        around = {n * block + d for n in counts for d in (-1, 0, 1)} | {1, shortest}
        cases += [pytest.param(damping, length, marks=marks) for length in sorted(around)]
    return cases


def by_both_methods(keys, values, graph, coefficients, causal=False):
    return [
        to_numpy(spectral_filter.spectral_filter(keys, values, graph, coefficients, method, causal))
        for method in ("direct", "banded")
    ]


@pytest.mark.parametrize(("damping", "length"), boundary_lengths())
def test_banded_equals_direct_at_every_block_boundary(damping, length):
    # Several sequences one after the other: what leaks from one to the next shows.
    keys, values = keys_and_values(3, 2, length=length)
    coefficients = np.array([0.5, 1.0, -0.3], "float32")
    direct, banded = by_both_methods(scaled(keys) / 2, values, damping, coefficients)
    scale = np.abs(direct).max()
    np.testing.assert_allclose(banded, direct, rtol=2e-5, atol=2e-6 * scale)


def weighted_sum(weight, keys, *arguments):
    """The sum of what is filtered, each entry counted by its weight."""
    filtered = spectral_filter.spectral_filter(ops.convert_to_tensor(keys), *arguments)
    return ops.sum(ops.convert_to_tensor(weight, "float32") * filtered)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["direct", "banded"])
def test_gradients_are_those_of_finite_differences(method, causal):
    keys, values = keys_and_values(2, length=60)
    coefficients = np.array([0.8, 0.6, -0.4, 0.3], "float32")
    weight = np.random.default_rng(5).normal(size=values.shape)
    omega = given_graph(lambda d: 0.3**d, 60, causal)

    def oracle(keys, values, coefficients):
        return sum(
            np.sum(weight[n] * graph_filter_oracle(keys[n], values[n], omega, coefficients)[0])
            for n in range(2)
        )

    def run(keys, values, coefficients):
        return weighted_sum(weight, keys, values, 0.3, coefficients, method, causal)

    check_gradients(run, oracle, [keys / 2, values, coefficients], most=6)


@pytest.mark.parametrize("causal", [False, True])
def test_banded_gradients_equal_direct_ones_across_blocks(causal):
    damping = 0.3
    minimum_block, _, shortest = plan(damping)
    length = max(3 * minimum_block, shortest) + 1
    keys, values = keys_and_values(2, length=length)
    weight = np.random.default_rng(5).normal(size=values.shape)
    arguments = [scaled(keys) / 2, values, np.array([0.8, 0.6, -0.4], "float32")]

    def grads(method):
        return gradients(
            lambda k, v, a: weighted_sum(weight, k, v, damping, a, method, causal), arguments
        )

    for banded, direct in zip(grads("banded"), grads("direct"), strict=True):
        np.testing.assert_allclose(banded, direct, rtol=1e-4, atol=1e-5 * np.abs(direct).max())


@pytest.mark.parametrize("damping", [0.2, 0.7])
def test_gradient_of_a_trained_damping(damping):
    keys, values = keys_and_values(length=12)
    weight = np.random.default_rng(5).normal(size=values.shape)
    check_gradients(
        lambda c: weighted_sum(weight, scaled(keys), ops.convert_to_tensor(values), c),
        lambda c: np.sum(weight * filter_oracle(keys, values, c)),
        [np.float32(damping)],
        abs=1e-6,
    )


@pytest.mark.parametrize("start", [np.ones(3, "float32"), np.float32(0.5)])
def test_gradients_of_coefficients_and_a_damping_do_not_overflow_in_half_precision(start):
    keys, values = keys_and_values(8, length=200)

    def loss(keys, values, x):
        arguments = (0.5, x) if start.ndim else (x,)
        filtered = spectral_filter.spectral_filter(keys, values, *arguments)
        return ops.sum(ops.cast(filtered, "float32")) * 30

    (*_, expected), (*_, got) = (
        gradients(loss, [scaled(keys).astype(d), np.abs(values).astype(d), start])
        for d in ("float32", "float16")
    )
    assert np.abs(expected).max() > 65_504
    np.testing.assert_allclose(got, expected, rtol=0.02)


GRAPHS = {
    "geometric": (time_graph.Geometric(0.6), lambda d: 0.6**d),
    "exponential": (time_graph.Exponential(0.5, 0.7), lambda d: np.exp(-0.5 * d**0.7)),
    "window": (time_graph.Window(5), lambda d: (d <= 5) * 1.0),
    "power_law": (time_graph.PowerLaw(1.3), lambda d: d**-1.3),
}


def given_graph(weights, length, causal):
    """`Omega`, or `A^T` if causal, entry by entry."""
    omega = np.zeros((length, length))
    for i, j in np.ndindex(omega.shape):
        if i > j or (i < j and not causal):
            omega[i, j] = weights(float(abs(i - j))) * (1 if causal else 0.5)
    return omega


def graph_filter_oracle(keys, values, omega, coefficients):
    """Powers of `Psi` for any `Omega`; keys as the filter gets them, scaled."""
    theta = np.maximum(keys.astype("float64") @ keys.T.astype("float64"), 0)
    psi = omega * theta * (1 - np.eye(len(keys)))
    powers = [np.linalg.matrix_power(psi, k) for k in range(len(coefficients))]
    return sum(a * p for a, p in zip(coefficients, powers, strict=True)) @ values, psi


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_named_graphs_are_their_formulas(name, causal):
    graph, weights = GRAPHS[name]
    keys, values = keys_and_values(2, 2, length=60)
    keys /= 2
    coefficients = np.array([0.5, 1.0, -0.3], "float32")
    omega = given_graph(weights, 60, causal)
    methods = ["direct"] if graph.bandwidth is None else ["direct", "banded"]
    psi = to_numpy(spectral_filter.attention_graph(keys, graph, causal))
    for method in methods:
        got = spectral_filter.spectral_filter(keys, values, graph, coefficients, method, causal)
        got = to_numpy(got)
        for n in np.ndindex(2, 2):
            expected, graph_oracle = graph_filter_oracle(keys[n], values[n], omega, coefficients)
            np.testing.assert_allclose(got[n], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(psi[n], graph_oracle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_given_adjacency_keeps_its_weights(batched, causal):
    rng = np.random.default_rng(3)
    adjacency = rng.normal(size=(2, 7, 7) if batched else (7, 7)).astype("float32")
    keys, values = keys_and_values(2, 2, length=7)
    keys /= 2
    coefficients = np.array([0.8, 0.6, -0.4], "float32")
    weight = rng.normal(size=values.shape)

    def oracle(keys, values, coefficients, adjacency):
        omega = np.broadcast_to(adjacency, (2, 7, 7))
        omega = np.tril(omega, -1) if causal else omega
        for b, h in np.ndindex(2, 2):
            yield graph_filter_oracle(keys[b, h], values[b, h], omega[b], coefficients)

    def loss(*arguments):
        return np.sum(rows(weight) * [y for y, _ in oracle(*arguments)])

    def run(keys, values, coefficients, adjacency):
        return weighted_sum(weight, keys, values, adjacency, coefficients, "auto", causal)

    def rows(x):
        return to_numpy(x).reshape(4, 7, -1)

    got = spectral_filter.spectral_filter(keys, values, adjacency, coefficients, causal=causal)
    psi = spectral_filter.attention_graph(keys, adjacency, causal)
    arguments = [keys, values, coefficients, adjacency]
    for y, p, (expected, graph) in zip(rows(got), rows(psi), oracle(*arguments), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(p, graph, rtol=1e-5, atol=1e-6)
    check_gradients(run, loss, arguments, most=20)


def test_gradients_of_a_learned_distance():
    keys, values = keys_and_values(length=12)
    keys /= 2
    weight = np.random.default_rng(5).normal(size=values.shape)

    def oracle(rate, power):
        omega = given_graph(lambda d: np.exp(-rate * d**power), 12, causal=False)
        return np.sum(weight * graph_filter_oracle(keys, values, omega, (1.0, 1.0))[0])

    def run(rate, power):
        graph = time_graph.Exponential(rate, power)
        return weighted_sum(weight, keys, ops.convert_to_tensor(values), graph)

    check_gradients(run, oracle, [np.float32(0.4), np.float32(0.8)], abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["direct", "banded"])
def test_no_length_is_too_short(method, causal):
    for length in (0, 1):
        keys, values = keys_and_values(2, 3, length=length)
        coefficients = np.array([0.5, 1.0, -0.3], "float32")
        got = spectral_filter.spectral_filter(keys, values, 0.5, coefficients, method, causal)
        np.testing.assert_allclose(to_numpy(got), 0.5 * values, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("coefficients", [(1.0, 1.0), (0.5, 0.7, -0.4), (1.0, 0.3, 0.2, 0.1)])
def test_the_band_is_as_near_as_stated(coefficients, causal, float64):
    # All scores are T and all values v: nothing cancels, and the error is near its bound.
    damping, length, score, value = 0.5, 300, 0.4, 3.0
    keys = ops.full((1, length, 1), score**0.5, "float64")
    values = ops.full((1, length, 1), value, "float64")
    alpha = ops.convert_to_tensor(coefficients, "float64")
    direct, banded = by_both_methods(keys, values, damping, alpha, causal)
    error = np.abs(direct - banded).max()
    block, num_offsets, _ = plan(damping)
    rho = score * damping / (1 - damping)

    def bound(width):
        eps = score * damping ** (width + 1) / (1 - damping)
        terms = [k * abs(a) * rho ** (k - 1) for k, a in enumerate(coefficients) if k > 0]
        return value * eps * sum(terms)

    # The band has whole blocks: weights up to m b are in it, and some up to (m + 1) b - 1.
    rounding = 1 + 1e-6
    assert 0 < error <= rounding * bound(num_offsets * block)
    assert num_offsets * block >= time_graph.bandwidth(damping)
    if coefficients == (1.0, 1.0):
        assert error > 0.4 * bound(num_offsets * block)


@pytest.mark.parametrize("features", [1, 4, 64, 512])
@pytest.mark.parametrize("width", [1, 12, 76, 159, 548, 2000])
def test_the_plan_covers_the_bandwidth(width, features):
    block, num_offsets, shortest = spectral_filter.banded_plan(width, features)
    assert num_offsets * block >= width
    assert num_offsets == 1 or (num_offsets - 1) * block < width
    assert 12 <= block <= 128
    assert shortest > 2 * width


@pytest.fixture
def offsets_taken(monkeypatch):
    """The number of block diagonals of each filter that is computed by blocks."""
    taken, blocked_filter = [], spectral_filter._blocked_filter

    def spy(keys, values, graph, coefficients, block, num_offsets, causal):
        taken.append(num_offsets)
        return blocked_filter(keys, values, graph, coefficients, block, num_offsets, causal)

    monkeypatch.setattr(spectral_filter, "_blocked_filter", spy)
    return taken


def test_few_features_are_cut_into_smaller_blocks(offsets_taken):
    plans = [spectral_filter.banded_plan(159, features) for features in (8, 64, 512)]
    assert plans == [(32, 5, 478), (80, 2, 718), (80, 2, 718)]
    # Those of keys and values count alike.
    for sizes in ((8, 8), (4, 12), (64, 64), (96, 32)):
        keys, values = keys_and_values(1, length=800, key_dim=sizes[0], value_dim=sizes[1])
        spectral_filter.spectral_filter(keys, values, 0.9)
    assert offsets_taken == [5, 5, 2, 2]


@pytest.mark.parametrize("length", [plan(0.2)[2] + d for d in (-1, 0)])
def test_auto_takes_the_band_from_its_length_on(length, offsets_taken):
    keys, values = keys_and_values(1, length=length)
    spectral_filter.spectral_filter(keys, values, 0.2)
    assert [offsets > 0 for offsets in offsets_taken] == [length >= plan(0.2)[2]]


def test_infinite_scores_stay_off_the_diagonal_in_half_precision():
    # |k|^2 overflows float16, while the products of neighbors do not.
    keys = np.zeros((1, 4, 4), "float16")
    keys[0, np.arange(4), np.arange(4)] = 300.0
    values = np.ones((1, 4, 2), "float16")
    got = spectral_filter.spectral_filter(ops.convert_to_tensor(keys), values, 0.5)
    np.testing.assert_array_equal(to_numpy(got), values)


@pytest.mark.parametrize("method", ["direct", "banded"])
def test_gradients_near_the_largest_numbers_in_half_precision(method):
    # Entries of P are 40,000, so that P + P^T overflows float16.
    keys, values, weight = np.full((1, 8, 1), 0.5), np.full((1, 8, 1), 200.0), 200.0

    def grads(dtype):
        def run(keys, values):
            return ops.sum(
                weight * spectral_filter.spectral_filter(keys, values, 0.05, method=method)
            )

        return gradients(run, [keys.astype(dtype), values.astype(dtype)])

    for half, single in zip(grads("float16"), grads("float32"), strict=True):
        assert np.isfinite(half).all()
        np.testing.assert_allclose(half, single, rtol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": 0.5, "method": "fast"}, "method='fast'"),
        ({"graph": np.ones((), "float32"), "method": "banded"}, "method='banded'"),
        ({"graph": np.ones((4, 4), "float32"), "method": "banded"}, "method='banded'"),
        ({"graph": time_graph.PowerLaw(2.0), "method": "banded"}, "method='banded'"),
        ({"graph": np.ones(4, "float32")}, r"graph\.shape=\(4,\)"),
        ({"graph": 1.5}, r"damping=1\.5"),
        ({"graph": 0.5, "coefficients": np.ones(1)}, r"coefficients\.shape=\(1,\)"),
    ],
)
def test_errors_name_what_was_given(arguments, message):
    keys, values = keys_and_values(1, length=4)
    with pytest.raises(ValueError, match=message):
        spectral_filter.spectral_filter(keys, values, **arguments)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others know all lengths")
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("causal", slow_but([False], [False, True]))
@pytest.mark.parametrize("coefficients", slow_but([None], [None, [0.5, 1.0, 0.25]]))
def test_gradients_of_a_length_that_is_unknown_at_first(jit_compile, causal, coefficients):
    import tensorflow as tf

    alphas = None if coefficients is None else tf.constant(coefficients)
    shortest = plan(0.5)[2]
    unknown = [tf.TensorSpec((2, 3, None, size), tf.float32) for size in (4, 3)]

    def grads(keys, values, method="auto"):
        inputs = [keys, values] + ([] if alphas is None else [alphas])
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            filtered = spectral_filter.spectral_filter(keys, values, 0.5, alphas, method, causal)
            loss = tf.reduce_sum(filtered**2)
        return filtered, *tape.gradient(loss, inputs)

    compiled = tf.function(grads, input_signature=unknown, jit_compile=jit_compile)
    for length in (shortest - 1, shortest):
        keys, values = keys_and_values(2, 3, length=length)
        arguments = tf.constant(scaled(keys)), tf.constant(values)
        method = "direct" if length < shortest else "banded"
        for one, other in zip(compiled(*arguments), grads(*arguments, method), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())
