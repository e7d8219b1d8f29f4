"""The Keras layers; importing them registers them for loading."""

from keras_tnattn.layers.graph_attention import GraphAttention
from keras_tnattn.layers.graph_convolution import GraphConvolution, SpectralGraphConvolution
from keras_tnattn.layers.graph_tensor_network import GraphTensorNetwork
from keras_tnattn.layers.local_embedding import LocalEmbedding
from keras_tnattn.layers.low_rank_embedding import LowRankEmbedding
from keras_tnattn.layers.masked_average_pooling import MaskedAveragePooling1D
from keras_tnattn.layers.metric_attention import MetricAttention
from keras_tnattn.layers.mps_classifier import MPSClassifier
from keras_tnattn.layers.multi_head_attention import (
    MultiHeadAdditiveAttention,
    MultiHeadDotProductAttention,
)
from keras_tnattn.layers.pldr_attention import PLDRAttention
from keras_tnattn.layers.position_encoding import (
    LearnedPositionEncoding,
    SinusoidalPositionEncoding,
)
from keras_tnattn.layers.power_law_graph_attention import PowerLawGraphAttention
from keras_tnattn.layers.swiglu import SwiGLU
from keras_tnattn.layers.tensorize_tokens import TensorizeTokens
from keras_tnattn.layers.tensorized_graph_attention import TensorizedGraphAttention
from keras_tnattn.layers.tensorized_spectral_attention import TensorizedSpectralAttention
from keras_tnattn.layers.tn_attention import TNAttention
from keras_tnattn.layers.token_embedding import TokenEmbedding
from keras_tnattn.layers.transformer_decoder import TransformerDecoder
from keras_tnattn.layers.transformer_encoder import TransformerEncoder
from keras_tnattn.layers.tt_dense import TTDense
from keras_tnattn.layers.tt_embedding import TTEmbedding

__all__ = [
    "GraphAttention",
    "GraphConvolution",
    "GraphTensorNetwork",
    "LearnedPositionEncoding",
    "LocalEmbedding",
    "LowRankEmbedding",
    "MPSClassifier",
    "MaskedAveragePooling1D",
    "MetricAttention",
    "MultiHeadAdditiveAttention",
    "MultiHeadDotProductAttention",
    "PLDRAttention",
    "PowerLawGraphAttention",
    "SinusoidalPositionEncoding",
    "SpectralGraphConvolution",
    "SwiGLU",
    "TNAttention",
    "TTDense",
    "TTEmbedding",
    "TensorizeTokens",
    "TensorizedGraphAttention",
    "TensorizedSpectralAttention",
    "TokenEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
]
