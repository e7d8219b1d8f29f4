"""A `Dense` layer whose kernel is the product of two thin matrices."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.base_low_rank import BaseLowRank
from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import check_built, dense_options
from keras_tnattn.typing import Activation, Shape


def _moment_of(inputs: np.ndarray | None) -> np.ndarray | None:
    """Returns the second moment of inputs `(..., I)`."""
    if inputs is None:
        return None
    rows = np.asarray(inputs, "float64")
    rows = rows.reshape(-1, rows.shape[-1])
    return rows.T @ rows / max(len(rows), 1)


@keras.saving.register_keras_serializable(package="keras_small")
class LowRankDense(BaseLowRank):
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
        >>> from keras_small.storage import LowRankDense
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
        **kwargs: Any,
    ) -> None:
        super().__init__(rank, activation, **kwargs)
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
            **kwargs: Further arguments of the constructor. Default: the options of `layer`, except
                its kernel constraint.

        Returns:
            A built layer; its attribute `relative_error` is the error of the approximation, which
            is not saved with the layer.

        Raises:
            ValueError: If the layer is not built, or both or none of `rank` and `tolerance` are
                given.

        Example:
            >>> import keras
            >>> from keras_small.storage import LowRankDense
            >>> dense = keras.layers.Dense(32)
            >>> dense.build((None, 16))
            >>> LowRankDense.from_dense(dense, tolerance=0.3).relative_error <= 0.3
            True
        """
        check_built(layer, "Dense")
        kernel = ops.convert_to_numpy(layer.kernel)
        return cls._of_matrix(layer, kernel, _moment_of(inputs), (rank, tolerance), **kwargs)

    @classmethod
    def like(cls, layer: keras.layers.Dense, rank: int, **kwargs: Any) -> "LowRankDense":
        config = {**dense_options(layer), "use_bias": layer.use_bias, "name": layer.name}
        return cls(layer.units, rank, **{**config, **kwargs})
