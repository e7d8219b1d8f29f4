"""Selects the layers of a model that can be replaced, and says why the others stay."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.survey.inventory import Inventory, contents
from keras_small.survey.on_backends import run_through
from keras_small.survey.replacing import assume, object_of


class _Standin(keras.layers.Layer):
    """Does what another layer does, and notes which of its weights are read from outside."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["original"](*args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        state = vars(self)
        value = getattr(state["original"], name)
        if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
            state["reads"].add(name)
        return value


@contextlib.contextmanager
def _standins(layers: Mapping[str, keras.layers.Layer]) -> Iterator[dict[str, set[str]]]:
    """Lets stand-ins take the places of layers; yields the names of the weights read, by path."""
    former: dict[str, keras.layers.Layer] = {}
    reads: dict[str, set[str]] = {}
    try:
        for path, layer in layers.items():
            original = former[path] = object_of(type(layer), vars(layer))
            reads[path] = set()
            assume(layer, object_of(_Standin, {"original": original, "reads": reads[path]}))
        yield reads
    finally:
        for path, original in former.items():
            assume(layers[path], original)


def select_layers(
    original: Inventory,
    copy: Inventory,
    selects: Callable[[keras.layers.Layer], bool],
    example: Any,
) -> None:
    """Notes in the inventory of a copy which layers can be replaced, and why others stay.

    Args:
        original: The model.
        copy: A copy of it.
        selects: Whether a layer of the model may be replaced.
        example: Inputs to find code that reads the weights of layers; `None` if none are known.

    Raises:
        ValueError: If a layer that can be replaced has weights that are not finite.
    """
    reasons = copy.unsuited
    copy.replaceable.update(copy.known)
    for path, place in copy.known.items():
        # By the names in the original; those that Keras makes up differ in a copy.
        if not selects(original.places.get(path, place).layer):
            reasons[path] = "not selected by `filters`"
        elif path in copy.shared:
            reasons[path] = "held by several layers, each of which loads its own copy"
    free = {path: layer for path, layer in copy.replaceable_layers.items() if path not in reasons}
    reasons |= _reasons_of_readers(copy, free, example)
    copy.keep(reasons)
    for path, layer in copy.replaceable_layers.items():
        for weight in layer.weights:
            if not np.isfinite(ops.convert_to_numpy(weight)).all():
                raise ValueError(
                    "Expected finite weights. "
                    f"Received: infinite or NaN numbers in the {weight.name} of {path}"
                )


def _reasons_of_readers(
    inventory: Inventory, layers: Mapping[str, keras.layers.Layer], sample: Any
) -> dict[str, str]:
    """Returns by path why layers cannot be replaced: because other code uses their weights.

    The layers of the inventory, that of a copy, are changed while it runs. Without a sample of
    inputs only attributes are looked at.
    """
    reasons = _reasons_of_holders(inventory, layers)
    model = inventory.model
    if sample is None:
        return reasons
    free = {path: layer for path, layer in layers.items() if path not in reasons}
    try:
        return reasons | _reasons_of_reads(model, free, sample)
    except MemoryError:
        raise
    except Exception:  # of code that depends on the class of a layer
        for path, layer in free.items():
            try:
                reasons |= _reasons_of_reads(model, {path: layer}, sample)
            except Exception as error:
                reasons[path] = f"other code needs it as it is ({type(error).__name__}: {error})"
    return reasons


def _reasons_of_reads(
    model: keras.Model, layers: Mapping[str, keras.layers.Layer], sample: Any
) -> dict[str, str]:
    with _standins(layers) as reads:
        with keras.StatelessScope():
            run_through(functools.partial(model, training=False), sample)
        # A penalty may be computed in training only, or when the losses are collected.
        with contextlib.suppress(Exception), keras.StatelessScope():
            run_through(functools.partial(model, training=True), sample)
        with contextlib.suppress(Exception):
            _ = model.losses
    return {
        path: f"other code reads its {', '.join(sorted(names))}"
        for path, names in reads.items()
        if names
    }


def _reasons_of_holders(
    inventory: Inventory, layers: Mapping[str, keras.layers.Layer]
) -> dict[str, str]:
    """Returns the reasons against layers whose weights another layer holds as an attribute."""
    path_of = {id(weight): path for path, layer in layers.items() for weight in layer.weights}
    inside = tuple(f"{path}/" for path in layers)
    outside = [
        place.layer
        for path, place in inventory.places.items()
        if path not in layers and not path.startswith(inside)
    ]
    return {
        path_of[id(held)]: f"{layer.name} ({type(layer).__name__}) holds its {held.name}, too"
        for layer in (inventory.model, *outside)
        for held in contents(layer)
        if id(held) in path_of
    }
