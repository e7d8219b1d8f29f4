import keras
import numpy as np
import pytest
from conformance import to_numpy
from differentiation import gradients
from keras import ops

from keras_tnattn.ops import graph


def random_graph(length=7, seed=0):
    """A symmetric weighted adjacency with one node without edges."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((length, length)) * (rng.random((length, length)) < 0.6), 1)
    upper[3], upper[:, 3] = 0, 0
    return (upper + upper.T).astype("float32")


def laplacian_oracle(a, normalization):
    matrix = np.zeros(a.shape)
    d = a.sum(axis=1)
    for i, j in np.ndindex(a.shape):
        if i == j and d[i] > 0:
            matrix[i, j] = d[i] if normalization is None else 1
        if a[i, j] > 0:
            scale = {None: 1, "symmetric": np.sqrt(d[i] * d[j]), "random_walk": d[i]}
            matrix[i, j] -= a[i, j] / scale[normalization]
    return matrix


@pytest.mark.parametrize("normalization", graph.NORMALIZATIONS)
def test_laplacians_are_their_formulas(normalization):
    adjacencies = np.stack([random_graph(seed=n) for n in range(2)])
    got = to_numpy(graph.laplacian(ops.convert_to_tensor(adjacencies), normalization))
    for n in range(2):
        expected = laplacian_oracle(adjacencies[n].astype("float64"), normalization)
        np.testing.assert_allclose(got[n], expected, atol=1e-6)
    assert (got[:, 3] == 0).all()
    one_way = np.array([[0, 2, 0], [0, 0, 3], [1, 1, 0]], "float32")
    got_one_way = to_numpy(graph.laplacian(ops.convert_to_tensor(one_way), normalization))
    np.testing.assert_allclose(got_one_way, laplacian_oracle(one_way, normalization), atol=1e-6)
    # A constant signal is at frequency 0 where rows sum to 0.
    if normalization != "symmetric":
        np.testing.assert_allclose(got.sum(axis=-1), 0, atol=1e-5)


def test_laplacian_names_an_unknown_normalization():
    with pytest.raises(ValueError, match="normalization='left'"):
        graph.laplacian(ops.eye(2), "left")


def test_the_fourier_basis_diagonalizes_and_inverts():
    matrix = graph.laplacian(ops.convert_to_tensor(random_graph()), "symmetric")
    frequencies, basis = graph.graph_fourier_basis(matrix)
    values, vectors = to_numpy([frequencies, basis])
    np.testing.assert_allclose(vectors * values @ vectors.T, to_numpy(matrix), atol=1e-5)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(to_numpy(matrix)), atol=1e-5)
    x = np.random.default_rng(1).normal(size=(2, 7, 3)).astype("float32")
    spectrum = graph.graph_fourier_transform(ops.convert_to_tensor(x), basis)
    expected = np.einsum("lk,bli->bki", vectors, x)
    np.testing.assert_allclose(to_numpy(spectrum), expected, atol=1e-5)
    back = graph.graph_fourier_transform(spectrum, basis, inverse=True)
    np.testing.assert_allclose(to_numpy(back), x, atol=1e-5)


def test_spectral_convolution_is_a_function_of_the_matrix():
    matrix = random_graph().astype("float64")
    values, vectors = np.linalg.eigh(matrix)
    x = np.random.default_rng(1).normal(size=(2, 7, 3)).astype("float32")
    basis = ops.convert_to_tensor(vectors, "float32")
    # Multipliers exp(lambda) are the exponential of the matrix, here by its series.
    got = graph.spectral_convolution(x, basis, ops.convert_to_tensor(np.exp(values), "float32"))
    power, total = np.eye(7), np.eye(7)
    for n in range(1, 40):
        power = power @ matrix / n
        total = total + power
    np.testing.assert_allclose(to_numpy(got), total @ x, rtol=1e-4, atol=1e-4)
    # One diagonal for each pair of features, summed over the inputs.
    multipliers = np.random.default_rng(2).normal(size=(7, 3, 2)).astype("float32")
    got = to_numpy(graph.spectral_convolution(x, basis, ops.convert_to_tensor(multipliers)))
    for o in range(2):
        expected = sum(
            np.einsum("lm,bm->bl", vectors * multipliers[:, i, o] @ vectors.T, x[:, :, i])
            for i in range(3)
        )
        np.testing.assert_allclose(got[:, :, o], expected, rtol=1e-4, atol=1e-4)


EDGES = np.array([[0, 1], [2, 1], [2, 2], [1, 0], [-1, -1], [3, 1]])


def test_sums_and_shares_of_edges_are_those_of_the_receivers():
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    weights = np.array([0.5, 2.0, 1.0, 0.0, 9.0, 3.0], "float32")
    edges = graph.Edges(ops.convert_to_tensor(EDGES), 2, 4, weights, ops.convert_to_tensor(mask))
    valid = to_numpy(edges.valid).reshape(2, 6).tolist()
    # A weight of 0, padding, and the edge of a masked node are no edges.
    assert valid == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 1]]
    messages = np.arange(12, dtype="float32").reshape(12, 1)
    got = to_numpy(edges.sum(ops.convert_to_tensor(messages)))[:, 0].tolist()
    assert got == [0, 1, 2, 0, 0, 6 + 7 + 11, 8, 0]
    scores = np.random.default_rng(0).normal(size=(12, 2)).astype("float32") * 50
    shares = to_numpy(edges.softmax(ops.convert_to_tensor(scores)))
    for graph_index, receiver in np.ndindex(2, 4):
        values_of = [
            6 * graph_index + n
            for n in range(6)
            if valid[graph_index][n] and EDGES[n, 1] == receiver
        ]
        if values_of:
            exponentials = np.exp(scores[values_of] - scores[values_of].max(axis=0))
            expected = exponentials / exponentials.sum(axis=0)
            np.testing.assert_allclose(shares[values_of], expected, atol=1e-6)
    assert (shares[~np.ravel(np.array(valid, bool))] == 0).all()


def test_shares_have_finite_gradients_where_nothing_is_left():
    edges = graph.Edges(ops.convert_to_tensor(EDGES), 1, 4, mask=np.zeros((1, 4), bool))
    (grad,) = gradients(lambda s: ops.sum(edges.softmax(s) ** 2), [np.ones((6, 1), "float32")])
    assert (grad == 0).all()


def test_self_loops_take_the_place_of_given_ones():
    edges = graph.Edges(
        ops.convert_to_tensor(EDGES), 1, 4, np.full(6, 2.0, "float32"), self_loops=True
    )
    got = to_numpy(edges.sum(edges.weights)).tolist()
    assert got == [3.0, 7.0, 1.0, 1.0]


def test_edges_have_two_ends():
    with pytest.raises(ValueError, match=r"edges\.shape=\(2, 3\)"):
        graph.Edges(np.zeros((2, 3), "int32"), 1, 4)
    assert keras.backend.standardize_dtype(graph.inverse_root(ops.ones(2)).dtype) == "float32"
