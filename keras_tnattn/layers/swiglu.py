"""The gated feed-forward net SwiGLU."""

from typing import Any, ClassVar

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer
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
        self,
        hidden_dim: int,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = check_int("hidden_dim", hidden_dim)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        def dense(units: int, size: int, name: str, activation: str | None = None) -> Any:
            layer = keras.layers.Dense(
                units,
                activation=activation,
                # An initializer that is used twice gives the same values twice.
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )
            layer.build((None, size))
            return layer

        dim = input_shape[-1]
        self.hidden = dense(self.hidden_dim, dim, "hidden", "silu")
        self.gate = dense(self.hidden_dim, dim, "gate")
        self.projection = dense(dim, self.hidden_dim, "projection")
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        return self.projection(self.hidden(inputs) * self.gate(inputs))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)
