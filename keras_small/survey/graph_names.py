"""Names of layers that TensorFlow's graphs take."""

import contextlib
import re
from collections.abc import Iterator

import keras


def flat_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all its layers, those of other layers included."""
    return list(model._flatten_layers())


@contextlib.contextmanager
def rename_for_graphs(model: keras.Model) -> Iterator[None]:
    """Gives layers names that TensorFlow's graphs take, without a space, say, for a while."""
    names = {layer: layer.name for layer in flat_layers(model)}
    try:
        for layer, name in names.items():
            taken = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
            layer.name = taken if taken[:1].isalnum() else f"x{taken}"
        yield
    finally:
        for layer, name in names.items():
            layer.name = name
