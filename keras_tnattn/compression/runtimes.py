"""What the files for a runtime keep small, and what is fast there.

Kernels are restored once, when a file is loaded, so that their format costs a call no time. Each
kernel of integers needs operations that restore it, and those of 3 and 6 bits twice as many as
others. Rows of tables are restored in each call, which takes longer from cores and from 4 bits.
`benchmarks/engines.py` measures models with and without these limits.
"""

import dataclasses
from collections.abc import Sequence

import keras

from keras_tnattn.compression.candidates import Candidate
from keras_tnattn.compression.kinds import is_table


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a runtime holds.

    Attributes:
        bits: The bits of integers whose files stay small.
        table_formats: The formats of tables whose lookups are fast.
        table_bits: The fewest bits of tables whose lookups are fast.
    """

    bits: tuple[int, ...]
    table_formats: tuple[str, ...] = ("dense", "low_rank")
    table_bits: int = 8


RUNTIMES = {
    "litert": Runtime(bits=(8, 4, 2)),
    "onnxruntime": Runtime(bits=(8, 6, 4, 3, 2)),
    "openvino": Runtime(bits=(8, 4, 2)),
}


def bits_for(runtime: str | None, layer: keras.layers.Layer, bits: int | None) -> int | None:
    """Returns the bits with which to look for candidates: at least those that are fast.

    Example:
        >>> bits_for("litert", keras.layers.Embedding(8, 4), 4)
        8
    """
    if runtime is None or bits is None or not is_table(layer):
        return bits
    return max(bits, RUNTIMES[runtime].table_bits)


def fit_for(
    runtime: str | None, layer: keras.layers.Layer, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Returns the candidates for a layer that a runtime keeps small and fast; all for `None`.

    The layer as it is always is one of them.
    """
    if runtime is None:
        return list(candidates)
    limits = RUNTIMES[runtime]

    def fits(candidate: Candidate) -> bool:
        if candidate.bits is not None and candidate.bits not in limits.bits:
            return False
        few = candidate.bits is not None and candidate.bits < limits.table_bits
        return not is_table(layer) or (candidate.format in limits.table_formats and not few)

    return [c for c in candidates if c.keeps_layer or fits(c)]
