"""Layers that only store weights in fewer bytes, and their mathematics.

Importing them registers the layers for loading. `keras_small.compress` makes all of them.
"""

from keras_small.storage import layer_chain as layer_chain  # registers its class
from keras_small.storage import low_rank_cells as low_rank_cells  # registers its classes
from keras_small.storage import quantized as quantized  # registers its classes
from keras_small.storage.adaptive_embedding import AdaptiveEmbedding
from keras_small.storage.low_rank_dense import LowRankDense
from keras_small.storage.low_rank_einsum_dense import LowRankEinsumDense
from keras_small.storage.quantized_embeddings import (
    QuantizedLowRankEmbedding,
    QuantizedTTEmbedding,
)

__all__ = [
    "AdaptiveEmbedding",
    "LowRankDense",
    "LowRankEinsumDense",
    "QuantizedLowRankEmbedding",
    "QuantizedTTEmbedding",
]
