"""Matrices with orthonormal columns as products of reflections, and idempotent matrices from them.

`r` vectors `v_1, ..., v_r` in `J` dimensions give the reflections `H_k = 1 - 2 v_k v_k^T / |v_k|^2`
and the first `r` columns of their product,

    Q = H_1 ... H_r E = E - U S^-1 U^T E        S = 1 / 2 + strictly upper triangle of U^T U

with `u_k = v_k / |v_k|` and `E` the first `r` columns of the identity. A product of reflections is
orthogonal for any vectors, even linearly dependent ones (`v_k = 0` counts as `H_k = 1`), and every
`Q` with `Q^T Q = 1` can be written like this, up to the signs of its columns. The diagonal of `S`
is 1 / 2 and no entry of its inverse exceeds 4, so `Q` is orthonormal up to rounding and has a
finite gradient everywhere; the QR decomposition of dependent vectors has none.

`Q Q^T` is the orthogonal projector on the span of the columns. Every idempotent matrix of rank `r`
with that range is `Q R` with `R Q = 1`, that is, `R = Q^T + S` with rows of `S` orthogonal to the
columns of `Q`. It is symmetric only for `S = 0`, and its spectral norm is `sqrt(1 + |S|^2)`.
"""

from keras import ops

from keras_tnattn.ops.norms import divide_by_norm
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor


def orthonormal_columns(vectors: Tensor) -> Tensor:
    """Returns `Q` with `Q^T Q = 1`, for `4 J r^2 + r^3` FLOPs.

    Args:
        vectors: Float tensor `(J, r)`, `r <= J`: the vectors `v_k` of the reflections.

    Returns:
        Tensor `(J, r)`.

    Example:
        >>> import keras
        >>> columns = orthonormal_columns(keras.ops.ones((3, 1)))
        >>> round(float(keras.ops.sum(columns**2)), 5)
        1.0
    """
    rank = vectors.shape[1]
    unit = ops.transpose(divide_by_norm(ops.transpose(vectors)[..., None])[..., 0])
    identity = ops.eye(*vectors.shape, dtype=vectors.dtype)
    products = ops.triu(matmul(ops.transpose(unit), unit), k=1) + identity[:rank] / 2
    solved = ops.solve_triangular(products, ops.transpose(unit[:rank]))
    return identity - matmul(unit, solved)


def oblique_rows(columns: Tensor, shear: Tensor, max_norm: float) -> Tensor:
    """Returns `R` with `R Q = 1`, so that `Q R` is idempotent, for `4 J r^2` FLOPs.

    `R = Q^T + S`, where `S` is the part of `shear` orthogonal to the columns of `Q`, scaled by
    `m / sqrt(m^2 + |shear|^2)` with `m^2 = max_norm^2 - 1` and the Frobenius norm. The spectral
    norm of `Q R` is below `max_norm` for any `shear`, and 1 (an orthogonal projector) for 0.

    Args:
        columns: Float tensor `Q`, `(J, r)`, with orthonormal columns.
        shear: Float tensor `(r, J)`.
        max_norm: The bound, greater than 1.

    Returns:
        Tensor `(r, J)`.

    Example:
        >>> import keras
        >>> q = keras.ops.eye(3, 1)
        >>> rows = oblique_rows(q, keras.ops.ones((1, 3)), max_norm=2.0)
        >>> float(keras.ops.matmul(rows, q)[0, 0])
        1.0
    """
    bound = (max_norm**2 - 1) ** 0.5
    # Divide by the bound and the largest entry first: a huge shear would overflow when squared.
    shear = shear / bound
    largest = ops.stop_gradient(ops.maximum(ops.max(ops.abs(shear)), ops.ones_like(shear[0, 0])))
    norm = largest * ops.sqrt(ops.square(1 / largest) + ops.sum(ops.square(shear / largest)))
    shear = (bound / norm) * shear
    overlap = matmul(shear, columns)
    return ops.transpose(columns) + shear - matmul(overlap, ops.transpose(columns))
