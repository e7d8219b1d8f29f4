"""A drop-in replacement for `keras.layers.Embedding` whose table is a low-rank product."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import kernel_variance
from keras_tnattn.layers.factored_embedding import (
    BaseFactoredEmbedding,
    checked_row_weights,
    embedding_options,
)
from keras_tnattn.ops import low_rank
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LowRankEmbedding(BaseFactoredEmbedding):
    """Embedding whose table is a product `E = A B` of rank `r`.

    Row `i` of `A`, of shape `(V, r)`, has the coordinates of id `i` in the basis `B`, of shape
    `(r, D)`. The layer has `r (V + D)` weights, whereas `keras.layers.Embedding` has `V D`, and
    costs `2 r D` FLOPs per id. The gradient of `A` is dense, so that Adam handles repeated ids
    correctly.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `D` of a row.
        rank: Rank `r` of the table.
        mask_zero: Whether id 0 is padding and masked. Defaults to `False`.
        embeddings_initializer: A Keras initializer; the table gets its variance, but not its
            distribution. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer applied to `A` and to `B`.
        embeddings_constraint: Constraint applied to `A` and to `B`.
        reverse_dtype: Dtype of the logits of `reverse=True`. Defaults to the compute dtype.

    Call arguments:
        inputs: Integers `(...)`, ids in `[0, V)`; with `reverse`, floats `(..., D)`.
        reverse: Whether to return the logits `inputs @ E^T` instead. Defaults to `False`.

    Returns:
        Tensor `(..., D)`; with `reverse`, `(..., V)`.

    Raises:
        ValueError: If a size is not a positive int.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn import LowRankEmbedding
        >>> layer = LowRankEmbedding(1000, 64, rank=8)
        >>> tuple(layer(np.array([[1, 2, 3]])).shape)
        (1, 3, 64)
        >>> layer.count_params()
        8512
    """

    def __init__(self, input_dim: int, output_dim: int, rank: int, **kwargs: Any) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        self.rank = check_int("rank", rank)

    def build(self, input_shape: Shape | None = None) -> None:
        variance = kernel_variance(self.embeddings_initializer, self.input_dim, self.output_dim)
        options = {
            "regularizer": self.embeddings_regularizer,
            "constraint": self.embeddings_constraint,
        }
        # An entry of the product sums `rank` products. The basis preserves the size of a row, so
        # that the coordinates have the variance of the table.
        seed = self.embeddings_initializer.get_config().get("seed")
        seeds = (seed, seed + 1) if isinstance(seed, int) else (None, None)
        self.coordinates = self.add_weight(
            (self.input_dim, self.rank),
            keras.initializers.RandomNormal(stddev=variance**0.5, seed=seeds[0]),
            name="coordinates",
            **options,
        )
        self.basis = self.add_weight(
            (self.rank, self.output_dim),
            keras.initializers.RandomNormal(stddev=self.rank**-0.5, seed=seeds[1]),
            name="basis",
            **options,
        )
        self.built = True

    def _float_basis(self) -> Tensor:
        return ops.cast(self.basis, self.compute_dtype)

    def _rows(self, ids: Tensor | None = None) -> Tensor:
        """Returns the coordinates of ids. Default: of all ids."""
        # Multiplying by 1 gives the table a dense gradient on TensorFlow.
        table = ops.multiply(self.coordinates, 1)
        rows = table if ids is None else ops.take(table, ids, axis=0)
        return ops.cast(rows, self.compute_dtype)

    def _lookup(self, ids: Tensor) -> Tensor:
        return ops.matmul(self._rows(ids), self._float_basis())

    def _logits(self, features: Tensor) -> Tensor:
        coordinates = ops.matmul(features, ops.transpose(self._float_basis()))
        return ops.matmul(coordinates, ops.transpose(self._rows()))

    @classmethod
    def from_embedding(
        cls,
        layer: keras.layers.Embedding,
        rank: int | None = None,
        tolerance: float | None = None,
        row_weights: Sequence[float] | np.ndarray | None = None,
        **kwargs: Any,
    ) -> "LowRankEmbedding":
        """Converts a trained `keras.layers.Embedding` to a `LowRankEmbedding` by SVD.

        Args:
            layer: A built `Embedding` layer.
            rank: The maximum rank. Pass either this or `tolerance`.
            tolerance: The maximum relative error.
            row_weights: `V` non-negative weights of the squared errors of the rows, for instance
                the frequencies of the ids. Default: equal weights.
            **kwargs: Further arguments of the constructor. Default: the options of `layer`, except
                its constraint.

        Returns:
            A built layer; its attribute `relative_error` is `||E - E'|| / ||E||` in the Frobenius
            norm, with rows weighted by `row_weights` if given. It is not saved with the layer.

        Raises:
            ValueError: If the layer is not built or is quantized, both or none of `rank` and
                `tolerance` are given, or `row_weights` do not fit the table.

        Example:
            >>> import keras
            >>> from keras_tnattn import LowRankEmbedding
            >>> dense = keras.layers.Embedding(100, 8)
            >>> dense.build()
            >>> LowRankEmbedding.from_embedding(dense, rank=8).relative_error < 1e-6
            True
        """
        config = embedding_options(layer) | kwargs
        table = ops.convert_to_numpy(layer.embeddings)
        row_weights = checked_row_weights(row_weights, len(table))
        scale = None if row_weights is None else np.sqrt(row_weights)
        left, right, errors = low_rank.low_rank_factors(table, scale)
        rank = low_rank.chosen_rank(errors, rank, tolerance)
        rows, columns = table.shape
        new = cls(rows, columns, rank, **config)
        new.build()
        new.assign_factors(left[:, :rank], right[:rank])
        new.relative_error = float(errors[rank])
        return new

    def assign_factors(self, left: np.ndarray, right: np.ndarray) -> None:
        """Sets `A` and `B` from float arrays."""
        self.coordinates.assign(left)
        self.basis.assign(right)
