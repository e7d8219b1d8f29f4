"""Corrects biases in closed form, so that layers have the mean outputs of the original model.

Integers that are chosen for one layer alone leave an error in the mean of its outputs, because the
layers before it have changed, too. A bias takes it away without training (Nagel et al., 2019,
https://arxiv.org/abs/1906.04721, sec. 4.2). A batch normalization also gets back the variance of
each channel, as if its statistics were estimated again (Sun et al., 2019,
https://arxiv.org/abs/1911.12561): outputs `y` of mean `m` and deviation `d`, of the original `m_0`
and `d_0`, become `m_0 + d_0 / d (y - m)`, by its `gamma` and `beta`. Each layer is corrected for
inputs that come from corrected layers, in one run of the small model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.data import CalibrationData, number_of_rows, spread_batches
from keras_small.asked.progress import tell
from keras_small.asked.renumbering import Renumbering
from keras_small.building.assembly import Assembly
from keras_small.planning.plan import Plan
from keras_small.survey.comparing import Comparison
from keras_small.survey.inventory import Inventory
from keras_small.survey.output_moments import OutputMoments, bias_of, moments_of_outputs
from keras_small.survey.running import Runner
from keras_small.survey.watching import Call, watch_calls
from keras_tnattn.typing import Tensor

Layers = Mapping[str, keras.layers.Layer]
# The factor and the shift of the outputs of each layer, by path.
Changes = dict[str, tuple[np.ndarray, np.ndarray]]
# Maximum factor by which a deviation changes.
_MAXIMUM_DEVIATION_FACTOR = 2.0
# Minimum rows from which deviations are estimated.
_ROWS_FOR_DEVIATIONS = 32


class BiasCorrection:
    """Corrects the biases of a small model by the outputs of the original's layers on data."""

    def __init__(self, plan: Plan, replaced: Iterable[str], data: CalibrationData | None) -> None:
        self.replaced = tuple(replaced)
        self.options = plan.options
        self.batches = [] if data is None else data.batches
        self.observed = spread_batches(self.batches)
        self.moments: OutputMoments = {}
        if self.replaced and self.batches:
            noted = {x: plan.statistics[x].output_moments for x in self._layers_of(plan.inventory)}
            self.moments = {path: moments for path, moments in noted.items() if moments}

    def apply(
        self, comparison: Comparison, assembly: Assembly, renumbering: Renumbering
    ) -> float | None:
        """Corrects both models of an assembly, unless the small one becomes worse.

        Returns:
            The error of the outputs on the calibration; `None` if there is nothing to correct.
        """
        if not self.moments:
            return None
        small = assembly.small.model
        floating = assembly.floating.model
        models = [self._layers_of(assembly.small)]
        if floating is not small:
            models.append(self._layers_of(assembly.floating))
        equal = assembly.equal_floats  # which is faster, because it restores no integers

        def value() -> tuple[float, float]:
            """Returns the error and the negative metric, neither of which may rise."""
            error, _ = comparison.error_of(equal.model, self.batches, renumbering)
            return error, -(comparison.metric_of(small) or 0.0)

        before = value()
        inputs = [renumbering(batch) for batch in self.observed]
        changes = corrections(self._layers_of(equal), equal.model, inputs, self.moments)
        weights = [weight for layers in models for weight in _corrected_weights(layers)]
        former = [np.array(ops.convert_to_numpy(weight)) for weight in weights]
        for layers in models:
            correct(layers, changes)
        after = value()
        tell("error with corrected biases %.4f, instead of %.4f", after[0], before[0])
        worse = [new > old for new, old in zip(after, before, strict=True)]
        if any(worse):
            metrics = f"the metric would be {-after[1]:.4f}, instead of {-before[1]:.4f}"
            tell("biases stay as they are: %s", "errors would grow" if worse[0] else metrics)
            for weight, array in zip(weights, former, strict=True):
                weight.assign(array)
            return before[0]
        return after[0]

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


