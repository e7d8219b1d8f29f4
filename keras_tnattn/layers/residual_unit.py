"""The residual unit that learns the metric of power law graph attention."""

from typing import Any

import keras

from keras_tnattn.checks import check_int, check_rate
from keras_tnattn.layers.swiglu import SwiGLU
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class ResidualUnit(keras.layers.Layer):
    """`x <- LayerNorm(x + Dropout(Dense(k)(ReLU(Dense(f)(... x)))))` on vectors of size `k`.

    The step of Gokden, "Power Law Graph Transformer" (section 3.1 and Figure 1), that learns the
    metric tensor. With `gated=True` the branch is `n` `SwiGLU` nets, as in his language models. The
    sum and its normalization are computed in float32 under every dtype policy; with float16 the
    dense layers are, too, because a metric is a sum over a sentence and can overflow.

    Args:
        hidden_dim: Width `f` of the hidden layers.
        num_hidden: Number of hidden layers, which may be 0. Defaults to 2.
        dropout: Dropout rate before the residual sum. Defaults to 0.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        gated: Whether the branch is `num_hidden` nets `SwiGLU(f)`, one after the other, instead of
            dense layers. Defaults to `False`.

    Call arguments:
        inputs: Float tensor `(N, k)` in float32 or wider.
        training: Whether dropout is active.

    Returns:
        Tensor `(N, k)` in the dtype of `inputs`.

    Raises:
        ValueError: If a size or the rate is out of range.

    Example:
        >>> import keras
        >>> from keras_tnattn.layers.residual_unit import ResidualUnit
        >>> tuple(ResidualUnit(hidden_dim=16)(keras.ops.ones((3, 4))).shape)
        (3, 4)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_hidden: int = 2,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        gated: bool = False,
        **kwargs: Any,
    ) -> None:
        # The metric arrives in float32 and leaves in float32.
        super().__init__(autocast=False, **kwargs)
        self.hidden_dim = check_int("hidden_dim", hidden_dim)
        self.num_hidden = check_int("num_hidden", num_hidden, at_least=0)
        self.dropout = check_rate("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated = bool(gated)

    def build(self, input_shape: Shape) -> None:
        dtype = "float32" if self.compute_dtype == "float16" else self.dtype_policy

        def dense(units: int, size: int | None, name: str, activation: str | None) -> Any:
            layer = keras.layers.Dense(
                units,
                activation=activation,
                # An initializer that is used twice gives the same values twice.
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=dtype,
                name=f"{self.name}_{name}",
            )
            layer.build((None, size))
            return layer

        # Assign the list at once instead of appending, so that `compress` can replace its layers.
        if self.gated:
            self.hidden = [
                SwiGLU(
                    self.hidden_dim,
                    self.kernel_initializer,
                    dtype=dtype,
                    name=f"{self.name}_gated_{j}",
                )
                for j in range(self.num_hidden)
            ]
            for layer in self.hidden:
                layer.build(input_shape)
            self.projection = None
        else:
            sizes = [input_shape[-1], *[self.hidden_dim] * self.num_hidden]
            self.hidden = [
                dense(self.hidden_dim, size, f"dense_{j}", "relu")
                for j, size in enumerate(sizes[:-1])
            ]
            self.projection = dense(input_shape[-1], sizes[-1], "projection", None)
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=dtype, name=f"{self.name}_dropout"
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=1e-6, dtype=at_least_float32(self.variable_dtype), name=f"{self.name}_norm"
        )
        self.norm.build(input_shape)
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        branch = inputs
        for layer in self.hidden:
            branch = layer(branch)
        if self.projection is not None:
            branch = self.projection(branch)
        branch = self.dropout_layer(branch, training=training)
        return self.norm(inputs + keras.ops.cast(branch, inputs.dtype))

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_hidden": self.num_hidden,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "gated": self.gated,
        }
