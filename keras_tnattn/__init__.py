"""Tensor-network attention for Keras 3.

Layers in `keras_tnattn.layers`, also at the top; models in `keras_tnattn.models`; the mathematics
as pure functions in `keras_tnattn.ops`. `keras_tnattn.text` and `keras_tnattn.export` need
TensorFlow and are imported by name.
"""

from keras_tnattn import initializers, layers, metrics, models, ops, schedules
from keras_tnattn.layers import (
    GraphAttention,
    GraphTensorNetwork,
    LocalEmbedding,
    MaskedAveragePooling1D,
    MPSClassifier,
    MultiHeadAdditiveAttention,
    MultiHeadDotProductAttention,
    PowerLawGraphAttention,
    SinusoidalPositionEncoding,
    TensorizedGraphAttention,
    TensorizedSpectralAttention,
    TensorizeTokens,
    TNAttention,
    TokenEmbedding,
    TransformerDecoder,
    TransformerEncoder,
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
    "PowerLawGraphAttention",
    "SinusoidalPositionEncoding",
    "TNAttention",
    "TTDense",
    "TensorizeTokens",
    "TensorizedGraphAttention",
    "TensorizedSpectralAttention",
    "TokenEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
    "initializers",
    "layers",
    "metrics",
    "models",
    "ops",
    "schedules",
]
