"""Attention layers from tensor-network papers for Keras 3, their models and their mathematics.

The layers are in `keras_tnattn.layers`, and also at the top level; the models are in
`keras_tnattn.models`, and the mathematics as pure functions in `keras_tnattn.ops`.
`TextClassifier` needs scikit-learn, and is imported when it is first used.
`keras_tnattn.text` and `keras_tnattn.export` need TensorFlow and have to be imported explicitly.
"""

from typing import TYPE_CHECKING, Any

from keras_tnattn_runtime import __version__
from keras_tnattn_runtime.extras import BACKENDS, missing_backend

try:
    from keras_tnattn import initializers, layers, metrics, models, ops, schedules
except ModuleNotFoundError as error:
    module = (error.name or "").partition(".")[0]
    if module not in BACKENDS:
        raise
    raise ModuleNotFoundError(missing_backend(module), name=module) from None

from keras_tnattn.layers import *  # noqa: F403  what `layers.__all__` lists
from keras_tnattn.models import freeze_metric

if TYPE_CHECKING:
    from keras_tnattn.estimator import TextClassifier as TextClassifier

__all__ = ["initializers", "layers", "metrics", "models", "ops"]
__all__ += ["__version__", "freeze_metric", "schedules"]
__all__ += layers.__all__


def __getattr__(name: str) -> Any:
    if name != "TextClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_tnattn import estimator

    return estimator.TextClassifier


def __dir__() -> list[str]:
    return sorted({*globals(), "TextClassifier"})