def corrections(
    layers: Layers, model: keras.Model, batches: Sequence[Any], expected: OutputMoments
) -> Changes:
    """Returns the changes of the outputs that give them the expected moments."""
    layers = {path: layer for path, layer in layers.items() if path in expected}
    actual: OutputMoments = {path: [] for path in layers}

    def read(inputs: Any) -> dict[str, Any]:
        batch, *sums = inputs
        # PyTorch does not compute with arrays.
        before, rows, count, wanted = keras.tree.map_structure(ops.convert_to_tensor, sums)
        found: dict[str, list[Tensor]] = {path: [] for path in layers}
        changes: dict[str, tuple[Tensor, Tensor]] = {}

        def correct(path: str, _call: Call, outputs: Tensor) -> Tensor:
            calls = found[path]
            if len(calls) == len(wanted[path]):  # a call that the original did not make
                return outputs
            calls.append(moments_of_outputs(outputs, layers[path]))
            own = (before[path] + sum(calls) * count) / (rows[path] + count * len(calls))
            # The layers behind see the correction up to this batch.
            factor, change = _correction(wanted[path][len(calls) - 1], own, scaled[path])
            changes[path] = factor, change
            return outputs * ops.cast(factor, outputs.dtype) + ops.cast(change, outputs.dtype)

        with watch_calls(layers, correct, before_activation=True) as failures:
            model(batch, training=False)
        run.check_failures(failures)
        moments = {path: calls for path, calls in found.items() if path not in failures}
        return {"moments": moments, "changes": changes}

    calls_of_batch = {path: len(expected[path]) // len(batches) for path in layers}
    scaled = {path: _is_scaled(layers[path], expected[path]) for path in layers}
    run = Runner(model, read, runs=len(batches))
    changes: Changes = {}
    for batch in batches:
        count = number_of_rows(batch)
        before = {path: _total(found, expected[path]) for path, found in actual.items()}
        rows = {path: np.float32(sum(n for _, n in found)) for path, found in actual.items()}
        wanted = {
            path: [
                _average(expected[path][: len(found) + call + 1])
                for call in range(calls_of_batch[path])
            ]
            for path, found in actual.items()
        }
        read_by_run = run.nested([batch, before, rows, np.float32(count), wanted])
        for path, calls in read_by_run["moments"].items():
            actual[path].extend((moment, count) for moment in calls)
        changes |= read_by_run["changes"]  # those of the last batch are of all of them
    return {path: change for path, change in changes.items() if actual[path]}


def _is_scaled(layer: keras.layers.Layer, expected: Sequence[tuple[np.ndarray, int]]) -> bool:
    """Whether the deviation of a layer's outputs is corrected, too."""
    return _has_scale(layer) and sum(n for _, n in expected) >= _ROWS_FOR_DEVIATIONS


def _correction(expected: Tensor, actual: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    """Returns the factor and the shift that give outputs the expected moments."""
    # Tensors of graphs cannot be unpacked.
    mean, square = expected[0], expected[1]
    own_mean, own_square = actual[0], actual[1]
    if not scaled:
        return ops.ones_like(mean), mean - own_mean
    before = ops.sqrt(ops.maximum(square - mean**2, 0.0)) + keras.config.epsilon()
    after = ops.sqrt(ops.maximum(own_square - own_mean**2, 0.0)) + keras.config.epsilon()
    factor = ops.clip(before / after, 1 / _MAXIMUM_DEVIATION_FACTOR, _MAXIMUM_DEVIATION_FACTOR)
    return factor, mean - factor * own_mean


def _total(found: Sequence[tuple[np.ndarray, int]], like: Sequence[Any]) -> np.ndarray:
    """Returns the sum of arrays, each times its number of rows."""
    return sum((moment * rows for moment, rows in found), np.zeros_like(like[0][0]))


def _average(found: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """Returns the mean of arrays, each weighted by its number of rows."""
    arrays, rows = zip(*found, strict=True)
    return np.average(arrays, axis=0, weights=rows).astype("float32")


def _corrected_weights(layers: Layers) -> list[keras.Variable]:
    """Returns the biases, and the scales of normalizations."""
    biases = [bias_of(layer) for layer in layers.values()]
    scales = [layer.gamma for layer in layers.values() if _has_scale(layer)]
    return [weight for weight in (*biases, *scales) if weight is not None]


def _has_scale(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and layer.scale


def correct(layers: Layers, changes: Changes) -> None:
    """Multiplies the scales of normalizations, and shifts the biases of layers, by path."""
    for path, (factor, change) in changes.items():
        layer = layers[path]
        bias = bias_of(layer)
        if _has_scale(layer):
            layer.gamma.assign(ops.convert_to_numpy(layer.gamma) * factor.astype("float32"))
        if bias is not None:
            bias.assign((ops.convert_to_numpy(bias) * factor + change).astype("float32"))
