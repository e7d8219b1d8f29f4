"""The base class of the embeddings whose table is a product of smaller tensors."""

from typing import Any, ClassVar, TypeVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer, check_float
from keras_tnattn.storage import integer_groups
from keras_tnattn.storage.integer_kernels import PARTS
from keras_tnattn.storage.stand_ins import StoredMatrix
from keras_tnattn.typing import Constraint, Initializer, Regularizer, Shape, Tensor

BASIS_BITS = 8  # of a basis beside integers
Embedding = TypeVar("Embedding", bound="BaseFactoredEmbedding")


class BaseFactoredEmbedding(BaseLayer):
    """Maps ids `(...)` to rows `(..., D)`; with `reverse`, vectors `(..., D)` to logits `(..., V)`.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `D` of a row.
        mask_zero: Whether id 0 is padding and masked.
        bits: 2, 3, 4, 6 or 8 to store weights as integers, or `None`.
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
        bits: int | None = None,
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
        if bits is not None:
            integer_groups.check_group_bits(bits)
        self.mask_zero, self.bits = bool(mask_zero), bits
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

    def _unfilled_copy(self: Embedding, name: str, bits: Any, **config: Any) -> Embedding:
        """Returns a built copy with `name=bits`, whose weights are still to be set."""
        if not self.built or getattr(self, name) is not None:
            raise ValueError(
                "Expected a built layer that is not quantized yet. "
                f"Received: built={self.built}, {name}={getattr(self, name)}"
            )
        new = type(self).from_config({**self.get_config(), **config, name: bits})
        new.build()
        return new


class PackedMatrix:
    """Weights of a layer that store a matrix as integers in groups along its rows.

    Args:
        layer: The layer, which gets the weights.
        name: What their names begin with.
        shape: The shape of the matrix.
        bits: 2, 3, 4, 6 or 8.
        group_size: Entries that share a scale and a zero. Default: those of a whole row.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        name: str,
        shape: tuple[int, int],
        bits: int,
        group_size: int | None = None,
    ) -> None:
        self.shape, self.bits, self.group_size = shape, bits, group_size or shape[1]
        options = {"trainable": False, "autocast": False}
        shapes = integer_groups.packed_shapes(shape, bits, self.group_size, axis=1)
        dtypes = {part: "float32" if part == "largest" else "uint8" for part in PARTS}
        self.weights = [
            layer.add_weight(
                shapes[part], "zeros", dtype=dtypes[part], name=f"{name}_{part}", **options
            )
            for part in PARTS
        ]

    def assign(self, matrix: np.ndarray, steps: np.ndarray | None = None) -> None:
        """Quantizes a matrix of floats.

        Args:
            matrix: The matrix.
            steps: The step of each row, if a row is a group. Default: those of small errors.
        """
        if steps is None:
            groups = integer_groups.quantize_groups(matrix, self.bits, self.group_size, axis=1)
        else:
            groups = integer_groups.quantize_in_steps(matrix, steps, self.bits)
        for weight, part in zip(self.weights, groups, strict=True):
            weight.assign(part)

    def rounded(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the integers of a matrix with the present steps, and what they stand for."""
        return integer_groups.round_to_groups(
            matrix, self.weights, self.bits, self.group_size, axis=1
        )

    def rows(self, ids: Tensor | None = None) -> Tensor:
        """Returns rows in float32. Default: all."""
        *parts, largest = map(ops.convert_to_tensor, self.weights)
        if ids is not None:
            parts = [ops.take(part, ids, axis=0) for part in parts]
        return integer_groups.dequantize_groups(
            [*parts, largest], self.shape[1], self.bits, self.group_size, axis=1
        )

    def stored_matrix(self) -> StoredMatrix:
        """Returns the matrix, for which a tensor can stand."""
        arrays = integer_groups.numbers_of_groups(self.weights, self.shape[1], self.bits, axis=1)
        return StoredMatrix(*arrays, self.bits, self.group_size, 1, self.shape, (0, 1))


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
