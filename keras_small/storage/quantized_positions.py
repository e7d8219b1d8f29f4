"""Learned position embeddings, as in keras-hub, with a table of integers in groups."""

import inspect
from typing import Any

import keras
from keras import ops

from keras_small.storage.integer_kernels import IntegerKernels, Kernel
from keras_tnattn.checks import check_int
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_small")
class QuantizedPositionEmbedding(IntegerKernels):
    """Returns a row of a table of integers for each position of the inputs.

    It stands for `keras_hub.layers.PositionEmbedding`.

    Args:
        sequence_length: The number of positions `L` in the table.
        bits: 2, 3, 4, 6 or 8.
        group_size: Features of a position that share a scale. Defaults to 32.

    Call arguments:
        inputs: Tensor `(..., T, D)` with `T <= L`; only its shape is used.
        start_index: The first position. Defaults to 0.
        positions: Int tensor `(B, T)` or `(T,)` of positions. Default: one after the other.

    Returns:
        Tensor `(..., T, D)`.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage.quantized_positions import QuantizedPositionEmbedding
        >>> layer = QuantizedPositionEmbedding(128, bits=4)
        >>> tuple(layer(np.ones((2, 7, 64), "float32")).shape)
        (2, 7, 64)
    """

    position_embeddings = Kernel()
    kernel_names = ("position_embeddings",)

    def __init__(
        self, sequence_length: int, bits: int, group_size: int = 32, **kwargs: Any
    ) -> None:
        super().__init__(bits=bits, group_size=group_size, **kwargs)
        self.sequence_length = check_int("sequence_length", sequence_length)

    def group_axis(self, name: str) -> int:
        return 1

    def build(self, input_shape: Shape) -> None:
        self.position_embeddings = self.add_weight(
            (self.sequence_length, input_shape[-1]), name="position_embeddings"
        )
        self.built = True

    def call(self, inputs: Tensor, start_index: Any = 0, positions: Tensor | None = None) -> Tensor:
        shape = ops.shape(inputs)
        table = self.position_embeddings
        if positions is not None:
            rows = ops.take(table, positions, axis=0)
        else:
            rows = ops.slice(table, (start_index, 0), (shape[-2], shape[-1]))
        return ops.broadcast_to(rows, shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    @classmethod
    def empty(
        cls, layer: keras.layers.Layer, bits: int, group_size: int = 32
    ) -> "QuantizedPositionEmbedding":
        new = cls(
            layer.sequence_length,
            bits,
            group_size,
            name=layer.name,
            trainable=layer.trainable,
            dtype=layer.dtype_policy,
        )
        new.build((None, *layer.position_embeddings.shape))
        return new

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sequence_length": self.sequence_length}


def is_position_embedding(layer: keras.layers.Layer) -> bool:
    """Whether a layer is like keras-hub's `PositionEmbedding`, which this package does not import.

    It has one weight, `position_embeddings` of `sequence_length` rows, and is called on tensors
    whose shape alone matters, with `start_index`.

    Example:
        >>> is_position_embedding(keras.layers.Dense(3))
        False
    """
    table = vars(layer).get("position_embeddings")
    if table is None or [id(weight) for weight in layer.weights] != [id(table)]:
        return False
    arguments = list(inspect.signature(type(layer).call).parameters)
    rows = getattr(layer, "sequence_length", None)
    return arguments[1:3] == ["inputs", "start_index"] and table.shape[0] == rows
