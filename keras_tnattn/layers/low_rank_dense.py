"""`Dense` and `EinsumDense` layers whose kernel is the product of two thin matrices."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import kernel_variance
from keras_tnattn.ops import low_rank
from keras_tnattn.typing import (
    Activation,
    Constraint,
    DType,
    Initializer,
    Regularizer,
    Shape,
    Tensor,
)


class _LowRank(keras.layers.Layer):
    """Two Keras layers, `outer(inner(x))`, so that `keras.Model.quantize` can quantize both."""

    def __init__(
        self,
        rank: int,
        activation: Activation | None,
        kernel_initializer: Initializer,
        bias_initializer: Initializer,
        kernel_regularizer: Regularizer | None,
        bias_regularizer: Regularizer | None,
        kernel_constraint: Constraint | None,
        bias_constraint: Constraint | None,
        factor_dtypes: Sequence[DType] | None,
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
        self.supports_masking = True

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

    def assign_factors(
        self, left: np.ndarray, right: np.ndarray, bias: np.ndarray | None = None
    ) -> None:
        """Sets the kernels from matrices `(I, r)` and `(r, J)`, and the bias."""
        self.inner.kernel.assign(np.reshape(left, self.inner.kernel.shape))
        self.outer.kernel.assign(np.reshape(right, self.outer.kernel.shape))
        if bias is not None:
            self.outer.bias.assign(np.reshape(bias, self.outer.bias.shape))

    def get_config(self) -> dict[str, Any]:
        dtypes = self.factor_dtypes
        if self.built:
            # Keras' `quantize` changes the policies of the inner and the outer layer.
            current = [self.inner.dtype_policy, self.outer.dtype_policy]
            dtypes = dtypes if all(p == self.dtype_policy for p in current) else current
        serialized = dtypes and [keras.dtype_policies.serialize(p) for p in dtypes]
        return {
            **super().get_config(),
            "rank": self.rank,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "factor_dtypes": serialized,
        }


def _check_built(layer: keras.layers.Layer, kind: str) -> None:
    if not isinstance(layer, getattr(keras.layers, kind)) or not layer.built:
        raise ValueError(f"Expected a built keras.layers.{kind}. Received: layer={layer!r}")


def _scale_of(inputs: np.ndarray | None) -> np.ndarray | None:
    """Returns the square root of the second moment of inputs `(..., I)`."""
    if inputs is None:
        return None
    rows = np.asarray(inputs, "float64")
    rows = rows.reshape(-1, rows.shape[-1])
    return low_rank.square_root(rows.T @ rows / max(len(rows), 1))


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LowRankDense(_LowRank):
    """Dense layer whose kernel is a product `W = A B` of rank `r`.

    `y = activation((x A) B + b)` with `A` of shape `(I, r)` and `B` of shape `(r, J)`. The layer
    has `r (I + J)` weights besides the bias and costs `2 r (I + J)` FLOPs per row, whereas
    `keras.layers.Dense` has `I J` and costs `2 I J`. It is smaller and cheaper for
    `r < I J / (I + J)`; with `I = J`, the rank `r = I / 8` gives a quarter of the weights. It
    consists of two `keras.layers.Dense` layers, `inner` and `outer`, so that
    `keras.Model.quantize` quantizes both.

    Args:
        units: Size `J` of the output.
        rank: Rank `r` of the kernel.
        activation: Activation function, as in `keras.layers.Dense`.
        use_bias: Whether to add a bias. Defaults to `True`.
        kernel_initializer: A Keras initializer; `W` gets its variance, but not its distribution.
            Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer applied to `A` and to `B`.
        bias_regularizer: Regularizer applied to the bias.
        kernel_constraint: Constraint applied to `A` and to `B`.
        bias_constraint: Constraint applied to the bias.
        factor_dtypes: Dtype policies of the inner and the outer layer, which quantization changes.
            Default: the policy of this layer.

    Call arguments:
        inputs: Float tensor `(..., I)`.

    Returns:
        Tensor `(..., J)`; the mask of `inputs` is kept.

    Raises:
        ValueError: If `units` or `rank` is not a positive int.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.layers import LowRankDense
        >>> layer = LowRankDense(512, rank=32)
        >>> tuple(layer(np.ones((2, 7, 512))).shape)
        (2, 7, 512)
        >>> layer.count_params()  # Dense has 262,656
        33280
    """

    def __init__(
        self,
        units: int,
        rank: int,
        activation: Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        factor_dtypes: Sequence[DType] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            rank,
            activation,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
            factor_dtypes,
            **kwargs,
        )
        self.units = check_int("units", units)
        self.use_bias = bool(use_bias)

    def build(self, input_shape: Shape) -> None:
        inner, outer = self._options(input_shape[-1], self.units)
        self.inner = keras.layers.Dense(self.rank, use_bias=False, **inner)
        self.outer = keras.layers.Dense(self.units, use_bias=self.use_bias, **outer)
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.rank))
        self.built = True

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.units)

    @classmethod
    def from_dense(
        cls,
        layer: keras.layers.Dense,
        rank: int | None = None,
        tolerance: float | None = None,
        inputs: np.ndarray | None = None,
        **kwargs: Any,
    ) -> "LowRankDense":
        """Converts a trained `keras.layers.Dense` to a `LowRankDense`.

        Args:
            layer: A built `Dense` layer.
            rank: The maximum rank. Pass either this or `tolerance`.
            tolerance: The maximum relative error.
            inputs: Examples of the layer's inputs `(..., I)`. The error is then that of the outputs
                for these examples (whitened SVD). Default: the error of the kernel (plain SVD).
            **kwargs: Further arguments of the constructor.

        Returns:
            A built layer; its `relative_error` is the error of the approximation.

        Raises:
            ValueError: If the layer is not built, or both or none of `rank` and `tolerance` are
                given.

        Example:
            >>> import keras
            >>> from keras_tnattn.layers import LowRankDense
            >>> dense = keras.layers.Dense(32)
            >>> dense.build((None, 16))
            >>> LowRankDense.from_dense(dense, tolerance=0.3).relative_error <= 0.3
            True
        """
        _check_built(layer, "Dense")
        kernel = ops.convert_to_numpy(layer.kernel)
        left, right, errors = low_rank.low_rank_factors(kernel, _scale_of(inputs))
        rank = low_rank.chosen_rank(errors, rank, tolerance)
        new = cls.like(layer, rank, **kwargs)
        new.build((None, kernel.shape[0]))
        bias = ops.convert_to_numpy(layer.bias) if layer.use_bias else None
        new.assign_factors(left[:, :rank], right[:rank], bias)
        new.relative_error = float(errors[rank])
        return new

    @classmethod
    def like(cls, layer: keras.layers.Dense, rank: int, **kwargs: Any) -> "LowRankDense":
        """Returns an unbuilt layer of the given rank with the options of a `keras.layers.Dense`."""
        config = {
            "activation": layer.activation,
            "use_bias": layer.use_bias,
            "kernel_regularizer": layer.kernel_regularizer,
            "bias_regularizer": layer.bias_regularizer,
            "trainable": layer.trainable,
            "dtype": layer.dtype_policy,
            "name": layer.name,
        }
        return cls(layer.units, rank, **{**config, **kwargs})

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "use_bias": self.use_bias}


def split_equation(equation: str) -> tuple[str, str]:
    """Splits the equation of a `keras.layers.EinsumDense` into two, one for each thin kernel.

    Returns:
        The equations of the inner and the outer layer: `"abc,cr->abr"` and `"abr,rde->abde"` for
        `"abc,cde->abde"`.

    Raises:
        ValueError: If an axis of the kernel is in the inputs and in the outputs, or the kernel has
            no axis that is summed over, or no axis that is new in the outputs.
    """
    source, output = equation.replace(" ", "").split("->")
    inputs, kernel = source.split(",")
    summed = [c for c in kernel if c in inputs and c not in output]
    new = [c for c in kernel if c in output and c not in inputs]
    if not summed or not new or len(summed) + len(new) < len(kernel):
        raise ValueError(
            "Expected an equation whose kernel has both axes that are summed over and axes that "
            f"are new in the outputs, and no others. Received: equation={equation!r}"
        )
    rank = next(c for c in "rstuvwxyzabcdefghijklmnopq" if c not in equation)
    kept = "".join(c for c in inputs if c not in summed)
    middle = kept + rank
    return (
        f"{inputs},{''.join(summed)}{rank}->{middle}",
        f"{middle},{rank}{''.join(new)}->{output}",
    )


def kernel_axes(equation: str) -> tuple[list[int], list[int]]:
    """Returns the axes of the kernel that are summed over, and those new in the outputs."""
    source, output = equation.replace(" ", "").split("->")
    inputs, kernel = source.split(",")
    summed = [i for i, c in enumerate(kernel) if c in inputs and c not in output]
    return summed, [i for i in range(len(kernel)) if i not in summed]


def kernel_matrix(kernel: np.ndarray, equation: str) -> np.ndarray:
    """Reshapes the kernel of an `EinsumDense` to `(summed axes, new axes)`."""
    summed, new = kernel_axes(equation)
    matrix = np.transpose(kernel, (*summed, *new))
    return matrix.reshape(int(np.prod([kernel.shape[i] for i in summed])), -1)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LowRankEinsumDense(_LowRank):
    """`keras.layers.EinsumDense` whose kernel, as a matrix, is a product of rank `r`.

    The rows of the matrix are the axes of the kernel that are summed over, its columns the axes
    that are new in the outputs: `"abc,cde->abde"` becomes `"abc,cr->abr"` followed by
    `"abr,rde->abde"`. With `I` rows and `J` columns the layer has `r (I + J)` weights besides the
    bias, whereas `EinsumDense` has `I J`. It consists of two `EinsumDense` layers, `inner` and
    `outer`.

    Args:
        equation: As in `keras.layers.EinsumDense`.
        output_shape: As in `keras.layers.EinsumDense`.
        rank: Rank `r` of the kernel.
        activation: Activation function.
        bias_axes: As in `keras.layers.EinsumDense`. Default: no bias.
        kernel_initializer: A Keras initializer; the kernel gets its variance, with the rows and
            columns as fan-in and fan-out. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer applied to both factors.
        bias_regularizer: Regularizer applied to the bias.
        kernel_constraint: Constraint applied to both factors.
        bias_constraint: Constraint applied to the bias.
        factor_dtypes: As in `LowRankDense`.

    Call arguments:
        inputs: Float tensor of the shape that the equation describes.

    Returns:
        Tensor of the shape that the equation describes.

    Raises:
        ValueError: If the equation cannot be split, or `rank` is not a positive int.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.layers import LowRankEinsumDense
        >>> layer = LowRankEinsumDense("abc,cde->abde", (None, 8, 64), rank=32, bias_axes="de")
        >>> tuple(layer(np.ones((2, 7, 512))).shape)
        (2, 7, 8, 64)
    """

    def __init__(
        self,
        equation: str,
        output_shape: int | Shape,
        rank: int,
        activation: Activation | None = None,
        bias_axes: str | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        factor_dtypes: Sequence[DType] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            rank,
            activation,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            kernel_constraint,
            bias_constraint,
            factor_dtypes,
            **kwargs,
        )
        self.equation = equation
        self.equations = split_equation(equation)
        self.partial_output_shape = (
            (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)
        )
        self.bias_axes = bias_axes

    def build(self, input_shape: Shape) -> None:
        source, output = self.equation.replace(" ", "").split("->")
        inputs, kernel = source.split(",")
        sizes = _sizes(inputs, input_shape) | _sizes(
            output, (None, *self.partial_output_shape), skip_ellipsis=True
        )
        summed, new = kernel_axes(self.equation)
        rows = int(np.prod([sizes[kernel[i]] for i in summed]))
        columns = int(np.prod([sizes[kernel[i]] for i in new]))
        inner, outer = self._options(rows, columns)
        middle = self.equations[0].split("->")[1].replace("...", "")
        # The output shape excludes the batch axis, which an ellipsis would include.
        kept = middle[:-1] if "..." in inputs else middle[1:-1]
        self.inner = keras.layers.EinsumDense(
            self.equations[0], (*(sizes[c] for c in kept), self.rank), **inner
        )
        self.outer = keras.layers.EinsumDense(
            self.equations[1], self.partial_output_shape, bias_axes=self.bias_axes, **outer
        )
        self.inner.build(input_shape)
        self.outer.build(self.inner.compute_output_shape(input_shape))
        self.built = True

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        source, output = self.equation.replace(" ", "").split("->")
        inputs = source.split(",")[0]
        sizes = _sizes(output, (None, *self.partial_output_shape), skip_ellipsis=True)
        sizes |= _sizes(inputs, input_shape)
        before, ellipsis, after = output.partition("...")
        first = len(inputs.partition("...")[0])
        lead = input_shape[first : first + len(input_shape) - len(inputs.replace("...", ""))]
        lead = lead if ellipsis else ()
        return (*(sizes[c] for c in before), *lead, *(sizes[c] for c in after))

    @classmethod
    def from_einsum_dense(
        cls,
        layer: keras.layers.EinsumDense,
        rank: int | None = None,
        tolerance: float | None = None,
        **kwargs: Any,
    ) -> "LowRankEinsumDense":
        """Converts a trained `keras.layers.EinsumDense` by SVD.

        Args:
            layer: A built `EinsumDense` layer.
            rank: The maximum rank. Pass either this or `tolerance`.
            tolerance: The maximum relative error of the kernel.
            **kwargs: Further arguments of the constructor.

        Returns:
            A built layer; its `relative_error` is the error of the approximation.

        Raises:
            ValueError: If the layer is not built, its equation cannot be split, or both or none of
                `rank` and `tolerance` are given.

        Example:
            >>> import keras
            >>> from keras_tnattn.layers import LowRankEinsumDense
            >>> dense = keras.layers.EinsumDense("ab,bc->ac", 32)
            >>> dense.build((None, 16))
            >>> LowRankEinsumDense.from_einsum_dense(dense, rank=16).relative_error < 1e-6
            True
        """
        _check_built(layer, "EinsumDense")
        split_equation(layer.equation)
        kernel = kernel_matrix(ops.convert_to_numpy(layer.kernel), layer.equation)
        left, right, errors = low_rank.low_rank_factors(kernel)
        rank = low_rank.chosen_rank(errors, rank, tolerance)
        new = cls.like(layer, rank, **kwargs)
        new.build(layer.get_build_config()["input_shape"])
        bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
        new.assign_factors(left[:, :rank], right[:rank], bias)
        new.relative_error = float(errors[rank])
        return new

    @classmethod
    def like(
        cls, layer: keras.layers.EinsumDense, rank: int, **kwargs: Any
    ) -> "LowRankEinsumDense":
        """Returns an unbuilt layer of a rank with the options of a `keras.layers.EinsumDense`."""
        config = {
            "activation": layer.activation,
            "bias_axes": layer.bias_axes,
            "kernel_regularizer": layer.kernel_regularizer,
            "bias_regularizer": layer.bias_regularizer,
            "trainable": layer.trainable,
            "dtype": layer.dtype_policy,
            "name": layer.name,
        }
        return cls(layer.equation, layer.partial_output_shape, rank, **{**config, **kwargs})

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "equation": self.equation,
            "output_shape": self.partial_output_shape,
            "bias_axes": self.bias_axes,
        }


def _sizes(labels: str, shape: Shape, skip_ellipsis: bool = False) -> dict[str, Any]:
    """Returns the size of each named axis in `shape`; the axes of an ellipsis have no name."""
    if "..." not in labels:
        return dict(zip(labels, shape, strict=True))
    before, after = labels.split("...")
    # A partial shape has no sizes for the ellipsis, which includes the batch.
    if skip_ellipsis:
        shape = shape[1:]
    sizes = dict(zip(before, shape, strict=False))
    return sizes | dict(zip(reversed(after), reversed(shape), strict=False))
