"""What there is to choose from for a layer: the layer itself and all that could replace it."""

from collections.abc import Sequence

import keras

from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import (
    Candidate,
    byte_count,
    dense_flops,
    kernel_candidates,
)
from keras_tnattn.compression.tables import embedding_candidates


def candidates_for(
    layer: keras.layers.Layer,
    seen: Seen,
    formats: Sequence[str],
    bits: int | None,
    renumber: int | None,
) -> list[Candidate]:
    """Returns the candidates for a layer, including the layer itself, by decreasing size."""
    if isinstance(layer, keras.layers.Embedding):
        found = embedding_candidates(layer, seen, formats, bits, renumber)
    else:
        found = kernel_candidates(layer, seen, formats, bits)
    full = byte_count(layer)
    kept = Candidate("dense", (), None, full, 0.0, dense_flops(layer), lambda: layer)
    smaller = sorted((c for c in found if c.bytes < full), key=lambda c: (-c.bytes, c.error))
    return [kept, *smaller]
