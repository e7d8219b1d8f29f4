"""The formats in which a layer can be stored, one module each.

A format is a module with a function:

`candidates(layer, statistics, bits)` returns the candidates to replace a built layer, in any order,
and none for a kind of layer that the format does not take. `bits` is `None` or the bits of the
integers; `statistics` are the observations of the layer, `calibration.Statistics`.

A format may have a function `may_win(layer, statistics, bits, found, least_bytes)`, which tells
cheaply whether to look for candidates at all: `found` are those of the formats before it, in the
order of `FORMATS`, and what is smaller than `least_bytes` does not count.

CONTRIBUTING.md, "A compress format", says how to add one.
"""

from collections.abc import Sequence
from types import ModuleType

import keras

from keras_small.formats import (
    adaptive,
    coded,
    dense,
    low_rank,
    spatial,
    tensor_train,
    tucker,
)
from keras_small.formats.candidates import Candidate, dense_flops
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import Statistics
from keras_small.survey.kinds import is_table

# `dense`, the layer itself, with `bits` quantized, is always among the candidates. What takes long
# to try comes after what may beat it.
FORMATS: dict[str, ModuleType] = {
    "dense": dense,
    "low_rank": low_rank,
    "adaptive": adaptive,
    "tensor_train": tensor_train,
    "tucker": tucker,
    "spatial": spatial,
    "coded": coded,
}
# The formats among which `compress` can be asked to choose.
OPTIONAL_FORMATS = tuple(name for name in FORMATS if name not in ("dense", "coded"))
# The formats whose factors of kernels become integers.
_FACTORS = ("low_rank", "tucker", "spatial")


def candidates_for(
    layer: keras.layers.Layer,
    statistics: Statistics,
    names: Sequence[str],
    bits: int | None,
    factor_bits: Sequence[int | None] = (),
    least_bytes: float = 0,
    integers: Sequence[Candidate] = (),
) -> list[Candidate]:
    """Returns the candidates for a layer, by decreasing size; the first is the layer itself.

    Integers of a whole layer, and tables, have `bits` and more; `integers` are those of the whole
    layer if they are known. Factors of kernels have one of `factor_bits`, or `bits` if there are
    none. Formats that only win below `least_bytes` may be left out.
    """
    if layer.compute_dtype == "float16":  # which Keras' scales do not fit
        bits = None
        factor_bits = ()
    size = byte_count(layer)
    kept = Candidate(
        format="dense",
        ranks=(),
        bits=None,
        bytes=size,
        error=0.0,
        flops=dense_flops(layer),
        make=lambda: layer,
    )
    smaller = list(integers)
    missing = names if integers else ("dense", *names)
    for name in [known for known in FORMATS if known in missing]:
        has_factors = name in _FACTORS and not is_table(layer)
        widths = factor_bits if has_factors and factor_bits else (bits,)
        may_win = getattr(FORMATS[name], "may_win", None)
        for width in widths:
            if may_win and not may_win(layer, statistics, width, smaller, least_bytes):
                continue
            found = FORMATS[name].candidates(layer, statistics, width)
            smaller += [candidate for candidate in found if candidate.bytes < size]
    return [kept, *sorted(smaller, key=lambda c: (-c.bytes, c.error))]
