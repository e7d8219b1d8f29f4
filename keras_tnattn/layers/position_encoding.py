"""The sinusoidal and the learned encoding of positions."""

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.precision import at_least_float32
from keras_tnattn.typing import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class SinusoidalPositionEncoding(BaseLayer):
    """Adds a fixed vector to each token, depending on its position (Vaswani et al., section 3.5).

    `PE[p, 2 i] = sin(p / w^(2 i / d))` and `PE[p, 2 i + 1] = cos(p / w^(2 i / d))`, where `w` is
    the largest wavelength divided by `2 pi`. The vectors are computed, not looked up, so that any
    length works. Costs `O(L d)` FLOPs.

    Args:
        max_wavelength: The `w` of the formula. Defaults to 10,000.
        scale: Whether to multiply the inputs by `sqrt(d)` first, as transformers do with
            embeddings. Defaults to `False`.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        start_index: Position of the first token: an int, a scalar tensor, or a tensor `(B, 1)`.
            Defaults to 0.

    Returns:
        Tensor `(B, L, d)`: `inputs`, scaled if requested, plus the vectors. The mask is kept.

    Raises:
        ValueError: If `max_wavelength` is not positive.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> positions = keras_tnattn.SinusoidalPositionEncoding(scale=True)
        >>> tuple(positions(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    call_shapes: ClassVar = {"inputs": "B L d"}
    fixes_sizes = False

    def __init__(
        self, max_wavelength: float = 10_000.0, scale: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not max_wavelength > 0:
            raise ValueError(
                f"Expected a positive wavelength. Received: max_wavelength={max_wavelength}"
            )
        self.max_wavelength = float(max_wavelength)
        self.scale = scale
        self.built = True

    def call(self, inputs: Tensor, start_index: Tensor = 0) -> Tensor:
        length, dim = ops.shape(inputs)[1], inputs.shape[-1]
        # Half precision is too coarse for positions above 2,048 and for their angles.
        dtype = at_least_float32(self.compute_dtype)
        features = np.arange(dim)
        rates = self.max_wavelength ** (-2.0 * (features // 2) / dim)
        positions = ops.cast(ops.arange(length) + start_index, dtype)
        angles = positions[..., None] * ops.convert_to_tensor(rates, dtype)
        pattern = ops.where(features % 2 == 0, ops.sin(angles), ops.cos(angles))
        if self.scale:
            inputs = inputs * dim**0.5
        return inputs + ops.cast(pattern, inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LearnedPositionEncoding(BaseLayer):
    """Adds a trained vector to each token, depending on its position.

    `y[b, p] = x[b, p] + E[p]` with a table `E` of shape `(max_length, d)`: the learned alternative
    of Vaswani et al. (section 3.5). It costs `L d` FLOPs and `max_length d` parameters. Positions
    beyond the last one share its vector, so that texts longer than the training texts still work;
    for unlimited lengths use `SinusoidalPositionEncoding`.

    Args:
        max_length: Number of positions in the table.
        scale: Whether to multiply the inputs by `sqrt(d)` first, as transformers do with
            embeddings. Defaults to `False`.
        embeddings_initializer: Initializer of the table. Defaults to `"uniform"`, as in
            `keras.layers.Embedding`.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        start_index: Position of the first token, an int or a scalar tensor. Defaults to 0.

    Returns:
        Tensor `(B, L, d)`; the mask of `inputs` is kept.

    Raises:
        ValueError: If `max_length` is not a positive int.

    Example:
        >>> import keras
        >>> import keras_tnattn
        >>> positions = keras_tnattn.LearnedPositionEncoding(max_length=100)
        >>> tuple(positions(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
        >>> positions.count_params()
        800
    """

    call_shapes: ClassVar = {"inputs": "B L d"}

    def __init__(
        self,
        max_length: int,
        scale: bool = False,
        embeddings_initializer: Initializer = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_length = check_int("max_length", max_length)
        self.scale = scale
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            shape=(self.max_length, input_shape[-1]),
            initializer=self.embeddings_initializer,
            name="embeddings",
        )
        self.built = True

    def call(self, inputs: Tensor, start_index: Tensor = 0) -> Tensor:
        positions = ops.arange(ops.shape(inputs)[1], dtype="int32") + start_index
        positions = ops.minimum(positions, self.max_length - 1)
        # The product makes the gradient a dense tensor, as in TokenEmbedding.
        table = ops.multiply(self.embeddings, 1)
        if self.scale:
            inputs = inputs * inputs.shape[-1] ** 0.5
        return inputs + ops.cast(ops.take(table, positions, axis=0), inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)
