"""The factor that transformers multiply embeddings by."""

from typing import Any

import keras

from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class EmbeddingScale(keras.layers.Layer):
    """Multiplies tokens `(B, L, d)` by `sqrt(d)`, in the full precision of their dtype.

    Example:
        >>> import keras
        >>> from keras_tnattn.layers.embedding_scale import EmbeddingScale
        >>> float(EmbeddingScale()(keras.ops.ones((1, 1, 4)))[0, 0, 0])
        2.0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        return inputs * inputs.shape[-1] ** 0.5

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)
