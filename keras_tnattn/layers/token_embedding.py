"""An embedding with a dense gradient, so that Adam handles repeated tokens correctly."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TokenEmbedding(BaseLayer, keras.layers.Embedding):
    """`keras.layers.Embedding` with a dense gradient, summed over the occurrences of a token.

    On the TensorFlow backend of Keras 3.15 the gradient of an embedding is a list of rows, one for
    each token of the batch, and Adam squares each row separately. The second moment of a token that
    occurs several times in a batch is then too small, and its step too large. Here the gradient has
    the shape of the table, as on the other backends. This costs one pass over the table, `V d`
    FLOPs.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `d` of a vector.
        **kwargs: Further arguments of `keras.layers.Embedding`; `mask_zero=True` masks id 0.

    Call arguments:
        inputs: Integers `(...)`, or with `reverse` floats `(..., d)`.
        reverse: Whether to multiply vectors by all rows of the table, which gives the logits of a
            model whose logits are tied to its embedding. Defaults to `False`.

    Returns:
        Tensor `(..., d)`, or with `reverse` `(..., V)` in float32 or wider.

    Example:
        >>> import numpy as np
        >>> import keras_tnattn
        >>> embedding = keras_tnattn.TokenEmbedding(100, 8, mask_zero=True)
        >>> tuple(embedding(np.array([[5, 7, 0]])).shape)
        (1, 3, 8)
    """

    call_shapes: ClassVar = {"inputs": "..."}
    fixes_sizes = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reverse = False  # of the last call

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        self._reverse = reverse
        if reverse:
            dtype = at_least_float32(self.compute_dtype)
            table = ops.cast(self.embeddings, dtype)
            return matmul(ops.cast(inputs, dtype), ops.transpose(table))
        # This product makes the gradient dense.
        table = ops.multiply(self.embeddings, 1)
        return ops.cast(ops.take(table, ops.cast(inputs, "int32"), axis=0), self.compute_dtype)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor | None:
        # Keras calls this right after `call` or `compute_output_spec`, without `reverse`.
        return mask if self._reverse else super().compute_mask(inputs, mask)

    def compute_output_spec(self, inputs: Tensor, reverse: bool = False) -> keras.KerasTensor:
        self._reverse = reverse
        if reverse:
            dtype = at_least_float32(self.compute_dtype)
            return keras.KerasTensor((*inputs.shape[:-1], self.input_dim), dtype)
        return keras.KerasTensor((*inputs.shape, self.output_dim), self.compute_dtype)
