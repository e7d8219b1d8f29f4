"""The gated feed-forward net SwiGLU."""

from typing import Any, ClassVar

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer, built_dense
from keras_tnattn.typing import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class SwiGLU(BaseLayer):
    """`Dense(d)(silu(Dense(f)(x)) * Dense(f)(x))`, a feed-forward net with a gate.

    Shazeer, "GLU Variants Improve Transformer", equation 6 (https://arxiv.org/abs/2002.05202).
    `3 d f` weights besides the biases, and `6 d f` FLOPs per token.

    Args:
        hidden_dim: Hidden size `f`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.

    Call arguments:
        inputs: Float tensor `(..., d)`.

    Returns:
        Tensor `(..., d)`.

    Raises:
        ValueError: If `hidden_dim` is not a positive int.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> tuple(keras_tnattn.SwiGLU(16)(keras.ops.ones((3, 4))).shape)
        (3, 4)
    """

    call_shapes: ClassVar = {"inputs": "B ... d"}

    def __init__(
        self, hidden_dim: int, kernel_initializer: Initializer = "glorot_uniform", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = check_int("hidden_dim", hidden_dim)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: Shape) -> None:
        dim = input_shape[-1]
        hidden = (None, self.hidden_dim)
        self.hidden = built_dense(self, self.hidden_dim, input_shape, "hidden", activation="silu")
        self.gate = built_dense(self, self.hidden_dim, input_shape, "gate")
        self.projection = built_dense(self, dim, hidden, "projection")
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        return self.projection(self.hidden(inputs) * self.gate(inputs))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)
