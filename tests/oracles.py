"""Slow, obvious float64 versions of the papers' formulas, sharing no code with the package."""

import numpy as np


def tt_matrix(cores):
    """`W[i, j] = G_1[:, i_1, j_1, :] @ ... @ G_N[:, i_N, j_N, :]`, entry by entry."""
    cores = [np.asarray(core, "float64") for core in cores]
    inputs = [core.shape[1] for core in cores]
    outputs = [core.shape[2] for core in cores]
    w = np.zeros((*inputs, *outputs))
    for index in np.ndindex(w.shape):
        product = np.ones((1, 1))
        for n, core in enumerate(cores):
            product = product @ core[:, index[n], index[len(cores) + n]]
        w[index] = product.item()
    return w.reshape(int(np.prod(inputs)), int(np.prod(outputs)))


def bidirectional_adjacency(length, damping):
    """`Omega = (A^T + A) / 2` with `A[i, j] = c^(j - i)` for `j > i`."""
    a = np.zeros((length, length))
    for i in range(length):
        for j in range(i + 1, length):
            a[i, j] = damping ** (j - i)
    return (a.T + a) / 2


def attention_graph(keys, damping):
    """`Psi` of one head: keys `(L, J)`, not scaled."""
    keys = np.asarray(keys, "float64")
    length, key_dim = keys.shape
    theta = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            if i != j:
                theta[i, j] = max(keys[i] @ keys[j] / np.sqrt(key_dim), 0.0)
    return bidirectional_adjacency(length, damping) * theta


def spectral_attention(x, key_matrix, value_matrix, damping, coefficients=(1.0, 1.0)):
    """One head on one sequence `(L, I)`: the filter by powers of `Psi`; returns `Y, Psi`."""
    x = np.asarray(x, "float64")
    psi = attention_graph(x @ key_matrix, damping)
    powers = [np.linalg.matrix_power(psi, k) for k in range(len(coefficients))]
    filter_ = sum(alpha * power for alpha, power in zip(coefficients, powers, strict=True))
    return filter_ @ (x @ value_matrix), psi
