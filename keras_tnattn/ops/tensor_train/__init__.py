"""Tensor-train (TT) matrices: factorization, ranks, TT-SVD and contraction.

A TT-matrix `W` of shape `(I, J)`, `I = prod(I_n)` and `J = prod(J_n)`, is held as `N` TT-cores
`G_n` of shape `(R_{n-1}, I_n, J_n, R_n)` with `R_0 = R_N = 1`:

    W[i, j] = G_1[:, i_1, j_1, :] @ G_2[:, i_2, j_2, :] @ ... @ G_N[:, i_N, j_N, :]

Multi-indices run in C order (`i_N` fastest). Equations 1-3 of Xu et al., "Low-Complexity Attention
Modelling via Graph Tensor Networks"; Oseledets (2011) for the decomposition.
"""

from keras_tnattn.ops.tensor_train.contraction import (
    ContractionPlan,
    contraction_plan,
    merge,
    plan_of,
    tt_matmul,
    tt_matmul_heads,
    tt_to_matrix,
)
from keras_tnattn.ops.tensor_train.decomposition import matrix_to_tt
from keras_tnattn.ops.tensor_train.factors import (
    as_ints,
    as_ranks,
    balanced_factors,
    check_both_factors,
    check_factors,
    core_shapes,
    prime_factors,
    rank_bounds,
    resolve_factors,
    resolve_ranks,
    tt_shapes,
)
from keras_tnattn.ops.tensor_train.suggestion import SuggestedShapes, suggest_shapes

__all__ = [
    "ContractionPlan",
    "SuggestedShapes",
    "as_ints",
    "as_ranks",
    "balanced_factors",
    "check_both_factors",
    "check_factors",
    "contraction_plan",
    "core_shapes",
    "matrix_to_tt",
    "merge",
    "plan_of",
    "prime_factors",
    "rank_bounds",
    "resolve_factors",
    "resolve_ranks",
    "suggest_shapes",
    "tt_matmul",
    "tt_matmul_heads",
    "tt_shapes",
    "tt_to_matrix",
]
