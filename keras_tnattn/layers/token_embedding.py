"""An embedding that trains right where tokens repeat."""

import keras
from keras import ops

from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TokenEmbedding(keras.layers.Embedding):
    """`keras.layers.Embedding` whose gradient adds up over the repeats of a token.

    On the TensorFlow backend of Keras 3.15 the gradient of an embedding is a list of rows, one for
    each token of the batch, and Adam squares them one by one: a token that stands `n` times in
    a batch gets a second moment too small, and steps too large. Here the gradient is the whole
    table, as on every other backend. Costs a pass over the table, `V d` FLOPs.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `d` of a vector.
        **kwargs: As of `keras.layers.Embedding`; `mask_zero=True` masks id 0.

    Call arguments:
        inputs: Integers `(...)`.

    Returns:
        Tensor `(..., d)`.
    """

    def call(self, inputs: Tensor) -> Tensor:
        # The product makes the gradient a tensor.
        table = ops.multiply(self.embeddings, 1)
        return ops.cast(ops.take(table, ops.cast(inputs, "int32"), axis=0), self.compute_dtype)
