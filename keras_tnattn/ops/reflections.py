"""Matrices with orthonormal columns as products of reflections.

`r` vectors `v_1, ..., v_r` in `J` dimensions give the reflections `H_k = 1 - 2 v_k v_k^T / |v_k|^2`
and the first `r` columns of their product,

    Q = H_1 ... H_r E = E - U S^-1 U^T E        S = 1 / 2 + strictly upper triangle of U^T U

with `u_k = v_k / |v_k|` and `E` the first `r` columns of the identity. A product of reflections is
orthogonal for any vectors, dependent ones included (`v_k = 0` counts as `H_k = 1`), and every `Q`
with `Q^T Q = 1` is reached, up to the signs of its columns. The diagonal of `S` is 1 / 2 and no
entry of its inverse exceeds 4, so that `Q` is orthonormal within rounding and differentiable from
any start. A QR decomposition of `(v_1, ..., v_r)` has no finite gradient where these are dependent.
"""

from keras import ops

from keras_tnattn.ops.precision import matmul
from keras_tnattn.ops.scan import normalized
from keras_tnattn.typing import Tensor


def orthonormal_columns(vectors: Tensor) -> Tensor:
    """Returns `Q` with `Q^T Q = 1`, for `4 J r^2 + r^3` FLOPs.

    Args:
        vectors: Float tensor `(J, r)`, `r <= J`: the vectors `v_k` of the reflections.

    Returns:
        Tensor `(J, r)`.
    """
    rank = vectors.shape[1]
    unit = ops.transpose(normalized(ops.transpose(vectors)[..., None])[..., 0])
    identity = ops.eye(*vectors.shape, dtype=vectors.dtype)
    products = ops.triu(matmul(ops.transpose(unit), unit), k=1) + identity[:rank] / 2
    solved = ops.solve_triangular(products, ops.transpose(unit[:rank]))
    return identity - matmul(unit, solved)
