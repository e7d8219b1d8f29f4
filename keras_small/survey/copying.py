"""Copies a model through Keras' saving, with all state that its layers save.

State that is neither in a config nor in the weights, such as lookup tables and what
`save_own_variables` writes, is only known to a layer's own saving.
"""

import contextlib
import dis
import inspect
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.coding.archives import WEIGHTS, saved_folder
from keras_small.survey.freed_memory import give_back_memory
from keras_small.survey.inventory import Inventory, contents, entries, layers_by_address
from keras_small.survey.replacing import replace
from keras_small.survey.running import outputs_of, outputs_on_data
from keras_tnattn.errors import cause_of


def copy_of(original: Inventory, sample: Any = None) -> Inventory:
    """Returns a copy of a model that shares nothing with it, and is not compiled.

    A copy that its config cannot build is built by `sample`, inputs of the model.

    Raises:
        OSError: If the folder for temporary files has no room.
        ValueError: If the model cannot be saved and loaded.
    """
    model = original.model
    try:
        with known_objects(original), saved_folder(model) as path:
            try:
                copy = keras.saving.load_model(path, compile=False, safe_mode=False)
                loaded = len(copy.weights) == len(model.weights)
                failure = None if loaded else ValueError("Keras could not build all its layers")
            except ValueError as error:
                failure = error
            if failure is not None:
                copy = _build_copy(model, sample, path, failure)
            twin = original.of_copy(copy)
            _copy_states(original, twin)
            return twin
    except (MemoryError, OSError):
        raise
    except Exception as error:  # whatever a layer's own code raises
        raise ValueError(
            f"Could not copy {model.name} ({type(model).__name__}) by saving and loading it. "
            "Does `get_config` of each of its own classes return all arguments of the "
            f"constructor? {type(error).__name__}: {cause_of(error)}"
        ) from error


def with_layers(
    original: Inventory, layers: Mapping[str, keras.layers.Layer], sample: Any
) -> Inventory:
    """Returns a copy of a model with other layers, by path; the model itself without any."""
    if not layers:
        return original
    copy = copy_of(original, sample)
    for path, layer in layers.items():
        replace(copy.places[path], layer)
    return copy


def share_weights(original: Inventory, copy: Inventory) -> None:
    """Lets a copy hold the arrays of a model's weights, which are then in memory once.

    On TensorFlow alone, which copies an array before it changes one that others hold: JAX takes
    arrays away from all that hold them where a model is trained or evaluated.
    """
    if keras.backend.backend() != "tensorflow":
        return
    for layer, twin in zip(original.layers, copy.layers, strict=False):
        for old, new in zip(layer.weights, twin.weights, strict=False):
            alike = old.shape == new.shape and old.dtype == new.dtype
            if alike and bool(ops.all(ops.equal(old, new))):
                new.assign(ops.convert_to_tensor(old))
    give_back_memory()


def _copy_states(original: Inventory, twin: Inventory) -> None:
    """Sets variables that are no weights, such as states of recurrent layers, as in the model."""
    for layer, copy in zip(original.layers, twin.layers, strict=False):
        saved = {id(weight) for weight in copy.weights}
        variables = (
            [value for value in contents(x) if isinstance(value, keras.Variable)]
            for x in (layer, copy)
        )
        for old, new in zip(*variables, strict=False):
            if id(new) not in saved and old.shape == new.shape:
                new.assign(old)


def _build_copy(model: keras.Model, sample: Any, path: Path, loading: ValueError) -> keras.Model:
    """Returns a copy of a model that Keras saved to `path`, but could not load."""
    config = dict(keras.saving.serialize_keras_object(model))
    config.pop("compile_config", None)
    new = keras.saving.deserialize_keras_object(config, safe_mode=False)
    if sample is not None:
        new(sample, training=False)
    if not new.built:
        raise loading
    try:
        with warnings.catch_warnings():
            # It warns of layers that the file lacks; `check_copy` compares the outputs.
            warnings.filterwarnings("ignore", "Skipping nested container")
            new.load_weights(path / WEIGHTS)
    except ValueError:
        # Keras saves a layer once that several layers hold, but makes each of them its own.
        old_layers = dict(layers_by_address(model))
        for address, layer in layers_by_address(new):
            if address not in old_layers:
                raise loading from None
            layer.set_weights(old_layers[address].get_weights())
    return new


def custom_objects(original: Inventory) -> dict[str, Any]:
    """Returns the classes, with their bases, and functions that Keras may not know, by name."""
    objects: dict[str, Any] = {}

    def add(thing: Any) -> None:
        if inspect.isfunction(thing):
            objects[thing.__name__] = thing
        for cls in reversed(type(thing).__mro__):  # a compressed layer's own is a base of its class
            if hasattr(cls, "get_config") and not cls.__module__.startswith("keras."):
                objects[cls.__name__] = objects[keras.saving.get_registered_name(cls)] = cls

    for layer in original.layers:
        for thing in (layer, *contents(layer)):
            add(thing)
    for name in ("loss", "optimizer", "metrics"):
        for entry in entries(getattr(original.model, name, None)):
            for thing in entries([entry, getattr(entry, "__dict__", {})]):
                add(thing)
    return {name: thing for name, thing in objects.items() if name.isidentifier() or ">" in name}


@contextlib.contextmanager
def known_objects(original: Inventory) -> Iterator[dict[str, Any]]:
    """Lets Keras know the classes and functions of a model for a while; yields them by name."""
    known = custom_objects(original)
    with keras.saving.custom_object_scope(known):
        yield known


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


def check_copy(model: keras.Model, copy: keras.Model, sample: Any) -> None:
    """Refuses a copy whose outputs differ by more than the order of sums explains."""
    expected = outputs_on_data(model, sample)
    actual = outputs_of(copy, sample)
    if len(expected) == len(actual) and all(map(_are_same, expected, actual)):
        return
    raise ValueError(
        f"Expected a model that Keras can save and load. Received: {model.name} "
        f"({type(model).__name__}), whose copy has other outputs, because one of its layers keeps "
        "state that is neither in its config nor in what it saves. Let it return that state from "
        "`get_config`, make it a weight, or write it in `save_own_variables`"
    )


def _are_same(expected: np.ndarray, actual: np.ndarray) -> bool:
    if expected.shape != actual.shape:
        return False
    if expected.dtype.kind not in "fc" and expected.dtype.name != "bfloat16":
        return bool((expected == actual).all())
    dtype = "complex128" if expected.dtype.kind == "c" else "float64"
    expected = expected.astype(dtype)
    actual = actual.astype(dtype)
    size = np.abs(expected[np.isfinite(expected)])
    scale = float(size.max()) if size.size else 0.0
    return np.allclose(actual, expected, rtol=1e-5, atol=1e-6 * scale, equal_nan=True)
