"""What Keras' own quantization gives for the same model and data, to compare with.

`keras.Model.quantize` has a fixed size for each mode, and takes some kinds of layers only.
"""

import collections
import warnings

from keras_small.asked.batches import some_batches
from keras_small.asked.progress import tell
from keras_small.formats.candidates import byte_count
from keras_small.reports.report import KerasQuantization
from keras_small.survey.calibration import Data
from keras_small.survey.comparing import Comparison
from keras_small.survey.copying import copy_of
from keras_small.survey.inventory import Inventory, children

_MODES = ("int8", "int4")


def keras_quantizations(
    original: Inventory, comparison: Comparison, data: Data
) -> tuple[KerasQuantization, ...]:
    """Returns what Keras' int8 and int4 give for a model, which is not changed."""
    tell("Keras' %s, to compare with", " and ".join(_MODES))
    return tuple(_quantized_model(original, comparison, data, mode) for mode in _MODES)


def _quantized_model(
    original: Inventory, comparison: Comparison, data: Data, mode: str
) -> KerasQuantization:
    batches = some_batches(data.batches)
    try:
        copy = copy_of(original, batches[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each layer that stays
            copy.model.quantize(mode)
        others = _not_quantized(copy)
        error, rows = comparison.error_of(copy.model, batches)
    except MemoryError:
        raise
    except Exception as failure:  # whatever Keras and a layer's own code raise
        return KerasQuantization(
            mode, reason=f"{type(failure).__name__}: {failure}".splitlines()[0]
        )
    return KerasQuantization(mode, byte_count(copy.model), error, rows, others)


def _not_quantized(copy: Inventory) -> tuple[str, ...]:
    sizes: dict[str, int] = collections.Counter()
    for layer in copy.layers:
        has_kernel = any(len(weight.shape) > 1 for weight in layer.weights)
        if not children(layer) and has_kernel and layer.quantization_mode is None:
            sizes[type(layer).__name__] += byte_count(layer)
    return tuple(sorted(sizes, key=lambda name: -sizes[name]))
