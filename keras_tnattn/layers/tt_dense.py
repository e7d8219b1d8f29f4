"""A drop-in replacement for `keras.layers.Dense` whose kernel is a TT-matrix."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import tt_core_weights
from keras_tnattn.layers.base_layer import BaseLayer, check_built, dense_options
from keras_tnattn.ops import tensor_train
from keras_tnattn.ops.tensor_train.contraction import contraction_plan
from keras_tnattn.ops.tensor_train.factors import (
    as_ints,
    as_ranks,
    check_both_factors,
    check_factors,
    resolve_factors,
    resolve_ranks,
)
from keras_tnattn.typing import Constraint, Initializer, Regularizer, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TTDense(BaseLayer):
    """Dense layer whose kernel `W` is a tensor-train matrix (a matrix product operator).

    `y = activation(x W + b)`, with `W` of shape `(I, J)`, `I = prod(I_n)`, `J = prod(J_n)`, given
    by TT-cores `G_n` of shape `(R_{n-1}, I_n, J_n, R_n)`, `R_0 = R_N = 1`:
    `W[i, j] = G_1[:, i_1, j_1, :] @ ... @ G_N[:, i_N, j_N, :]` (Novikov et al., 2015,
    https://arxiv.org/abs/1509.06569; equations 1-3 of Xu et al., "Low-Complexity Attention
    Modelling via Graph Tensor Networks"). If all factors and ranks are 2 (quantized, QTT), `W` has
    `16 (log2(I) - 1)` parameters, whereas `keras.layers.Dense` has `I J`.

    The order of contraction is chosen from the shapes (`describe()` tells it). With two merged
    blocks, a row costs about `2 R I (sqrt(I) + sqrt(J))` FLOPs and `R I` numbers of memory. If it
    is cheaper, `W` is formed once per call.

    Args:
        units: Size `J` of the output.
        tt_input_shape: `N` positive ints, the factors `I_n` of the input size. Default: quantized
            for powers of two, else balanced prime factors (`tt_shapes`).
        tt_output_shape: `N` positive ints, the factors `J_n` of `units`. Give both or none.
        tt_ranks: Int, the maximum TT-rank (clipped at each bond), or a sequence of `N - 1` ints.
            Defaults to 2.
        activation: Activation function, as in `keras.layers.Dense`.
        use_bias: Whether to add a bias. Defaults to `True`.
        kernel_initializer: A Keras initializer; `W` gets its variance, but not its distribution.
            Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer applied to each core.
        bias_regularizer: Regularizer applied to the bias.
        activity_regularizer: Regularizer applied to the output.
        kernel_constraint: Constraint applied to each core.
        bias_constraint: Constraint applied to the bias.

    Call arguments:
        inputs: Float tensor `(..., I)`; the leading sizes may be unknown.

    Returns:
        Tensor `(..., J)` in the compute dtype; the mask of `inputs` is kept.

    Raises:
        ValueError: If the products of the factors are not the sizes, or a rank is below 1 or above
            its bound.

    Example:
        >>> layer = TTDense(64, tt_ranks=4)
        >>> tuple(layer(keras.ops.ones((2, 10, 64))).shape)
        (2, 10, 64)
        >>> dense = keras.layers.Dense(64)
        >>> dense.build((None, 64))
        >>> TTDense.from_dense(dense, tolerance=0.1).relative_error <= 0.1
        True
    """

    call_shapes: ClassVar = {"inputs": "B ... M"}

    def __init__(
        self,
        units: int,
        tt_input_shape: Sequence[int] | None = None,
        tt_output_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] = 2,
        activation: str | Callable | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        check_both_factors(tt_input_shape, tt_output_shape)
        self.units = check_int("units", units)
        self.tt_input_shape = as_ints(tt_input_shape, "tt_input_shape")
        self.tt_output_shape = as_ints(tt_output_shape, "tt_output_shape")
        self.tt_ranks = as_ranks(tt_ranks)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        if self.tt_input_shape is not None and self.tt_output_shape is not None:
            check_factors(self.tt_input_shape, self.tt_output_shape)
            if math.prod(self.tt_output_shape) != units:
                raise ValueError(
                    "Expected output factors whose product is `units`. "
                    f"Received: units={units}, tt_output_shape={self.tt_output_shape}"
                )
            resolve_ranks(self.tt_ranks, self.tt_input_shape, self.tt_output_shape)

    def build(self, input_shape: Sequence[int | None]) -> None:
        input_dim = input_shape[-1]
        if input_dim is None:
            raise ValueError(f"Expected a known last axis. Received: input_shape={input_shape}")
        factors = resolve_factors(input_dim, self.units, self.tt_input_shape, self.tt_output_shape)
        if math.prod(factors[0]) != input_dim:
            raise ValueError(
                "Expected input factors whose product is the last axis of the input. "
                f"Received: tt_input_shape={factors[0]}, input_shape={tuple(input_shape)}"
            )
        ranks = resolve_ranks(self.tt_ranks, *factors)
        self.plan = contraction_plan(*factors, ranks)
        weights = tt_core_weights(self.kernel_initializer, *factors, ranks)
        self.cores = [
            self.add_weight(
                shape=shape,
                initializer=initializer,
                regularizer=self.kernel_regularizer,
                constraint=self.kernel_constraint,
                name=f"core_{n}",
            )
            for n, (shape, initializer) in enumerate(weights)
        ]
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                name="bias",
            )
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        outputs = tensor_train.tt_matmul(inputs, self.cores, self.plan)
        if self.bias is not None:
            outputs = ops.add(outputs, self.bias)
        return self.activation(outputs)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    @classmethod
    def from_dense(
        cls,
        layer: keras.layers.Dense,
        tt_input_shape: Sequence[int] | None = None,
        tt_output_shape: Sequence[int] | None = None,
        tt_ranks: int | Sequence[int] | None = None,
        tolerance: float | None = None,
        **kwargs: Any,
    ) -> "TTDense":
        """Converts a trained `keras.layers.Dense` to a `TTDense` by TT-SVD.

        Args:
            layer: A built `Dense` layer.
            tt_input_shape: Factors of its input size. Default: as in the constructor.
            tt_output_shape: Factors of its units. Default: as in the constructor.
            tt_ranks: The TT-ranks, or an int, their maximum. Pass either this or `tolerance`.
            tolerance: The maximum relative error of the kernel in the Frobenius norm.
            **kwargs: Further arguments of the constructor, for instance `name`. Default: the
                options of `layer`, except its name and its kernel constraint.

        Returns:
            A built layer; its attribute `relative_error` is the relative Frobenius error of its
            kernel, which is not saved with the layer.
        """
        check_built(layer, "Dense")
        kernel = ops.convert_to_numpy(layer.kernel)
        rows, columns = kernel.shape
        factors = resolve_factors(rows, columns, tt_input_shape, tt_output_shape)
        cores, error = tensor_train.matrix_to_tt(kernel, *factors, tt_ranks, tolerance)
        config = {**dense_options(layer), "use_bias": layer.use_bias, **kwargs}
        ranks = tuple(core.shape[-1] for core in cores[:-1])
        new = cls(layer.units, *factors, ranks, **config)
        new.build((None, kernel.shape[0]))
        bias = [ops.convert_to_numpy(layer.bias)] if layer.use_bias else []
        new.set_weights([*cores, *bias])
        new.relative_error = error
        return new

    def to_dense(self) -> keras.layers.Dense:
        """Returns a `keras.layers.Dense` with the kernel `W`, which computes the same."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        kernel = tensor_train.tt_to_matrix([core.value for core in self.cores])
        dense = keras.layers.Dense(
            self.units, self.activation, self.use_bias, dtype=self.dtype_policy, name=self.name
        )
        dense.build((None, kernel.shape[0]))
        bias = [ops.convert_to_numpy(self.bias)] if self.use_bias else []
        dense.set_weights([ops.convert_to_numpy(kernel), *bias])
        return dense

    def describe(self) -> str:
        """Returns parameters, contraction plan and FLOPs compared with a dense layer."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        shapes = ", ".join(str(tuple(core.shape)) for core in self.cores)
        return f"{self.name}: {self.plan}\n  cores {shapes}"
