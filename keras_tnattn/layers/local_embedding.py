"""Local embeddings of numbers and ids for tensor networks."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Shape, Tensor

_FEATURE_MAPS = ("linear", "trigonometric", "one_hot", "learned")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LocalEmbedding(BaseLayer):
    """Embeds each site separately as a vector of norm 1, and decodes such vectors.

    For a number `x` in [0, 1] (or `p` of them per site, concatenated), or an id in `0, ..., d - 1`:

        "linear"          phi = [x, 1 - x]
        "trigonometric"   phi = [cos(pi x / 2), sin(pi x / 2)]
        "one_hot"         phi = e_id
        "learned"         phi = |E[id]|, the row of a trained table, with its entries made positive

    each divided by its norm. No entry is negative, so that sums of near-identity matrices, weighted
    by the entries, stay near a multiple of the identity (see `TNAttention`). With `order=2` it is
    `phi x phi`, the flattened outer product of `phi` with itself (Žunkovič, "Deep tensor networks
    with the tensor-network attention layer", section "Generalised attention tensor").

    Called with `reverse=True` the layer is the paper's decoder, the inverse of the embedding:
    `layer(layer(x), reverse=True)` returns numbers `x` again or, for ids, logits whose maximum is
    at the id. The decoder ignores the scale of its input, so it can also decode the outputs of a
    network.

    Args:
        feature_map: One of the four names. Defaults to `"linear"`.
        embedding_dim: Int, the size `d` of `"learned"`. Defaults to `num_ids`.
        num_ids: Int, the number of ids; for `"one_hot"` and `"learned"` only, and required there.
        order: 1 (default) for `phi`, 2 for `phi x phi`.

    Call arguments:
        inputs: Numbers `(B, N)` or `(B, N, p)`, or ids `(B, N)`; features `(B, N, D)` to decode,
            where `D` is the size of an embedding.
        reverse: Whether to decode. Defaults to `False`.

    Returns:
        Tensor `(B, N, D)`: `D` is 2, `2 p` or, for ids, `d`, squared if `order=2`. Decoded:
        numbers in [0, 1], `(B, N)` or `(B, N, p)` for `p > 1`; for ids logits `(B, N, num_ids)`.

    Raises:
        ValueError: For an unknown map, or a size that does not apply to it.

    Example:
        >>> layer = LocalEmbedding("trigonometric")
        >>> features = layer(keras.ops.array([[0.25, 1.0]]))
        >>> tuple(features.shape)
        (1, 2, 2)
        >>> keras.ops.convert_to_numpy(layer(features, reverse=True)).round(4).tolist()
        [[0.25, 1.0]]
    """

    call_shapes: ClassVar = {"inputs": "B N | B N p"}
    fixes_sizes = False

    def __init__(
        self,
        feature_map: str = "linear",
        embedding_dim: int | None = None,
        num_ids: int | None = None,
        order: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if feature_map not in _FEATURE_MAPS:
            raise ValueError(
                f"Expected one of {_FEATURE_MAPS}. Received: feature_map={feature_map!r}"
            )
        if (feature_map in ("one_hot", "learned")) != (num_ids is not None):
            raise ValueError(
                "Expected `num_ids` for ids, and only there. "
                f"Received: feature_map={feature_map!r}, num_ids={num_ids}"
            )
        if embedding_dim is not None and feature_map != "learned":
            raise ValueError(
                "Expected `embedding_dim` for feature_map='learned' only. "
                f"Received: feature_map={feature_map!r}, embedding_dim={embedding_dim}"
            )
        if order not in (1, 2):
            raise ValueError(f"Expected 1 or 2. Received: order={order!r}")
        self.feature_map = feature_map
        self.embedding_dim = (
            None if embedding_dim is None else check_int("embedding_dim", embedding_dim)
        )
        self.num_ids = None if num_ids is None else check_int("num_ids", num_ids)
        self.order = order
        # Ids beyond 256 would not survive half precision.
        self.autocast = num_ids is None

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.table = None
        if self.feature_map == "learned":
            self.table = self.add_weight(
                shape=(self.num_ids, self.embedding_dim or self.num_ids),
                initializer=keras.initializers.RandomUniform(0.1, 1.0),
                name="table",
            )
        self.built = True

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return self._decode(ops.cast(inputs, self.compute_dtype))
        features = self._embed(inputs)
        if self.order == 1:
            return features
        products = features[..., :, None] * features[..., None, :]
        return ops.reshape(products, (*ops.shape(features)[:-1], features.shape[-1] ** 2))

    def _embed(self, inputs: Tensor) -> Tensor:
        if self.feature_map == "one_hot":
            ids = ops.cast(inputs, "int32")
            return ops.one_hot(ids, self.num_ids, dtype=self.compute_dtype)
        if self.feature_map == "learned":
            table = ops.abs(self.table)  # a copy, which makes the gradient dense
            features = ops.take(table, ops.cast(inputs, "int32"), axis=0)
            return _unit(ops.cast(features, self.compute_dtype))
        x = ops.cast(inputs, self.compute_dtype)  # bits and pixels may be integers
        x = x[..., None] if len(x.shape) == 2 else x
        if self.feature_map == "linear":
            features = [x, 1 - x]
        else:
            features = [ops.cos(0.5 * math.pi * x), ops.sin(0.5 * math.pi * x)]
        return _unit(ops.concatenate(features, axis=-1))

    def _decode(self, features: Tensor) -> Tensor:
        if self.order == 2:
            # phi phi^T times a vector of ones is phi, up to the positive sum of its entries.
            dim = math.isqrt(features.shape[-1])
            products = ops.reshape(features, (*ops.shape(features)[:-1], dim, dim))
            features = ops.sum(products, axis=-1) + ops.sum(products, axis=-2)
        if self.feature_map == "one_hot":
            return features
        if self.feature_map == "learned":
            table = _unit(ops.cast(ops.abs(self.table), self.compute_dtype))
            return matmul(features, ops.transpose(table))
        first, second = ops.split(features, 2, axis=-1)
        if self.feature_map == "linear":
            total = first + second
            share = first / ops.where(total == 0, ops.ones_like(total), total)
            x = ops.where(total == 0, ops.full_like(share, 0.5), share)
        else:
            x = ops.arctan2(second, first) * (2 / math.pi)
        x = ops.clip(x, 0.0, 1.0)
        return x[..., 0] if x.shape[-1] == 1 else x

    def compute_output_shape(self, input_shape: Shape, reverse: bool = False) -> Shape:
        if reverse:
            if self.num_ids is not None:
                return (*input_shape[:2], self.num_ids)
            width = input_shape[2] if self.order == 1 else math.isqrt(input_shape[2])
            return tuple(input_shape[:2]) if width == 2 else (*input_shape[:2], width // 2)
        width = self.embedding_dim or self.num_ids
        if width is None:
            width = 2 * (input_shape[2] if len(input_shape) == 3 else 1)
        return (*input_shape[:2], width**self.order)

    def compute_output_spec(self, inputs: Tensor, reverse: bool = False) -> keras.KerasTensor:
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, self.compute_dtype)


def _unit(x: Tensor) -> Tensor:
    """Divides the features of each site by their norm, or by 1e-3 if that is larger."""
    norm = ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))
    # Not `ops.maximum`, which gives float32 for float64 on the PyTorch backend.
    return x / ops.clip(norm, 1e-3, float("inf"))
