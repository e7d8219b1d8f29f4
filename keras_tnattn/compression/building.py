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
    Rounding,
    roundings,
    start_from_integers,
    with_integers_of,
)
from keras_tnattn.compression.walking import Place


@dataclasses.dataclass(frozen=True)
class Assembly:
    """A small model, and the one with float weights from which it was quantized.

    Attributes:
        floating: The model with the chosen layers as floats, equal to the integers of `small`.
        small: The finished model; `floating` itself if nothing is quantized.
        places: Where the layers of the plan are in `floating`, by path.
        quantized: The layers of `small` that are quantized, by path.
        choice: The candidate of each layer of the plan.
        sample: As in `Plan`.
    """

    floating: keras.Model
    small: keras.Model
    places: Mapping[str, Place]
    quantized: Mapping[str, keras.layers.Layer]
    choice: Mapping[str, Candidate]
    sample: Any

    @property
    def roundings(self) -> list[Rounding]:
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
                return self.choice[path].finished(layer)
            return with_integers_of(layer, copied(former))

        return _quantized(self.floating, self.places, self.choice, self.sample, again)[0]


def assembled(plan: Plan, choice: Mapping[str, Candidate], in_place: bool = False) -> Assembly:
    """Builds the model of a choice.

    Args:
        plan: The plan.
        choice: A candidate for each of its layers.
        in_place: Whether to change the model of the plan, which then cannot be used again, instead
            of a copy.
    """
    new_layers = {
        path: candidate.make() for path, candidate in choice.items() if candidate.format != "dense"
    }
    floating, spots = plan.model, plan.places
    if not in_place:
        floating = copy_of(plan.model, plan.sample)
        twin_of = twins(plan.model, floating)
        spots = {path: twin_of[id(place.layer)] for path, place in plan.places.items()}
    for path, layer in new_layers.items():
        replace(spots[path], layer)
    small, quantized = _quantized(
        floating,
        spots,
        choice,
        plan.sample,
        lambda path: choice[path].finished(spots[path].layer),
    )
    assembly = Assembly(floating, small, spots, quantized, choice, plan.sample)
    start_from_integers(assembly.roundings)
    return assembly


def _quantized(
    floating: keras.Model,
    spots: Mapping[str, Place],
    choice: Mapping[str, Candidate],
    sample: Any,
    new_layer: Callable[[str], keras.layers.Layer],
) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
    """Returns a quantized copy of a model, and the layers in it that are quantized, by path."""
    if all(candidate.bits is None for candidate in choice.values()):
        return floating, {}
    small = copy_of(floating, sample)
    twin_of, quantized = twins(floating, small), {}
    for path, candidate in choice.items():
        if candidate.bits is not None:
            place = twin_of[id(spots[path].layer)]
            replace(place, new_layer(path))
            quantized[path] = place.layer
    return small, quantized


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
