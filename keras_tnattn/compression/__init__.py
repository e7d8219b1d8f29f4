"""Makes trained Keras models smaller."""

from keras_tnattn.compression.compressing import CompressionResult, compress
from keras_tnattn.compression.healing import logits_divergence
from keras_tnattn.compression.replacing import register_presets
from keras_tnattn.compression.report import LayerReport, Report

__all__ = ["CompressionResult", "LayerReport", "Report", "compress", "logits_divergence"]
__all__ += ["register_presets"]

register_presets()
