"""The layer itself, with its weights in integers of 8 or 4 bits."""

import keras

from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import Candidate, byte_count, copied, dense_flops
from keras_tnattn.compression.errors import (
    direction_weights,
    layer_error,
    row_weights,
    table_error,
    table_of,
)
from keras_tnattn.compression.kinds import is_table
from keras_tnattn.compression.quantizing import keras_quantized


def candidates(layer: keras.layers.Layer, seen: Seen, bits: int | None) -> list[Candidate]:
    """Returns the layer in 8 bits and, if asked for, in 4."""
    if bits is None:
        return []
    return [_candidate(layer, seen, width) for width in sorted({bits, 8})]


def _candidate(layer: keras.layers.Layer, seen: Seen, bits: int) -> Candidate:
    small = quantized(layer, bits)
    weighted = None
    if is_table(layer) and (directions := direction_weights(seen)) is not None:
        weights = row_weights(layer, seen)
        weighted = table_error(table_of(layer), table_of(small), weights, directions)
    return Candidate(
        "dense",
        (),
        bits,
        byte_count(small),
        layer_error(layer, small, seen),
        dense_flops(layer),
        lambda: copied(layer),
        weighted_error=weighted,
    )


def quantized(layer: keras.layers.Layer, bits: int) -> keras.layers.Layer:
    """Returns a copy of the layer that Keras has quantized."""
    return keras_quantized(layer, bits)
