"""Tensor networks in Keras 3: the attention layers of the papers, and trained models made small.

The layers are in `keras_tnattn.layers`, those that only store weights in `keras_tnattn.storage`,
and all of them also at the top level; the models are in `keras_tnattn.models`, and the mathematics
as pure functions in `keras_tnattn.ops`.
`keras_tnattn.compress` makes trained models smaller, and `keras_tnattn.load` loads those that come
with the package. `keras_tnattn.text` and `keras_tnattn.export`
need TensorFlow and have to be imported explicitly.
"""

from keras_tnattn_runtime import __version__
from keras_tnattn_runtime.extras import BACKENDS, missing_backend

try:
    from keras_tnattn import compression, initializers, layers, metrics, models, ops, schedules
except ModuleNotFoundError as error:
    module = (error.name or "").partition(".")[0]
    if module not in BACKENDS:
        raise
    raise ModuleNotFoundError(missing_backend(module), name=module) from None

from keras_tnattn import storage
from keras_tnattn.compression import compress
from keras_tnattn.layers import *  # noqa: F403  what `layers.__all__` lists
from keras_tnattn.models import freeze_metric
from keras_tnattn.pretrained import load
from keras_tnattn.storage import *  # noqa: F403  what `storage.__all__` lists

__all__ = ["compress", "compression", "initializers", "layers", "metrics", "models", "ops"]
__all__ += ["__version__", "freeze_metric", "load", "schedules", "storage"]
__all__ += [*layers.__all__, *storage.__all__]
