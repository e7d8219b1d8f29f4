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


def time_adjacency(length, damping):
    """`A[i, j] = c^(j - i)` for `j > i`, else 0."""
    a = np.zeros((length, length))
    for i in range(length):
        for j in range(i + 1, length):
            a[i, j] = damping ** (j - i)
    return a


def bidirectional_adjacency(length, damping):
    """`Omega = (A^T + A) / 2`."""
    return in_direction(time_adjacency(length, damping), "both")


def in_direction(a, receive_from):
    """`A`, `A^T` or `Omega`: tokens receive from later ones, from earlier ones, or from both."""
    return {"later": a, "earlier": a.T, "both": (a + a.T) / 2}[receive_from]


def projector(vectors):
    """`Q Q^T`, `Q` the first columns of the product of the reflections along `vectors` `(J, r)`."""
    size, rank = vectors.shape
    product = np.eye(size)
    for v in np.asarray(vectors, "float64").T:
        product = product @ (np.eye(size) - 2 * np.outer(v, v) / (v @ v))
    columns = product[:, :rank]
    return columns @ columns.T


def graph_tensor_network(x, graph, projection):
    """`Y = X + graph X P` of one sequence `(L, J)`, by sums over tokens."""
    y = np.array(x, "float64")
    for i in range(len(x)):
        for j in range(len(x)):
            y[i] += graph[i, j] * (np.asarray(x[j], "float64") @ projection)
    return y


def graph_attention(x, kernel, a, edges, slope=0.2):
    """One head on one graph `(L, I)`; returns the sums, `(L, J)`, and `alpha`, `(L, L)`."""
    h = np.asarray(x, "float64") @ np.asarray(kernel, "float64")
    a = np.asarray(a, "float64")
    alpha, y = np.zeros((len(h), len(h))), np.zeros(h.shape)
    for i in range(len(h)):
        neighbors = [j for j in range(len(h)) if edges[i, j]]
        scores = [a @ np.concatenate([h[i], h[j]]) for j in neighbors]
        weights = [np.exp(e if e > 0 else slope * e) for e in scores]
        for j, weight in zip(neighbors, weights, strict=True):
            alpha[i, j] = weight / sum(weights)
            y[i] += alpha[i, j] * h[j]
    return y, alpha


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


def power_law_attention(
    query, value, key, weights, num_heads, causal_metric=False, metric_from="query", epsilon=1e-9
):
    """Equations 1 to 7 of the power law graph transformer on one sequence; returns outputs, E_LM.

    `weights`: `query, key, value, output` as (kernel, bias), `W, b, a, P, b_a` as `(H, k, k)`,
    `units` as lists of (kernel, bias) with the norm's (gamma, beta) last.
    """

    def dense(x, kernel_and_bias):
        kernel, bias = (np.asarray(w, "float64") for w in kernel_and_bias)
        return x @ kernel + bias

    def metric_of(q, h):
        a = q.T @ q
        for *dense_layers, (gamma, beta) in weights["units"]:
            x = a
            for layer in dense_layers[:-1]:
                x = np.maximum(dense(x, layer), 0)
            a = a + dense(x, dense_layers[-1])
            centred = a - a.mean(-1, keepdims=True)
            a = gamma * centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6) + beta
        a = np.maximum(weights["W"][h] @ a + weights["b"][h], 0) + epsilon
        return weights["a"][h] @ a ** weights["P"][h] + weights["b_a"][h]

    q, k, v = (
        np.split(dense(np.asarray(x, "float64"), weights[name]), num_heads, axis=-1)
        for x, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    outputs, scores = [], []
    for h in range(num_heads):
        rows = []
        for t in range(len(query)):
            counted = k[h] if metric_from == "key" else q[h]
            g = metric_of(counted[: t + 1] if causal_metric else counted, h)
            energy = q[h][t] @ g @ k[h].T / np.sqrt(k[h].shape[-1])
            rows.append(np.where(energy > 0, energy, 0.2 * energy))
        exponentials = np.exp(rows - np.max(rows, axis=-1, keepdims=True))
        scores.append(exponentials / exponentials.sum(-1, keepdims=True))
        outputs.append(scores[-1] @ v[h])
    return dense(np.concatenate(outputs, -1), weights["output"]), np.stack(scores)
