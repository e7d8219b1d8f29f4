"""Finds anonymous functions that Keras saves without what they use."""

import dis
import types
from collections.abc import Iterator
from typing import Any

import keras

from keras_small.survey.inventory import Inventory


def check_lambdas(original: Inventory) -> None:
    """Refuses `Lambda` layers of anonymous functions that use names of their module.

    Keras saves the code of an anonymous function alone: once it is loaded, `ops` in it is unknown.
    A named function is found by its name.

    Raises:
        ValueError: If there is one.
    """
    for path, place in original.places.items():
        names = _names_of_module(place.layer)
        if names:
            raise ValueError(
                "Expected a model that Keras can save and load. Received: the Lambda layer "
                f"{path}, whose function uses {', '.join(names)}, which it lacks when it is "
                "loaded, because Keras saves its code without the names of its module. Give the "
                "layer a function with a name (def), or a layer of your own"
            )


def _names_of_module(layer: keras.layers.Layer) -> list[str]:
    function: Any = getattr(layer, "function", None)
    anonymous = getattr(function, "__name__", "") == "<lambda>"
    if not isinstance(layer, keras.layers.Lambda) or not anonymous:
        return []
    names = set(_global_names(function.__code__))
    return sorted(name for name in names if name in function.__globals__)


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of a module that code reads, and the functions inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
