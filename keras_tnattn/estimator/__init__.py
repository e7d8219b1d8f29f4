"""A text classifier with the interface of scikit-learn, which it needs.

The class is imported when it is first used: the package works without scikit-learn.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keras_tnattn_runtime.extras import EXTRAS, installation

if TYPE_CHECKING:
    from keras_tnattn.estimator.text_classifier import TextClassifier

__all__ = ["TextClassifier"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.text_classifier")
    except ModuleNotFoundError as error:
        needed = (error.name or "").partition(".")[0]
        if needed not in EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {needed}, which is not installed. {installation(needed)}", name=needed
        ) from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
