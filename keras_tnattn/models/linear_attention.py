"""Tensor-network attention that computes linear attention, as its post constructs it."""

from typing import Any

import numpy as np
from keras import ops

from keras_tnattn.layers import TNAttention
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor


def linear_attention_layer(
    query_kernel: Tensor,
    key_kernel: Tensor,
    value_kernel: Tensor | None = None,
    exact: bool = True,
    **kwargs: Any,
) -> TNAttention:
    """Makes a built `TNAttention` that computes linear attention, with bond dimension `d^2 + 2`.

    With `q(j) = phi(j) W^Q`, `k(j) = phi(j) W^K`, `v(j) = phi(j) W^V` and embeddings of norm 1:

        y(j) = sum_{i != j} (q(j) . k(i)) v(i)

    (Žunkovič, section "TN attention as generalized linear-dot attention"). With the post's
    `d^2 + 1` states the printed sum over swaps does not result; it takes separate idle states
    before and after a swap. The chain is idle until a site `i` opens a swap, remembers `q(i)`
    and `k(i)` in one of `d^2` states, and is idle again after a site closes the swap. An output
    map `(W^Q)^-1 W^V` turns queries into values.

    `exact=True` applies `W^Q` and `W^K` only at the sites of the swap: an idle site contributes
    `phi . phi = 1`, and the site `j` itself is never idle. `exact=False` is the construction in
    the post, which applies both maps at every site and gives

        y(j) = c(j) v(j) + sum_{i != j} w(i, j) (q(j) . k(i)) v(i)
        w(i, j) = product over the other sites n of q(n) . k(n)

    where `c(j)` sums `(q(i) . k(l)) (q(l) . k(i))` over the pairs of other sites, each times
    the idle factors `q(n) . k(n)` of the rest. These factors are 1 only if `q(n) . k(n) = 1`
    at all sites.

    The sum of linear attention includes `i = j`: add `local_residual(phi, ...)`.

    Args:
        query_kernel: `W^Q`, `(d, d)`, invertible if `value_kernel` is given.
        key_kernel: `W^K`, `(d, d)`.
        value_kernel: `W^V`, `(d, k)`. Default: the values are the queries.
        exact: Whether the kernels are applied only at the sites of a swap. Defaults to `True`.
        **kwargs: Further arguments of the layer, for instance `name` and `dtype`.

    Returns:
        A built `TNAttention`. It costs `O(N d^6)`, so it is a special case to study or to start
        training from, not a fast linear attention.

    Raises:
        ValueError: If the shapes of the kernels do not match, or if `value_kernel` is given and
            `query_kernel` is singular.

    Example:
        >>> from keras_tnattn.models.linear_attention import linear_attention_layer
        >>> kernel = ops.eye(2)
        >>> layer = linear_attention_layer(kernel, kernel)
        >>> tuple(layer(ops.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])).shape)
        (1, 3, 2)
    """
    query, key = (
        ops.convert_to_numpy(kernel).astype("float64") for kernel in (query_kernel, key_kernel)
    )
    dim = len(query)
    if query.shape != (dim, dim) or key.shape != (dim, dim):
        raise ValueError(
            "Expected square query and key kernels of the same size. Received: "
            f"query_kernel.shape={query.shape}, key_kernel.shape={key.shape}"
        )
    output = np.eye(dim)
    if value_kernel is not None:
        value = ops.convert_to_numpy(value_kernel).astype("float64")
        if len(value) != dim or np.linalg.matrix_rank(query) < dim:
            raise ValueError(
                f"Expected values of {dim} features and an invertible query kernel. Received: "
                f"value_kernel.shape={value.shape}, query_kernel of rank "
                f"{np.linalg.matrix_rank(query)}"
            )
        output = np.linalg.solve(query, value)
    bond = dim**2 + 2
    # States: 0, idle before the swap; 1 + d t + s; d^2 + 1, idle after it.
    swap, idle = np.zeros((2, bond, bond, dim, dim))
    for t, s in np.ndindex(dim, dim):
        swap[0, 1 + dim * t + s, t, s] = swap[1 + dim * t + s, -1, s, t] = 1
    for state in range(bond):
        idle[state, state] = np.eye(dim)

    def at_kernels(operator: np.ndarray) -> np.ndarray:
        """Returns the operator between the query and the key of a site."""
        return np.einsum("abts,xt,ys->abxy", operator, query, key)

    attention = at_kernels(swap) + (idle if exact else at_kernels(idle))
    transformation = swap if exact else swap + idle
    # Row and column of the operator: W(j) maps q(j) to a sum of queries, those to values.
    transformation = np.einsum("abts,xt,sk->abxk", transformation, query, output)
    layer = TNAttention(
        output.shape[1],
        bond_dim=bond,
        boundary="open",
        attention_order=2,
        normalize=False,
        trainable_boundary=True,
        **kwargs,
    )
    layer.build((None, None, dim))
    start, end = np.eye(bond)[0], np.eye(bond)[-1]
    for weight, values in zip(layer.weights, (attention, transformation, start, end), strict=True):
        weight.assign(ops.convert_to_tensor(values, weight.dtype))
    return layer


def local_residual(
    inputs: Tensor, query_kernel: Tensor, key_kernel: Tensor, value_kernel: Tensor | None = None
) -> Tensor:
    """Returns `(q(j) . k(j)) v(j)`, the term of linear attention that the context lacks.

    This is the local residual connection of the post. Added to the outputs of
    `linear_attention_layer` it gives `y(j) = sum_i (q(j) . k(i)) v(i)`.

    Args:
        inputs: The embeddings `(B, N, d)`.
        query_kernel: `W^Q`, `(d, d)`.
        key_kernel: `W^K`, `(d, d)`.
        value_kernel: `W^V`, `(d, k)`. Default: the values are the queries.

    Returns:
        Tensor `(B, N, k)`.

    Example:
        >>> from keras_tnattn.models.linear_attention import local_residual
        >>> phi, kernel = ops.ones((1, 3, 2)), ops.eye(2)
        >>> tuple(local_residual(phi, kernel, kernel).shape)
        (1, 3, 2)
    """
    query, key = matmul(inputs, query_kernel), matmul(inputs, key_kernel)
    values = query if value_kernel is None else matmul(inputs, value_kernel)
    return ops.sum(query * key, axis=-1, keepdims=True) * values
