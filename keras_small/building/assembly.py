"""Builds the small model from a plan and a choice."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.building.rounding import (
    AnyRounding,
    roundings,
    start_from_integers,
    with_integers_of,
)
from keras_small.formats.candidates import Candidate, copy_layer
from keras_small.planning.plan import Plan
from keras_small.survey.copying import copy_of, with_layers
from keras_small.survey.freed_memory import give_back_memory
from keras_small.survey.inventory import Inventory
from keras_small.survey.replacing import replace

# Maximum change of a mean of a batch normalization, as a share of the deviation.
_MAXIMUM_MEAN_CHANGE = 0.01


@dataclasses.dataclass(frozen=True)
class Made:
    """The replacement of a layer: with float weights, and as the finished model has it."""

    floating: keras.layers.Layer
    finished: keras.layers.Layer


def replacement_of(layer: keras.layers.Layer, candidate: Candidate) -> Made:
    """Returns the replacement of a layer by a candidate."""
    floating = layer if candidate.format == "dense" else candidate.make()
    return Made(floating, candidate.finish(floating))


@dataclasses.dataclass(frozen=True)
class Assembly:
    """A small model, and the one with float weights from which it was quantized.

    Attributes:
        floating: The model with the chosen layers as floats, equal to the integers of `small`.
        small: The finished model; `floating` itself if nothing is quantized.
        quantize: The functions that quantized layers of `small`, by path.
        sample: As in `Survey`.
        error: The error of the outputs of `equal_floats` on the calibration, if it was measured.
    """

    floating: Inventory
    small: Inventory
    quantize: Mapping[str, Callable[[keras.layers.Layer], keras.layers.Layer]]
    sample: Any
    error: float | None = None

    @property
    def roundings(self) -> list[AnyRounding]:
        """The kernels of `floating` that `small` has as integers."""
        return [rounding for path in self.quantize for rounding in roundings(*self._pair(path))]

    def _pair(self, path: str) -> tuple[keras.layers.Layer, keras.layers.Layer]:
        return self.floating.places[path].layer, self.small.places[path].layer

    @property
    def equal_floats(self) -> Inventory:
        """The model that computes what `small` does, with floats if they stand for its integers."""
        known = all(roundings(*self._pair(path)) for path in self.quantize)
        return self.floating if known else self.small

    def quantized_again(self) -> keras.Model:
        """Returns a new small model with the present weights of `floating`."""

        def again(path: str) -> keras.layers.Layer:
            layer, former = self._pair(path)
            if not roundings(layer, former):
                return self.quantize[path](layer)
            return with_integers_of(layer, copy_layer(former))

        layers = {path: again(path) for path in self.quantize}
        return with_layers(self.floating, layers, self.sample).model


def assemble(
    plan: Plan,
    choice: Mapping[str, Candidate],
    made_layers: Mapping[str, Made],
    in_place: bool = False,
) -> Assembly:
    """Builds the model of a choice, with the new layers by path of those that are not kept.

    It is a copy or, `in_place`, the model of the plan, which then cannot be used again.
    """
    sample = plan.survey.sample
    floating = plan.inventory if in_place else copy_of(plan.inventory, sample)
    for path, new in made_layers.items():
        if choice[path].format != "dense":
            replace(floating.places[path], new.floating)
    quantize = {
        path: candidate.quantize
        for path, candidate in choice.items()
        if candidate.quantize is not None
    }
    finished = {path: made_layers[path].finished for path in quantize}
    give_back_memory()  # of the candidates, before the copy
    small = with_layers(floating, finished, sample)
    assembly = Assembly(floating, small, quantize, sample)
    start_from_integers(assembly.roundings)
    return assembly


def shorten_vectors(
    small: Inventory,
    replaced: Collection[str],
    selects: Callable[[keras.layers.Layer], bool] = lambda layer: True,
) -> None:
    """Rounds vectors, such as biases, to the 16 bits of bfloat16; coded they take half the bytes.

    Those of replaced layers, at the paths `replaced`, and of selected batch normalizations. The
    relative error is at most 2^-8. Means that are large beside their deviations stay as they are.
    """
    for path, place in small.places.items():
        layer = place.layer
        kept = None
        if isinstance(layer, keras.layers.BatchNormalization):
            if not replaced or not selects(layer):
                continue
            mean = layer.moving_mean
            variance = ops.convert_to_numpy(layer.moving_variance)
            deviations = np.sqrt(variance + layer.epsilon)
            change = np.abs(_in_16_bits(mean) - ops.convert_to_numpy(mean))
            kept = mean if (change > _MAXIMUM_MEAN_CHANGE * deviations).any() else None
        elif path not in replaced:
            continue
        for weight in layer.weights:
            if weight is not kept and len(weight.shape) == 1 and weight.dtype == "float32":
                weight.assign(_in_16_bits(weight))


def _in_16_bits(weight: keras.Variable) -> np.ndarray:
    return np.array(ops.convert_to_numpy(ops.cast(ops.cast(weight, "bfloat16"), "float32")))
