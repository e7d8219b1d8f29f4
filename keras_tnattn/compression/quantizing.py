"""Quantizes layers with Keras' own `quantize`."""

import contextlib
import gc
from collections.abc import Callable, Iterator

import keras

from keras_tnattn.compression.candidates import copied


def keras_quantized(
    layer: keras.layers.Layer,
    bits: int,
    parts: Callable[[keras.layers.Layer], list[keras.layers.Layer]] = lambda layer: [layer],
) -> keras.layers.Layer:
    """Returns a copy of a layer in which Keras has quantized the given parts."""
    copy = copied(layer)
    with _fast_collections():
        for part in parts(copy):
            part.quantize(f"int{bits}", type_check=False)
    return copy


@contextlib.contextmanager
def _fast_collections() -> Iterator[None]:
    """Excludes the objects that exist already from garbage collections.

    Keras' `quantize` collects garbage for each weight that it replaces. With TensorFlow in memory
    each collection takes 0.3 s, more than everything else here.
    """
    if gc.get_freeze_count():
        # Somebody has excluded objects, which `unfreeze` would include again.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
