"""Reshapes tokens from vectors to tensors of features."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.tensor_train.factors import as_ints, prime_factors
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TensorizeTokens(BaseLayer):
    """Reshapes the features of each token to a tensor, and keeps the mask.

    The tensorization `ten(X)` of Xu et al., "Low-Complexity Attention Modelling via Graph Tensor
    Networks" (section 4), in C order. Unlike `keras.layers.Reshape` it keeps the mask.

    Args:
        token_shape: The factors `(I_1, ..., I_N)` of the feature axis. Default: quantized, all 2,
            for a power of two, else its prime factors.

    Call arguments:
        inputs: Tensor `(B, L, I)`.

    Returns:
        Tensor `(B, L, I_1, ..., I_N)`.

    Example:
        >>> tuple(TensorizeTokens()(keras.ops.ones((2, 7, 16))).shape)
        (2, 7, 2, 2, 2, 2)
    """

    call_shapes: ClassVar = {"inputs": "B L I"}
    fixes_sizes = False

    def __init__(self, token_shape: Sequence[int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.token_shape = as_ints(token_shape, "token_shape")

    def build(self, input_shape: Shape) -> None:
        self._shape(input_shape)
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        return ops.reshape(inputs, (*ops.shape(inputs)[:2], *self._shape(inputs.shape)))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape[:2], *self._shape(input_shape))

    def _shape(self, input_shape: Shape) -> tuple[int, ...]:
        if input_shape[-1] is None:
            raise ValueError(f"Expected a known last axis. Received: input_shape={input_shape}")
        if self.token_shape is None:
            return tuple(prime_factors(input_shape[-1]))
        if math.prod(self.token_shape) != input_shape[-1]:
            raise ValueError(
                "Expected factors whose product is the last axis of the input. "
                f"Received: token_shape={self.token_shape}, input_shape={tuple(input_shape)}"
            )
        return self.token_shape
