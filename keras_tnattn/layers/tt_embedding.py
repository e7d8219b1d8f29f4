"""A drop-in replacement for `keras.layers.Embedding` whose table is a tensor train."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.initializers import tt_core_weights
from keras_tnattn.layers.factored_embedding import (
    BaseFactoredEmbedding,
    checked_row_weights,
    embedding_options,
)
from keras_tnattn.ops import tensor_train
from keras_tnattn.ops.tensor_train import table as tt_table
from keras_tnattn.ops.tensor_train.factors import (
    as_ints,
    as_ranks,
    balanced_factors,
    check_factors,
    core_shapes,
    resolve_ranks,
)
from keras_tnattn.typing import Shape, Tensor

# The assumed number of ids in a call whose sizes are unknown.
_USUAL_IDS = 4096


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TTEmbedding(BaseFactoredEmbedding):
    """Embedding whose table `E` is a tensor train, which is only formed if that is cheaper.

    `E` of shape `(V, D)` is the first `V` rows of a TT-matrix with cores `G_n` of shape
    `(R_{n-1}, V_n, D_n, R_n)`, `R_0 = R_N = 1`, `prod(V_n) >= V`, `prod(D_n) = D`:
    `E[i] = G_1[:, i_1] @ ... @ G_N[:, i_N]`, where `i_1, ..., i_N` are the digits of `i` in the
    mixed radix `(V_1, ..., V_N)`, the last digit fastest (Hrinchuk et al., "Tensorized Embedding
    Layers", 2019, https://arxiv.org/abs/1901.10787, section 3). The layer has
    `sum(R_{n-1} V_n D_n R_n)` weights, whereas `keras.layers.Embedding` has `V D`: for 20,000 words
    with 64 features at rank 16, these are 32,128 instead of 1,280,000.

    Neighboring cores are merged before the lookup if that is cheaper, so that computations which
    the ids of a batch share are done once. An id then costs a gather of about `R D` numbers and
    `2 R D` FLOPs. The gradient of each core is dense, so that Adam handles repeated ids correctly.

    Ids that are close to each other share digits and therefore parameters, so sort the vocabulary
    by frequency or by similarity.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `D` of a row.
        tt_input_shape: `N` positive ints, the factors `V_n`; their product is at least `V`, and
            the rows above `V` are never used. Default: three near-equal factors.
        tt_output_shape: `N` positive ints, the factors of `D`. Default: as equal as the prime
            factors of `D` allow.
        tt_ranks: Int, the maximum TT-rank (clipped at each bond), or a sequence of `N - 1` ints.
            Defaults to 16.
        mask_zero: Whether id 0 is padding and masked. Defaults to `False`.
        embeddings_initializer: A Keras initializer; the table gets its variance, but not its
            distribution. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer applied to each core.
        embeddings_constraint: Constraint applied to each core.
        reorder_rows: Whether row `i` of the table is row `positions[i]` of the tensor train, so
            that similar rows can be neighbors there. `positions` are `V` integers that are not
            trained, initially `0, 1, 2, ...`. Defaults to `False`.
        reverse_dtype: Dtype of the logits of `reverse=True`. Defaults to the compute dtype.

    Call arguments:
        inputs: Integers `(...)`, ids in `[0, V)`; with `reverse`, floats `(..., D)`.
        reverse: Whether to return the logits `inputs @ E^T` instead. Defaults to `False`.

    Returns:
        Tensor `(..., D)`; with `reverse`, `(..., V)`.

    Raises:
        ValueError: If the factors do not fit the sizes, or a rank is above its bound.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn import TTEmbedding
        >>> layer = TTEmbedding(1000, 64, tt_ranks=8)
        >>> tuple(layer(np.array([[1, 2, 3]])).shape)
        (1, 3, 64)
        >>> layer.count_params()
        3200
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        tt_input_shape: Sequence[int] | None = None,
        tt_output_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] = 16,
        reorder_rows: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        self.tt_input_shape = as_ints(tt_input_shape, "tt_input_shape")
        self.tt_output_shape = as_ints(tt_output_shape, "tt_output_shape")
        self.tt_ranks = as_ranks(tt_ranks)
        self.reorder_rows = bool(reorder_rows)
        self.factors = self._resolved_factors()
        self.ranks = resolve_ranks(self.tt_ranks, *self.factors)

    def _resolved_factors(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rows, columns = self.tt_input_shape, self.tt_output_shape
        num_factors = len(rows or columns or (0, 0, 0))
        rows = rows or tt_table.row_factors(self.input_dim, num_factors)
        columns = columns or balanced_factors(self.output_dim, num_factors)
        check_factors(rows, columns)
        if math.prod(rows) < self.input_dim:
            raise ValueError(
                "Expected row factors whose product is at least input_dim. "
                f"Received: input_dim={self.input_dim}, tt_input_shape={rows}"
            )
        if math.prod(columns) != self.output_dim:
            raise ValueError(
                "Expected column factors whose product is output_dim. "
                f"Received: output_dim={self.output_dim}, tt_output_shape={columns}"
            )
        return rows, columns

    def build(self, input_shape: Shape | None = None) -> None:
        if self.reorder_rows:
            self.positions = self.add_weight(
                shape=(self.input_dim,),
                initializer=lambda shape, dtype: ops.arange(shape[0], dtype=dtype),
                dtype="uint16" if self.input_dim <= 2**16 else "int32",
                trainable=False,
                name="positions",
            )
        self._build_cores()
        self.built = True

    def _build_cores(self) -> None:
        weights = tt_core_weights(self.embeddings_initializer, *self.factors, self.ranks)
        self.cores = [
            self.add_weight(
                shape=shape,
                initializer=initializer,
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                name=f"core_{n}",
            )
            for n, (shape, initializer) in enumerate(weights)
        ]

    def _float_cores(self) -> list[Tensor]:
        """Returns the cores in the compute dtype."""
        return [ops.cast(core, self.compute_dtype) for core in self.cores]

    def _lookup(self, ids: Tensor) -> Tensor:
        # As in an `Embedding`, negative ids count from the end.
        ids = ops.where(ids < 0, ids + self.input_dim, ids)
        outside = ops.logical_or(ids < 0, ids >= self.input_dim)
        if self.reorder_rows:
            first = ops.where(outside, 0, ids)
            ids = ops.take(ops.cast(self.positions, "int32"), first, axis=0)
        # The tensor train may have rows without an id. None is looked up beyond its last row.
        ids = ops.where(outside, math.prod(self.factors[0]), ids)
        sizes = tuple(ids.shape)
        num_ids = _USUAL_IDS if None in sizes else max(math.prod(sizes), 1)
        blocks = tt_table.row_blocks(*self.factors, self.ranks, num_ids)
        return tt_table.tt_rows(ids, self._float_cores(), blocks)

    def _logits(self, features: Tensor) -> Tensor:
        transposed = [ops.swapaxes(core, 1, 2) for core in self._float_cores()]
        logits = tensor_train.tt_matmul(features, transposed)
        if self.reorder_rows:
            return ops.take(logits, ops.cast(self.positions, "int32"), axis=-1)
        return logits[..., : self.input_dim]

    @property
    def unused_rows(self) -> int:
        """The number of rows of the tensor train without an id, `prod(V_n) - V`."""
        return math.prod(self.factors[0]) - self.input_dim

    @classmethod
    def from_embedding(
        cls,
        layer: keras.layers.Embedding,
        tt_input_shape: Sequence[int] | None = None,
        tt_output_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] | None = None,
        tolerance: float | None = None,
        row_weights: Sequence[float] | np.ndarray | None = None,
        order: Sequence[int] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> "TTEmbedding":
        """Converts a trained `keras.layers.Embedding` to a `TTEmbedding` by TT-SVD.

        Args:
            layer: A built `Embedding` layer.
            tt_input_shape: The factors `V_n`. Default as in the constructor.
            tt_output_shape: The factors of `D`. Default as in the constructor.
            tt_ranks: The TT-ranks, or an int, their maximum. Pass either this or `tolerance`.
            tolerance: The maximum relative error of the TT-SVD in the Frobenius norm.
            row_weights: `V` non-negative weights of the squared errors of the rows, for instance
                the frequencies of the ids. Default: equal weights.
            order: With `reorder_rows=True`, the ids in the order of their rows in the tensor train.
                Default: ordered by similarity.
            **kwargs: Further arguments of the constructor. Default: the options of `layer`, except
                its constraint.

        Returns:
            A built layer; its attribute `relative_error` is `||E - E'|| / ||E||` in the Frobenius
            norm, with rows weighted by `row_weights` if given. It is not saved with the layer.

        Raises:
            ValueError: If the layer is not built or is quantized, both or none of `tt_ranks` and
                `tolerance` are given, `row_weights` or `order` do not fit the table, or `order` is
                given without `reorder_rows`.

        Example:
            >>> import keras
            >>> from keras_tnattn import TTEmbedding
            >>> dense = keras.layers.Embedding(100, 8)
            >>> dense.build()
            >>> layer = TTEmbedding.from_embedding(dense, (10, 10), (2, 4), tolerance=0.01)
            >>> layer.relative_error <= 0.01
            True
        """
        config = embedding_options(layer) | kwargs
        table = ops.convert_to_numpy(layer.embeddings)
        rows, columns = table.shape
        row_weights = checked_row_weights(row_weights, rows)
        draft = cls(rows, columns, tt_input_shape, tt_output_shape, 1, **config)
        if order is not None:
            order = _checked_order(order, rows, draft.reorder_rows)
        elif draft.reorder_rows:
            order = tt_table.similarity_order(table)
        else:
            order = np.arange(rows)
        cores, error = tt_table.table_to_tt(
            table[order],
            *draft.factors,
            tt_ranks,
            tolerance,
            None if row_weights is None else row_weights[order],
        )
        ranks = tuple(core.shape[-1] for core in cores[:-1])
        new = cls(rows, columns, tt_input_shape, tt_output_shape, ranks, **config)
        new.build()
        new.assign_cores(cores)
        if new.reorder_rows:
            new.positions.assign(np.argsort(order))
        new.relative_error = error
        return new

    def assign_cores(self, cores: Sequence[np.ndarray]) -> None:
        """Sets the cores from float arrays `(R_{n-1}, V_n, D_n, R_n)`."""
        for weight, core in zip(self.cores, cores, strict=True):
            weight.assign(core)

    def describe(self) -> str:
        """Returns the number of weights, the unused rows and the plan of a lookup."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        shapes = ", ".join(str(s) for s in core_shapes(*self.factors, self.ranks))
        stored = sum(math.prod(s) for s in core_shapes(*self.factors, self.ranks))
        full = self.input_dim * self.output_dim
        blocks = tt_table.row_blocks(*self.factors, self.ranks, _USUAL_IDS)
        lookup = "the whole table is formed" if len(blocks) == 1 else f"blocks of {blocks} cores"
        return (
            f"{self.name}: table ({self.input_dim}, {self.output_dim}), {stored:,} weights against "
            f"{full:,} ({full / stored:.1f} times fewer), {self.unused_rows:,} rows never used\n"
            f"  cores {shapes}; {_USUAL_IDS:,} ids at once: {lookup}"
        )


def _checked_order(order: Any, num_rows: int, reorder_rows: bool) -> np.ndarray:
    """Returns the order of the rows as an array, if it is a permutation that can be kept."""
    if not reorder_rows:
        raise ValueError(
            "Expected reorder_rows=True with an order of the rows. Received: reorder_rows=False"
        )
    order = np.asarray(order)
    if order.shape != (num_rows,) or not np.array_equal(np.sort(order), np.arange(num_rows)):
        raise ValueError(
            f"Expected each id from 0 to {num_rows - 1} once. "
            f"Received: order of shape {order.shape}, beginning with {order.ravel()[:5].tolist()}"
        )
    return order
