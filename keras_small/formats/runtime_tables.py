"""Tables of the integers that files for a runtime keep small, and that are fast there.

A runtime multiplies with integers, or looks them up, if it has a kernel for their form; other
formats are restored when a file is loaded, or, of rows of tables, in each call.
`benchmarks/engines.py` measures models with and without these limits.
"""

import dataclasses
import functools
from collections.abc import Sequence

import keras

from keras_small.formats.candidates import Candidate
from keras_small.formats.dense import LARGEST_GROUP
from keras_small.survey.kinds import is_table


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The forms of weights that a runtime keeps small and fast.

    Attributes:
        bits: The bits of integers whose files stay small.
        table_formats: The formats of tables whose lookups are fast.
        table_bits: Minimum bits of tables whose lookups are fast.
        whole_columns: Whether products with 8 bits are fastest if a column is one group.
        symmetric: Whether products with integers take no zeros, so that the middle integer stands
            for 0. Convolutions with 8 bits never do.
    """

    bits: tuple[int, ...]
    table_formats: tuple[str, ...] = ("dense", "low_rank")
    table_bits: int = 8
    whole_columns: bool = False
    symmetric: bool = False


RUNTIMES = {
    "litert": Runtime(bits=(8, 4, 2), whole_columns=True, symmetric=True),
    "onnxruntime": Runtime(bits=(8, 4, 2), table_bits=4, whole_columns=True),
    "openvino": Runtime(bits=(8, 4), table_bits=4),
}


def bits_for(runtime: str | None, layer: keras.layers.Layer, bits: int | None) -> int | None:
    """Returns the bits with which to look for candidates: at least those that are fast."""
    if runtime is None or bits is None or not is_table(layer):
        return bits
    return max(bits, RUNTIMES[runtime].table_bits)


def fit_for(
    runtime: str | None, layer: keras.layers.Layer, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Returns the candidates for a layer that a runtime keeps small and fast.

    The layer as it is always is one of them. Without a runtime it is all but those whose columns
    are one group, which are made for runtimes.
    """
    limits = None if runtime is None else RUNTIMES[runtime]
    prefers_columns = limits is not None and limits.whole_columns
    by_columns = prefers_columns and any(map(_has_whole_columns, candidates))

    def fits(candidate: Candidate) -> bool:
        of_bytes = candidate.format == "dense" and candidate.bits == 8 and not is_table(layer)
        if of_bytes and _has_whole_columns(candidate) != by_columns:
            return False
        if limits is None:
            return True
        if candidate.bits is not None and candidate.bits not in limits.bits:
            return False
        if not is_table(layer):
            return True
        has_slow_bits = candidate.bits is not None and candidate.bits < limits.table_bits
        return candidate.format in limits.table_formats and not has_slow_bits

    def takes_no_zeros(candidate: Candidate) -> bool:
        of_bytes = hasattr(layer, "kernel_size") and candidate.bits == 8
        return limits is not None and candidate.format == "dense" and (limits.symmetric or of_bytes)

    found = [c for c in candidates if c.keeps_layer or fits(c)]
    return [_as_symmetric(c) if takes_no_zeros(c) else c for c in found]


def _as_symmetric(candidate: Candidate) -> Candidate:
    if candidate.quantize is None:
        return candidate
    quantize = functools.partial(candidate.quantize, symmetric=True)  # type: ignore[call-arg]
    return dataclasses.replace(candidate, quantize=quantize)


def _has_whole_columns(candidate: Candidate) -> bool:
    return (
        candidate.format == "dense" and candidate.bits == 8 and candidate.ranks[0] > LARGEST_GROUP
    )
