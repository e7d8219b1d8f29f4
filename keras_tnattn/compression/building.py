"""Builds the small model from a plan and a choice."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_tnattn.compression.candidates import Candidate, copied
from keras_tnattn.compression.copying import copy_of, custom_objects, twins
from keras_tnattn.compression.plan import Plan
from keras_tnattn.compression.replacing import replace
from keras_tnattn.compression.rounding import (
    BlockRounding,
    Rounding,
    roundings,
    start_from_integers,
    with_integers_of,
)
from keras_tnattn.compression.walking import Place


@dataclasses.dataclass(frozen=True)
class Made:
    """The replacement of a layer.

    Attributes:
        floating: It with float weights; the layer itself if only its weights become integers.
        finished: It as in the finished model.
    """

    floating: keras.layers.Layer
    finished: keras.layers.Layer


def made(layer: keras.layers.Layer, candidate: Candidate) -> Made:
    """Returns the replacement of a layer by a candidate."""
    floating = layer if candidate.format == "dense" else candidate.make()
    return Made(floating, candidate.finished(floating))


@dataclasses.dataclass(frozen=True)
class Assembly:
    """A small model, and the one with float weights from which it was quantized.

    Attributes:
        floating: The model with the chosen layers as floats, equal to the integers of `small`.
        small: The finished model; `floating` itself if nothing is quantized.
        places: Where the layers of the plan are in `floating`, by path.
        quantized: The layers of `small` that are quantized, by path.
        quantize: The functions that quantized them, by path.
        sample: As in `Plan`.
    """

    floating: keras.Model
    small: keras.Model
    places: Mapping[str, Place]
    quantized: Mapping[str, keras.layers.Layer]
    quantize: Mapping[str, Callable[[keras.layers.Layer], keras.layers.Layer]]
    sample: Any

    @property
    def roundings(self) -> list[Rounding | BlockRounding]:
        """The kernels of `floating` that `small` has as integers."""
        return [
            rounding
            for path, layer in self.quantized.items()
            for rounding in roundings(self.places[path].layer, layer)
        ]

    def quantized_again(self) -> keras.Model:
        """Returns a new small model with the present weights of `floating`."""

        def again(path: str) -> keras.layers.Layer:
            layer, former = self.places[path].layer, self.quantized[path]
            if not roundings(layer, former):
                return self.quantize[path](layer)
            return with_integers_of(layer, copied(former))

        layers = {path: again(path) for path in self.quantized}
        return _with_layers(self.floating, self.places, layers, self.sample)[0]


def assembled(
    plan: Plan,
    choice: Mapping[str, Candidate],
    made_layers: Mapping[str, Made],
    in_place: bool = False,
) -> Assembly:
    """Builds the model of a choice.

    Args:
        plan: The plan.
        choice: A candidate for each of its layers.
        made_layers: The replacements of the layers that are not kept, by path.
        in_place: Whether to change the model of the plan, which then cannot be used again, instead
            of a copy.
    """
    floating, spots = plan.model, plan.places
    if not in_place:
        floating = copy_of(plan.model, plan.sample)
        twin_of = twins(plan.model, floating)
        spots = {path: twin_of[id(place.layer)] for path, place in plan.places.items()}
    for path, new in made_layers.items():
        if choice[path].format != "dense":
            replace(spots[path], new.floating)
    quantize = {
        path: candidate.quantize
        for path, candidate in choice.items()
        if candidate.quantize is not None
    }
    finished = {path: made_layers[path].finished for path in quantize}
    small, quantized = _with_layers(floating, spots, finished, plan.sample)
    assembly = Assembly(floating, small, spots, quantized, quantize, plan.sample)
    start_from_integers(assembly.roundings)
    return assembly


def _with_layers(
    floating: keras.Model,
    spots: Mapping[str, Place],
    layers: Mapping[str, keras.layers.Layer],
    sample: Any,
) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
    """Returns a copy of a model with other layers, and these layers in it, by path."""
    if not layers:
        return floating, {}
    small = copy_of(floating, sample)
    twin_of = twins(floating, small)
    for path, layer in layers.items():
        replace(twin_of[id(spots[path].layer)], layer)
    return small, {path: twin_of[id(spots[path].layer)].layer for path in layers}


def compile_like(model: keras.Model, small: keras.Model) -> None:
    """Compiles a small model as the original is, if Keras can save how that is."""
    custom = type(model).compile is not keras.Model.compile
    if not model.compiled or (
        custom and type(model).compile_from_config is keras.Model.compile_from_config
    ):
        return
    with keras.saving.custom_object_scope(custom_objects(model)):
        config = model.get_compile_config()
        if config:
            small.compile_from_config(config)


def measured(metric: Callable[[keras.Model], float], model: keras.Model) -> float:
    """Returns the value of the metric."""
    value = float(metric(model))
    if not math.isfinite(value):
        raise ValueError(f"Expected a finite metric. Received: metric(model)={value}")
    return value
