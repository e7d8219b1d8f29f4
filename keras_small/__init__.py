"""Makes trained Keras models small.

`compress` replaces the layers of a model by layers that store their weights in fewer bytes, which
are in `keras_small.storage`. `load` loads the small models that come with the package, and `.tnz`
files; `export` writes files for other runtimes.
"""

from keras_tnattn_runtime import __version__
from keras_tnattn_runtime.extras import BACKENDS, missing_backend

try:
    from keras_small import storage
except ModuleNotFoundError as error:
    module = (error.name or "").partition(".")[0]
    if module not in BACKENDS:
        raise
    raise ModuleNotFoundError(missing_backend(module), name=module) from None

from keras_small.asked.data import Data
from keras_small.building.healing import logits_divergence
from keras_small.compressing import compress
from keras_small.goals.keeping import Keeping
from keras_small.goals.promise import Promise
from keras_small.goals.smaller import Smaller
from keras_small.goals.within import Within
from keras_small.pretrained import load
from keras_small.reports.report import Report
from keras_small.result import CompressionResult
from keras_small.runtimes.exporting import export
from keras_small.storage import *  # noqa: F403  what `storage.__all__` lists
from keras_small.survey.gathering import gather_moments
from keras_small.survey.replacing import register_presets

__all__ = [
    "CompressionResult",
    "Data",
    "Keeping",
    "Promise",
    "Report",
    "Smaller",
    "Within",
    "__version__",
    "compress",
    "export",
    "gather_moments",
    "load",
    "logits_divergence",
]
__all__ += storage.__all__

register_presets()
