"""The base class of the embeddings whose table is a product of smaller tensors."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer, check_float
from keras_tnattn.typing import Constraint, Initializer, Regularizer, Shape, Tensor


class BaseFactoredEmbedding(BaseLayer):
    """Maps ids `(...)` to rows `(..., D)`; with `reverse`, vectors `(..., D)` to logits `(..., V)`.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `D` of a row.
        mask_zero: Whether id 0 is padding and masked.
        embeddings_initializer: A Keras initializer; the table gets its variance, but not its
            distribution.
        embeddings_regularizer: Regularizer applied to each factor.
        embeddings_constraint: Constraint applied to each factor.
        reverse_dtype: Dtype of the logits, or `None` for the compute dtype.
    """

    call_shapes: ClassVar = {"inputs": "..."}
    fixes_sizes = False

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        mask_zero: bool = False,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        reverse_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("autocast", False)  # float16 cannot represent every id above 2,048
        super().__init__(**kwargs)
        self.input_dim = check_int("input_dim", input_dim)
        self.output_dim = check_int("output_dim", output_dim)
        self.mask_zero = bool(mask_zero)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.reverse_dtype = reverse_dtype
        self._reverse = False  # of the last call

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        self._reverse = reverse
        if not reverse:
            return self._lookup(ops.cast(inputs, "int32"))
        if inputs.shape[-1] != self.output_dim:
            raise ValueError(
                f"Expected inputs (..., {self.output_dim}) with reverse=True. "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        logits = self._logits(ops.cast(inputs, self.compute_dtype))
        return ops.cast(logits, self.reverse_dtype or self.compute_dtype)

    def _lookup(self, ids: Tensor) -> Tensor:
        """Returns the rows `(..., D)` of ids."""
        raise NotImplementedError

    def _logits(self, features: Tensor) -> Tensor:
        """Returns the products `(..., V)` of features `(..., D)` with all rows."""
        raise NotImplementedError

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor | None:
        # Keras calls this right after `call` or `compute_output_spec`, without `reverse`.
        # Integers are ids; floats may be ids or features.
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if self._reverse and keras.backend.is_float_dtype(dtype):
            return mask
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Shape, reverse: bool = False) -> Shape:
        if reverse:
            return (*input_shape[:-1], self.input_dim)
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Tensor, reverse: bool = False) -> keras.KerasTensor:
        self._reverse = reverse
        shape = self.compute_output_shape(inputs.shape, reverse)
        dtype = self.reverse_dtype if reverse and self.reverse_dtype else self.compute_dtype
        return keras.KerasTensor(shape, dtype)


def checked_row_weights(row_weights: Any, num_rows: int) -> np.ndarray | None:
    """Returns the weights of a table's rows as an array `(V,)`, or `None` if there are none.

    Raises:
        ValueError: If they are not `V` finite numbers of at least 0 with a positive sum.
    """
    if row_weights is None:
        return None
    weights = np.asarray(row_weights, "float64")
    if weights.shape != (num_rows,):
        raise ValueError(
            f"Expected {num_rows} row_weights, one for each row of the table. "
            f"Received: row_weights of shape {weights.shape}"
        )
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.sum() > 0):
        raise ValueError(
            "Expected finite row_weights of at least 0, not all of them 0. "
            f"Received: row_weights from {weights.min()} to {weights.max()}"
        )
    return weights


def embedding_options(layer: keras.layers.Embedding) -> dict[str, Any]:
    """Returns the constructor arguments that a factored layer takes over from an embedding.

    The regularizer of the table is applied to the factors. The constraint of the table is left out,
    because a constraint of the factors would not be one of their product.

    Raises:
        ValueError: If the embedding is not built, or is quantized.
    """
    if not layer.built:
        raise ValueError(f"Expected a built Embedding layer. Received: layer={layer.name}")
    check_float(layer)
    return {
        "mask_zero": layer.mask_zero,
        "reverse_dtype": getattr(layer, "reverse_dtype", None),
        "embeddings_regularizer": layer.embeddings_regularizer,
        "activity_regularizer": layer.activity_regularizer,
        "trainable": layer.trainable,
        "dtype": layer.dtype_policy,
        "name": layer.name,
    }
