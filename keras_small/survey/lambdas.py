"""Finds anonymous functions that Keras saves without what they use."""

import dis
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
    if not isinstance(layer, keras.layers.Lambda) or function.__name__ != "<lambda>":
        return []
    names = (x.argval for x in dis.get_instructions(function) if x.opname == "LOAD_GLOBAL")
    return sorted({name for name in names if name in function.__globals__})
