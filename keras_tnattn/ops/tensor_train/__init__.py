"""Tensor-train (TT) matrices: factorization, ranks, TT-SVD and contraction.

A TT-matrix `W` of shape `(I, J)`, `I = prod(I_n)` and `J = prod(J_n)`, is held as `N` TT-cores
`G_n` of shape `(R_{n-1}, I_n, J_n, R_n)` with `R_0 = R_N = 1`:

    W[i, j] = G_1[:, i_1, j_1, :] @ G_2[:, i_2, j_2, :] @ ... @ G_N[:, i_N, j_N, :]

Multi-indices run in C order (`i_N` fastest). Equations 1-3 of Xu et al., "Low-Complexity Attention
Modelling via Graph Tensor Networks"; Oseledets (2011) for the decomposition.
"""

from keras_tnattn.ops.tensor_train.contraction import tt_matmul, tt_to_matrix
from keras_tnattn.ops.tensor_train.decomposition import matrix_to_tt
from keras_tnattn.ops.tensor_train.suggestion import suggest_shapes

__all__ = ["matrix_to_tt", "suggest_shapes", "tt_matmul", "tt_to_matrix"]
