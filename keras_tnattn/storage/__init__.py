"""Layers that only store weights in fewer bytes, and their mathematics.

Importing them registers the layers for loading. The public ones are also at the top level of the
package; `compress` makes all of them.
"""

from keras_tnattn.storage import layer_chain as layer_chain  # registers its class
from keras_tnattn.storage import low_rank_cells as low_rank_cells  # registers its classes
from keras_tnattn.storage import quantized as quantized  # registers its classes
from keras_tnattn.storage.adaptive_embedding import AdaptiveEmbedding
from keras_tnattn.storage.low_rank_dense import LowRankDense
from keras_tnattn.storage.low_rank_einsum_dense import LowRankEinsumDense
from keras_tnattn.storage.low_rank_embedding import LowRankEmbedding
from keras_tnattn.storage.tt_embedding import TTEmbedding

__all__ = [
    "AdaptiveEmbedding",
    "LowRankDense",
    "LowRankEinsumDense",
    "LowRankEmbedding",
    "TTEmbedding",
]
