"""Corrects biases in closed form, so that layers have the mean outputs of the original model.

Integers that are chosen for one layer alone leave an error in the mean of its outputs, because the
layers before it have changed, too. A bias takes it away without training (Nagel et al., 2019,
https://arxiv.org/abs/1906.04721, sec. 4.2). Each layer is corrected for inputs that come from
corrected layers, in one run of the small model.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.batches import outputs_of, some_batches
from keras_tnattn.compression.building import Assembly
from keras_tnattn.compression.calibration import Call, Data, watch_calls, with_activation
from keras_tnattn.compression.comparing import Comparison
from keras_tnattn.compression.inventory import Inventory
from keras_tnattn.compression.plan import Plan
from keras_tnattn.compression.progress import tell

Layers = Mapping[str, keras.layers.Layer]
Means = dict[str, list[tuple[np.ndarray, int]]]


class BiasCorrection:
    """Corrects the biases of a small model by the mean outputs of the original's layers.

    Args:
        data: Inputs of the model; without any nothing is corrected.
    """

    def __init__(self, plan: Plan, replaced: Iterable[str], data: Data | None) -> None:
        self.replaced, self.options = tuple(replaced), plan.options
        self.batches = [] if data is None else data.batches
        self.some = some_batches(self.batches)
        self.means: Means = {}
        layers = self._layers_of(plan.inventory)
        if layers and self.replaced and self.batches:
            self.means = mean_outputs(layers, plan.inventory.model, self.some)

    def apply(
        self,
        comparison: Comparison,
        assembly: Assembly,
        renumbered: Callable[[Any], Any] = lambda inputs: inputs,
    ) -> None:
        """Corrects both models of an assembly, unless the small one becomes worse.

        `renumbered` takes the original's inputs to those of the small model.
        """
        if not self.means:
            return
        small, floating = assembly.small.model, assembly.floating.model
        models = [self._layers_of(assembly.small)]
        if floating is not small:
            models.append(self._layers_of(assembly.floating))

        def value() -> tuple[float, float]:
            """Returns what must not rise."""
            error, _ = comparison.error_of(small, self.batches, renumbered)
            return error, -(comparison.metric_of(small) or 0.0)

        before = value()
        inputs = [renumbered(batch) for batch in self.some]
        changes = corrections(models[0], small, inputs, self.means)
        former = [model.get_weights() for model in (small, floating)]
        for layers in models:
            add_to_biases(layers, changes)
        after = value()
        tell("error with corrected biases %.4f, instead of %.4f", after[0], before[0])
        if any(new > old for new, old in zip(after, before, strict=True)):
            tell("biases stay as they are")
            for model, weights in zip((small, floating), former, strict=True):
                model.set_weights(weights)

    def _layers_of(self, inventory: Inventory) -> dict[str, keras.layers.Layer]:
        """Returns the layers with biases: those that are replaced and batch normalizations."""

        def is_corrected(path: str, layer: keras.layers.Layer) -> bool:
            normalizes = isinstance(layer, keras.layers.BatchNormalization)
            return path in self.replaced or (normalizes and self.options.selects(layer))

        return {
            path: place.layer
            for path, place in inventory.places.items()
            if is_corrected(path, place.layer) and bias_of(place.layer) is not None
        }


def bias_of(layer: keras.layers.Layer) -> keras.Variable | None:
    """Returns the variable that is added to the outputs of a layer, before its activation."""
    last = getattr(layer, "outer", layer)
    if isinstance(last, keras.layers.BatchNormalization):
        return last.beta if last.axis in (-1, last.input_spec.ndim - 1) else None
    if getattr(last, "data_format", None) == "channels_first":
        return None
    bias = getattr(last, "bias", None)
    return bias if isinstance(bias, keras.Variable) else None


def mean_outputs(layers: Layers, model: keras.Model, batches: Sequence[Any]) -> Means:
    """Returns the mean outputs, and the rows, of each call of layers, before their activations."""
    means: Means = {path: [] for path in layers}

    def note(path: str, outputs: Any) -> Any:
        means[path].append((_mean(outputs, layers[path]), len(outputs)))
        return outputs

    with _watched_before_activation(layers, note) as failures:
        for batch in batches:
            outputs_of(model, batch)
    return {path: found for path, found in means.items() if path not in failures}


def corrections(
    layers: Layers, model: keras.Model, batches: Sequence[Any], expected: Means
) -> dict[str, np.ndarray]:
    """Returns what to add to biases, by path, for the expected means of `mean_outputs`."""
    layers = {path: layer for path, layer in layers.items() if path in expected}
    differences: Means = {path: [] for path in layers}

    def correct(path: str, outputs: Any) -> Any:
        found = differences[path]
        if len(found) == len(expected[path]):  # a call that the original did not make
            return outputs
        mean, rows = expected[path][len(found)]
        found.append((mean - _mean(outputs, layers[path]), rows))
        # The layers behind see the mean correction up to this batch.
        return outputs + ops.cast(_average(found), outputs.dtype)

    with _watched_before_activation(layers, correct):
        for batch in batches:
            outputs_of(model, batch)
    return {path: _average(found) for path, found in differences.items() if found}


def _average(found: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """Returns the mean of arrays, each weighted by its number of rows."""
    arrays, rows = zip(*found, strict=True)
    return np.average(arrays, axis=0, weights=rows).astype("float32")


def add_to_biases(layers: Layers, changes: Mapping[str, np.ndarray]) -> None:
    """Adds arrays to the biases of layers, by path."""
    for path, change in changes.items():
        bias = bias_of(layers[path])
        if bias is not None:
            bias.assign(ops.convert_to_numpy(bias).astype("float32") + change)


@contextlib.contextmanager
def _watched_before_activation(
    layers: Layers, watch: Callable[[str, Any], Any]
) -> Iterator[dict[str, str]]:
    """Makes each layer apply its activation to `watch(path, outputs before the activation)`.

    Yields the layers for which this failed, as `watch_calls` does.
    """
    functions = {
        path: getattr(getattr(layer, "outer", layer), "activation", None)
        for path, layer in layers.items()
    }

    def watch_and_activate(path: str, _call: Call, outputs: Any) -> Any:
        outputs, function = watch(path, outputs), functions[path]
        return outputs if function is None else function(outputs)

    with contextlib.ExitStack() as stack:
        for path, layer in layers.items():
            if functions[path] is not None:
                stack.enter_context(with_activation(layer, keras.activations.linear))
        yield stack.enter_context(watch_calls(layers, watch_and_activate))


def _mean(outputs: Any, layer: keras.layers.Layer) -> np.ndarray:
    """Returns the mean of outputs, in the shape of the bias of their layer."""
    array = ops.convert_to_numpy(outputs).astype("float64")
    bias = bias_of(layer)
    shape = () if bias is None else tuple(bias.shape)
    array = array.reshape(-1, *array.shape[array.ndim - len(shape) :]).mean(axis=0)
    ones = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return array.mean(axis=ones, keepdims=True).astype("float32")
