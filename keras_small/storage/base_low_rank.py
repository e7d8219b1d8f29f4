"""The base class of layers whose kernel is a product of two thin matrices."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import kernel_variance
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import low_rank
from keras_tnattn.typing import Activation, Constraint, DType, Initializer, Regularizer, Tensor


class BaseLowRank(BaseLayer):
    """Two Keras layers, `outer(inner(x))`, so that `keras.Model.quantize` can quantize both."""

    call_shapes: ClassVar = {"inputs": "B ..."}
    fixes_sizes = False

    def __init__(
        self,
        rank: int,
        activation: Activation | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        factor_dtypes: Sequence[DType] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rank = check_int("rank", rank)
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.factor_dtypes = factor_dtypes and [
            keras.dtype_policies.get(dtype) for dtype in factor_dtypes
        ]

    def _options(self, input_dim: int, output_dim: int) -> tuple[dict, dict]:
        """Returns the arguments of the inner and the outer layer."""
        variance = kernel_variance(self.kernel_initializer, input_dim, output_dim)
        # An entry of the product sums `rank` products of two entries.
        stddev = (variance / self.rank) ** 0.25
        seed = self.kernel_initializer.get_config().get("seed")
        seeds = (seed, seed + 1) if isinstance(seed, int) else (None, None)
        dtypes = self.factor_dtypes or (self.dtype_policy, self.dtype_policy)
        inner, outer = (
            {
                "kernel_initializer": keras.initializers.RandomNormal(stddev=stddev, seed=seed),
                "kernel_regularizer": self.kernel_regularizer,
                "kernel_constraint": self.kernel_constraint,
                "dtype": dtype,
                "name": name,
            }
            for name, dtype, seed in zip(("inner", "outer"), dtypes, seeds, strict=True)
        )
        outer |= {
            "activation": self.activation,
            "bias_initializer": self.bias_initializer,
            "bias_regularizer": self.bias_regularizer,
            "bias_constraint": self.bias_constraint,
        }
        return inner, outer

    def call(self, inputs: Tensor) -> Tensor:
        return self.outer(self.inner(inputs))

    def enable_lora(self, rank: int, **options: Any) -> None:
        """Freezes the factors, and trains a low-rank correction of each, as Keras' layers do."""
        for layer in (self.inner, self.outer):
            layer.enable_lora(min(rank, self.rank), **options)

    def assign_factors(
        self, left: np.ndarray, right: np.ndarray, bias: np.ndarray | None = None
    ) -> None:
        """Sets the kernels from matrices `(I, r)` and `(r, J)`, and the bias."""
        self.inner.kernel.assign(np.reshape(left, self.inner.kernel.shape))
        self.outer.kernel.assign(np.reshape(right, self.outer.kernel.shape))
        if bias is not None:
            self.outer.bias.assign(np.reshape(bias, self.outer.bias.shape))

    @classmethod
    def _of_matrix(
        cls,
        layer: keras.layers.Layer,
        matrix: np.ndarray,
        moment: np.ndarray | None,
        ranks: tuple[int | None, float | None],
        **kwargs: Any,
    ) -> Any:
        """Returns a layer with the factors of a layer's kernel, for a rank or a tolerance."""
        left, right, errors = low_rank.low_rank_factors(matrix, moment=moment)
        rank = low_rank.chosen_rank(errors, *ranks)
        new = cls.like(layer, rank, **kwargs)
        new.build(layer.get_build_config()["input_shape"])
        bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
        new.assign_factors(left[:, :rank], right[:rank], bias)
        new.relative_error = float(errors[rank])
        return new

    @classmethod
    def like(cls, layer: keras.layers.Layer, rank: int, **kwargs: Any) -> Any:
        """Returns an unbuilt layer of a rank with the options of one of Keras.

        The regularizer of the kernel is applied to both factors; its constraint is left out.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        dtypes = self.factor_dtypes
        if self.built:
            # Keras' `quantize` changes the policies of the inner and the outer layer.
            current = [self.inner.dtype_policy, self.outer.dtype_policy]
            dtypes = dtypes if all(p == self.dtype_policy for p in current) else current
        serialized = dtypes and [keras.dtype_policies.serialize(p) for p in dtypes]
        return {**super().get_config(), "factor_dtypes": serialized}
