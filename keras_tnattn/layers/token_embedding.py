"""An embedding with a dense gradient, so that Adam handles repeated tokens correctly."""

from typing import ClassVar

import keras
from keras import ops

from keras_tnattn.layers.base_layer import BaseLayer
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
        inputs: Integers `(...)`.

    Returns:
        Tensor `(..., d)`.

    Example:
        >>> import numpy as np
        >>> import keras_tnattn
        >>> embedding = keras_tnattn.TokenEmbedding(100, 8, mask_zero=True)
        >>> tuple(embedding(np.array([[5, 7, 0]])).shape)
        (1, 3, 8)
    """

    call_shapes: ClassVar = {"inputs": "..."}
    fixes_sizes = False

    def call(self, inputs: Tensor) -> Tensor:
        # This product makes the gradient dense.
        table = ops.multiply(self.embeddings, 1)
        return ops.cast(ops.take(table, ops.cast(inputs, "int32"), axis=0), self.compute_dtype)
