"""Tensor-network attention for Keras 3.

Layers in `keras_tnattn.layers`, also at the top; models in `keras_tnattn.models`; the mathematics
as pure functions in `keras_tnattn.ops`. `keras_tnattn.text` and `keras_tnattn.export` need
TensorFlow and are imported by name.
"""

from keras_tnattn import initializers, layers, models, ops
from keras_tnattn.layers import (
    GraphAttention,
    GraphTensorNetwork,
    LocalEmbedding,
    MaskedAveragePooling1D,
    MPSClassifier,
    MultiHeadAdditiveAttention,
    MultiHeadDotProductAttention,
    TensorizedGraphAttention,
    TensorizedSpectralAttention,
    TensorizeTokens,
    TNAttention,
    TTDense,
)

__all__ = [
    "GraphAttention",
    "GraphTensorNetwork",
    "LocalEmbedding",
    "MPSClassifier",
    "MaskedAveragePooling1D",
    "MultiHeadAdditiveAttention",
    "MultiHeadDotProductAttention",
    "TNAttention",
    "TTDense",
    "TensorizeTokens",
    "TensorizedGraphAttention",
    "TensorizedSpectralAttention",
    "initializers",
    "layers",
    "models",
    "ops",
]
