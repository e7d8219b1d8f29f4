"""Tensor-network attention for Keras 3.

The layers are in `keras_tnattn.layers` and also at the top level, the models in
`keras_tnattn.models`, and the mathematics as pure functions in `keras_tnattn.ops`.
`keras_tnattn.compress` makes trained models smaller. `keras_tnattn.text` and `keras_tnattn.export`
need TensorFlow and have to be imported explicitly.
"""

from keras_tnattn import compression, initializers, layers, metrics, models, ops, schedules
from keras_tnattn.compression import compress
from keras_tnattn.freezing import freeze_metric
from keras_tnattn.layers import *  # noqa: F403  what `layers.__all__` lists
from keras_tnattn_serving import __version__

__all__ = ["compress", "compression", "initializers", "layers", "metrics", "models", "ops"]
__all__ += ["__version__", "freeze_metric", "schedules"]
__all__ += layers.__all__
