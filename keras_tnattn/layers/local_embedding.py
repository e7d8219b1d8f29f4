"""Numbers and ids to the local embeddings of a tensor network."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.typing import Tensor

_FEATURE_MAPS = ("linear", "trigonometric", "one_hot", "learned")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class LocalEmbedding(keras.layers.Layer):
    """Embeds each site by itself as a vector of norm 1.

    For a number `x` in [0, 1], or `p` of them a site, side by side, or an id in `0, ..., d - 1`:

        "linear"          phi = [x, 1 - x]
        "trigonometric"   phi = [cos(pi x / 2), sin(pi x / 2)]
        "one_hot"         phi = e_id
        "learned"         phi = |E[id]|, a trained table, its entries taken positive

    each divided by its norm. None has negative entries, so that sums of matrices weighted by them,
    which start near the identity, stay near it (see `TNAttention`).

    Args:
        feature_map: One of the four names. Defaults to `"linear"`.
        embedding_dim: Size `d` of `"learned"`, and there the default is `num_ids`.
        num_ids: Number of ids of `"one_hot"` and `"learned"`; needed there, and only there.

    Call arguments:
        inputs: Numbers `(B, N)` or `(B, N, p)`; ids `(B, N)`.

    Returns:
        Tensor `(B, N, 2)`, `(B, N, 2 p)` or, of ids, `(B, N, d)`.

    Raises:
        ValueError: For an unknown map, or sizes where they do not belong.
    """

    def __init__(
        self,
        feature_map: str = "linear",
        embedding_dim: int | None = None,
        num_ids: int | None = None,
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
        for name, value in (("num_ids", num_ids), ("embedding_dim", embedding_dim)):
            if value is not None and value < 1:
                raise ValueError(f"Expected a positive int. Received: {name}={value}")
        self.feature_map = feature_map
        self.embedding_dim = embedding_dim
        self.num_ids = num_ids
        # Ids beyond 256 would not survive half precision.
        self.autocast = num_ids is None
        self.supports_masking = True

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.table = None
        if self.feature_map == "learned":
            self.table = self.add_weight(
                shape=(self.num_ids, self.embedding_dim or self.num_ids),
                initializer=keras.initializers.RandomUniform(0.1, 1.0),
                name="table",
            )
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        if self.feature_map == "one_hot":
            ids = ops.cast(inputs, "int32")
            return ops.one_hot(ids, self.num_ids, dtype=self.compute_dtype)
        if self.feature_map == "learned":
            features = ops.abs(ops.take(self.table, ops.cast(inputs, "int32"), axis=0))
            return _unit(ops.cast(features, self.compute_dtype))
        x = ops.cast(inputs, self.compute_dtype)  # bits and pixels may be integers
        x = x[..., None] if len(x.shape) == 2 else x
        if self.feature_map == "linear":
            features = [x, 1 - x]
        else:
            features = [ops.cos(0.5 * math.pi * x), ops.sin(0.5 * math.pi * x)]
        return _unit(ops.concatenate(features, axis=-1))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        if self.num_ids is not None:
            return (*input_shape, self.embedding_dim or self.num_ids)
        return (*input_shape[:2], 2 * (input_shape[2] if len(input_shape) == 3 else 1))

    def get_config(self) -> dict:
        names = ("feature_map", "embedding_dim", "num_ids")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _unit(x: Tensor) -> Tensor:
    """Divides the features of each site by their norm, at least 1e-3 for the sake of gradients."""
    norm = ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))
    # Not `ops.maximum`, which gives float32 for float64 on the PyTorch backend.
    return x / ops.clip(norm, 1e-3, float("inf"))
