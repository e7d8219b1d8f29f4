"""Makes any Keras model smaller in one call."""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import keras
import numpy as np

from keras_tnattn.checks import check_int
from keras_tnattn.compression import calibration
from keras_tnattn.compression.batches import number_of_inputs
from keras_tnattn.compression.budget import share_out, within_tolerance
from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import (
    FORMATS,
    Candidate,
    byte_count,
    candidates_for,
    dense_flops,
    id_order,
    output_error,
    quantized,
    reason_against,
    row_weights,
    table_error,
)
from keras_tnattn.compression.healing import heal
from keras_tnattn.compression.rebuilding import counterparts, leaves, owners, rebuilt
from keras_tnattn.compression.report import LayerReport, Report
from keras_tnattn.layers import (
    TokenEmbedding,
    TTDense,
)
from keras_tnattn.ops import quantization

_REPLACED = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding, TokenEmbedding)
# Steps of the search for the smallest model within `max_drop`.
_BISECTIONS = 7


class CompressionResult:
    """A compressed model and its report.

    Attributes:
        model: The small model, a normal Keras model.
        report: A `Report` of the changes to each layer.
        id_orders: With `renumber`, a dict from the path of each embedding whose ids were renumbered
            to an array with the old id of each new id.

    Example:
        >>> import keras, numpy as np
        >>> from keras_tnattn import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        >>> result = compress(model, target=3.0, data=inputs)
        >>> losses = result.heal(inputs, epochs=2)
        >>> result.model.count_params() < model.count_params() / 3
        True
    """

    def __init__(
        self,
        original: keras.Model,
        floating: keras.Model,
        small: keras.Model,
        report: Report,
        layers: Mapping[str, keras.layers.Layer],
        choice: Mapping[str, Candidate],
        id_orders: Mapping[str, np.ndarray],
        metric: Callable[[keras.Model], float] | None,
        sample: Any,
    ) -> None:
        self._original, self._floating, self._choice = original, floating, choice
        self._layers, self._metric, self._sample = layers, metric, sample
        self.model, self.report = small, report
        self.id_orders = dict(id_orders)

    def heal(
        self,
        dataset: Any,
        epochs: int = 1,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        label_weight: float = 0.0,
        loss: Any = None,
    ) -> list[float]:
        """Trains the small model with the original's outputs as targets.

        Integers cannot be trained: with `bits` the model before quantization is trained, and then
        quantized again.

        Args:
            dataset: Inputs or `(inputs, labels)`, as arrays or as an iterable of batches; the same
                forms as for `data` of `compress`.
            epochs: Passes over the dataset. Defaults to 1.
            learning_rate: Learning rate of Adam. Defaults to 1e-3.
            batch_size: Rows per batch, if `dataset` are arrays. Defaults to 32.
            label_weight: Weight of the labels in the targets, if there are labels. Defaults to 0.
            loss: Another loss. Default: Kullback-Leibler divergence for probabilities, otherwise
                the mean squared error.

        Returns:
            The mean loss of each epoch.

        Raises:
            ValueError: If the dataset does not fit the model, labels are missing for
                `label_weight`, or the loss becomes infinite or NaN.
        """
        losses = heal(
            self._floating,
            self._original,
            dataset,
            epochs,
            learning_rate,
            batch_size,
            label_weight,
            loss,
            self.renumbered,
        )
        self.model = _quantized_model(self._floating, self._layers, self._choice, self._sample)
        if self._metric is not None:
            self.report = dataclasses.replace(
                self.report, metric_after=_measured(self._metric, self.model)
            )
        return losses

    def renumbered(self, inputs: Any) -> Any:
        """Converts inputs of the original model to inputs of the small model, with renumbered ids.

        If an embedding was renumbered, every integer array of the inputs is.
        """
        if not self.id_orders:
            return inputs
        new_ids = np.argsort(next(iter(self.id_orders.values())))

        def renumber(array: Any) -> np.ndarray:
            array = np.asarray(array)
            return new_ids[array].astype(array.dtype) if array.dtype.kind in "iu" else array

        return keras.tree.map_structure(renumber, inputs)


def compress(
    model: keras.Model,
    target: float | None = None,
    tolerance: float | None = None,
    data: Any = None,
    metric: Callable[[keras.Model], float] | None = None,
    max_drop: float | None = None,
    formats: Sequence[str] = FORMATS,
    bits: int | None = None,
    filters: str | Sequence[str] | Callable[[keras.layers.Layer], bool] | None = None,
    min_speed: float | None = None,
    batch_size: int = 32,
    renumber: int | None = None,
) -> CompressionResult:
    """Makes a trained Keras model smaller.

    `Dense`, `EinsumDense` and `Embedding` layers anywhere in the model, including those inside
    `MultiHeadAttention` and other layers, are replaced by layers of low rank or tensor trains. For
    each layer the error of its outputs is computed for many ranks. With `data` this is the error on
    the inputs that the layer really gets: `||C^{1/2} (W - W')||` for a kernel `W` and inputs of
    second moment `C`, and rows weighted by the counts of their ids for a table. The errors of each
    layer are weighted by the sensitivity of the model's outputs to them. One budget of bytes is
    divided among all layers so that each byte reduces the error most.

    This costs an SVD for each layer and, with `data`, two runs of the model over at most 1,024 rows
    and one run over a batch for each layer.

    Args:
        model: A built functional, sequential or subclassed model. It is not changed.
        target: How many times smaller the model has to be, in bytes of all weights. With `metric`
            and `max_drop`, the maximum to try. Pass this or `tolerance`, or neither: then nothing
            is replaced, and the report shows errors against sizes.
        tolerance: The maximum relative error of the outputs of each layer.
        data: Inputs of the model: an array, or a list, tuple or dict with an array for each input;
            or an iterable of such batches, for instance a `tf.data.Dataset`, a `PyDataset` or a
            generator, but not a list. A tuple `(inputs, labels)`, as for `fit`, can stand for
            the inputs; labels are not used.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after.
        max_drop: The maximum decrease of the metric; bisection finds the smallest such model.
        formats: The allowed formats, `"low_rank"` and `"tensor_train"`.
        bits: 8 or 4 to also quantize, with Keras' `quantize`, or row by row in `LowRankEmbedding`
            and `TTEmbedding`. With a target, or with neither target nor tolerance, these are all
            dense and embedding layers, replaced or not, that are selected and become smaller; with
            `tolerance` or `max_drop`, those for which the bound allows it. `TTDense` layers stay in
            floats.
        filters: A regular expression, a list of them or a function that selects layers by name, as
            in `keras.Model.quantize(filters=...)`; other layers are not changed.
        min_speed: Minimum speed of a replacement relative to the layer it replaces, measured on a
            batch of `data`. 1.0 rejects slower replacements.
        batch_size: Rows per batch, if `data` are arrays. Defaults to 32.
        renumber: The number of leading ids, such as padding and unknown, that do not change; less
            than all, and at least 1 for an embedding that masks padding (`mask_zero`). All other
            ids may be renumbered so that similar rows are neighbors, which saves the table of
            positions of a tensor-train embedding. The caller has to reorder the vocabulary by
            `result.id_orders`. Needs `data`, and one integer input that a single embedding reads;
            the ids of other models stay. Default: ids stay.

    Returns:
        A `CompressionResult` with `model`, `report` and `heal`.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If the model is not built or cannot be copied, the target cannot be reached, the
            data do not match the model, the metric is not finite, or arguments contradict each
            other.

    Example:
        >>> import keras, numpy as np
        >>> from keras_tnattn import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = compress(model, target=3.0, data=np.ones((8, 64), "float32"))
        >>> result.report.ratio >= 3
        True
    """
    _check_arguments(
        model, target, tolerance, formats, bits, metric, max_drop, min_speed, renumber, data
    )
    before = None if metric is None else _measured(metric, model)
    plan = _Plan(model, data, formats, bits, filters, min_speed, batch_size, renumber)
    if max_drop is not None and metric is not None and before is not None:
        choice = plan.within_drop(before, max_drop, metric, target)
    elif tolerance is not None:
        choice = plan.within_tolerance(tolerance)
    else:
        choice = plan.for_target(target or 1)
    result = plan.result(choice, metric)
    if metric is not None:
        result.report = dataclasses.replace(
            result.report, metric_before=before, metric_after=_measured(metric, result.model)
        )
    return result


def _check_arguments(
    model: Any,
    target: float | None,
    tolerance: float | None,
    formats: Sequence[str],
    bits: int | None,
    metric: Any,
    max_drop: float | None,
    min_speed: float | None,
    renumber: int | None,
    data: Any,
) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a keras.Model. Received: model={model!r}")
    if not model.built or not model.weights:
        raise ValueError(
            "Expected a built model with weights: call it on data, or give it an Input. "
            f"Received: model={model.name}"
        )
    if target is not None and tolerance is not None:
        raise ValueError(
            "Expected either `target` or `tolerance`. "
            f"Received: target={target}, tolerance={tolerance}"
        )
    if target is not None and not 1 <= target < math.inf:
        raise ValueError(f"Expected a target of at least 1. Received: target={target}")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"Expected a tolerance of at least 0. Received: tolerance={tolerance}")
    formats = [formats] if isinstance(formats, str) else list(formats)
    if not formats or not set(formats) <= set(FORMATS):
        raise ValueError(f"Expected formats among {FORMATS}. Received: formats={formats}")
    quantization.check_bits(bits)
    if max_drop is not None and (metric is None or not 0 <= max_drop < math.inf):
        raise ValueError(
            "Expected a max_drop of at least 0 together with a metric. "
            f"Received: max_drop={max_drop}, metric={metric}"
        )
    if min_speed is not None and (data is None or min_speed <= 0):
        raise ValueError(
            "Expected a positive min_speed, and data to measure it on. "
            f"Received: min_speed={min_speed}, data={'none' if data is None else 'some'}"
        )
    if renumber is not None:
        check_int("renumber", renumber, at_least=0)
        if data is None:
            raise ValueError(
                "Expected data, which show the embedding that reads the model's ids, together with "
                f"renumber. Received: renumber={renumber}, data=None"
            )


def _measured(metric: Callable[[keras.Model], float], model: keras.Model) -> float:
    value = float(metric(model))
    if not math.isfinite(value):
        raise ValueError(f"Expected a finite metric. Received: metric(model)={value}")
    return value


class _Plan:
    """The layers of a model that can be replaced, and the candidates for each."""

    def __init__(
        self,
        model: keras.Model,
        data: Any,
        formats: Sequence[str],
        bits: int | None,
        filters: Any,
        min_speed: float | None,
        batch_size: int,
        renumber: int | None,
    ) -> None:
        self.model, self.bits, self.min_speed, self.renumber = model, bits, min_speed, renumber
        formats = [formats] if isinstance(formats, str) else list(formats)
        self.layers, self.reasons = self._replaceable(filters)
        batches, arrays = None, None
        if data is not None:
            batches, arrays = calibration.batches_of(data, batch_size, number_of_inputs(model))
        self.sample = None if batches is None else batches[0]
        self.seen = self._seen(batches, arrays)
        self.choices = {
            path: candidates_for(layer, self.seen[path], formats, bits, self._renumber(path))
            for path, layer in self.layers.items()
        }
        self.total = byte_count(model)
        self.fixed = self.total - sum(byte_count(layer) for layer in self.layers.values())
        # The candidates without those that turned out to be too slow.
        self.allowed = {path: list(candidates) for path, candidates in self.choices.items()}
        self.times: dict[tuple, float] = {}

    def _renumber(self, path: str) -> int | None:
        """Returns `renumber` if this embedding is the only reader of the model's ids, or `None`."""
        inputs = keras.tree.flatten(self.sample)
        integers = sum(np.asarray(x).dtype.kind in "iu" for x in inputs)
        readers = [p for p, note in self.seen.items() if note.takes_model_input]
        if self.renumber is None or readers != [path] or integers != 1:
            return None
        layer = self.layers[path]
        if not int(layer.mask_zero) <= self.renumber < layer.input_dim:
            raise ValueError(
                f"Expected renumber to keep {'id 0, the padding, and ' if layer.mask_zero else ''}"
                f"fewer ids than the {layer.input_dim} of {path}. "
                f"Received: renumber={self.renumber}"
            )
        return self.renumber

    def _replaceable(
        self, filters: Any
    ) -> tuple[dict[str, keras.layers.Layer], dict[str, tuple[keras.layers.Layer, str]]]:
        held_by = owners(self.model)
        chosen, reasons = {}, {}
        for path, layer in leaves(self.model, lambda x: type(x) in _REPLACED).items():
            reason = reason_against(layer)
            if not _passes(layer, filters):
                reason = "not selected by `filters`"
            elif len(held_by.get(id(layer), ())) > 1:
                reason = "shared by several layers that each save their own copy"
            elif layer.built is False:
                reason = "not built"
            if reason is None:
                chosen[path] = layer
            else:
                reasons[path] = (layer, reason)
        return chosen, reasons

    def _seen(self, batches: list | None, arrays: Any) -> dict[str, Seen]:
        if batches is None:
            return {path: Seen() for path in self.layers}
        copy = rebuilt(self.model, {}, lambda m: m(batches[0]))
        watched = counterparts(self.model, copy, self.layers)
        try:
            seen, outputs = calibration.observe(copy, watched, batches, arrays)
        except (ValueError, TypeError, IndexError, RuntimeError, KeyError) as error:
            raise ValueError(f"The data do not fit the model: {error}") from error
        for path in [path for path, note in seen.items() if note.batch is None]:
            reason = "never called on the data"
            self.reasons[path] = (self.layers.pop(path), reason)
            del watched[path], seen[path]
        calibration.measure_sensitivity(copy, watched, batches[0], seen, outputs)
        return seen

    def within_tolerance(self, tolerance: float) -> dict[str, Candidate]:
        return {
            path: within_tolerance(candidates, tolerance, functools.partial(self._is_fast, path))
            for path, candidates in self.choices.items()
        }

    def for_target(self, target: float) -> dict[str, Candidate]:
        unreplaced = {path: self._unreplaced(path) for path in self.choices}
        if target == 1:
            return unreplaced
        for path, candidate in unreplaced.items():
            if candidate.bits is not None:  # then the layer in floats is no choice
                self.allowed[path].remove(self.choices[path][0])
        choice = self._shared_out(target)
        if choice is None:
            self._refuse(target)
        return choice

    def _unreplaced(self, path: str) -> Candidate:
        """Returns the layer as it is; quantized with `bits`, if this makes it smaller."""
        dense = [c for c in self.choices[path] if c.format == "dense" and self._is_fast(path, c)]
        return min(dense, key=lambda c: c.bytes)

    def _shared_out(self, target: float) -> dict[str, Candidate] | None:
        """Returns the choice for a target, or `None` if the target cannot be reached."""
        budget = int(self.total / target) - self.fixed
        sensitivity = {path: note.sensitivity for path, note in self.seen.items()}
        while True:
            choice = share_out(self.allowed, sensitivity, budget)
            if choice is None:
                return None
            slow = {path for path, c in choice.items() if not self._is_fast(path, c)}
            for path in slow:
                self.allowed[path].remove(choice[path])
            if slow:
                continue
            # The scales that Keras stores depend on its block sizes, so build the model to count
            # its bytes.
            excess = 0
            if self.bits is not None:
                excess = byte_count(self.build(choice)) - int(self.total / target)
            if excess <= 0:
                return choice
            budget -= excess

    def _refuse(self, target: float) -> NoReturn:
        smallest = self.within_tolerance(math.inf)
        reached = self.total / byte_count(self.build(smallest))
        worst = max(smallest, key=lambda path: smallest[path].error, default=None)
        cost = (
            f" At {reached:.2f} the error of the outputs of {worst} is "
            f"{100 * smallest[worst].error:.0f} %."
            if worst
            else ""
        )
        raise ValueError(
            f"Expected a target of at most {math.floor(100 * reached) / 100}: {self.fixed:,} of "
            f"{self.total:,} bytes are in layers that are not replaced.{cost} With bits=8 or 4 the "
            f"model can be smaller. Received: target={target}"
        )

    def within_drop(
        self,
        before: float,
        max_drop: float,
        metric: Callable[[keras.Model], float],
        target: float | None,
    ) -> dict[str, Candidate]:
        """Returns the choice of the highest target whose metric drops by at most `max_drop`."""
        smallest = sum(min(c.bytes for c in group) for group in self.choices.values())
        highest = self.total / max(1, self.fixed + smallest)
        low, high = 1.0, min(highest, target or highest)
        best = {path: candidates[0] for path, candidates in self.choices.items()}
        for step in range(_BISECTIONS):
            middle = high if step == 0 else math.sqrt(low * high)
            choice = self._shared_out(middle)
            if choice and _measured(metric, self.build(choice)) >= before - max_drop:
                low, best = middle, choice
                if step == 0:
                    break
            else:
                high = middle
        return best

    def _is_fast(self, path: str, candidate: Candidate) -> bool:
        if self.min_speed is None or candidate is self.choices[path][0]:
            return True
        old = self._time(path, self.choices[path][0])
        return old >= self.min_speed * self._time(path, candidate)

    def _time(self, path: str, candidate: Candidate) -> float:
        """Returns the milliseconds of a call on the batch that the layer was called with."""
        key = (path, candidate.format, candidate.ranks, candidate.bits)
        if key not in self.times:
            # Not `None`: `min_speed` needs data, and layers that were not called are removed.
            batch = cast(np.ndarray, self.seen[path].batch)
            layer = candidate.make()
            if candidate.bits is not None and not isinstance(layer, TTDense):
                layer = quantized(layer, candidate.bits)
            copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
            inputs = keras.Input(batch.shape[1:], dtype=str(batch.dtype))
            timed = keras.Model(inputs, copy(inputs))
            timed.predict_on_batch(batch)
            times = []
            for _ in range(7):
                start = time.perf_counter()
                timed.predict_on_batch(batch)
                times.append(time.perf_counter() - start)
            self.times[key] = 1000 * min(times)
        return self.times[key]

    def floating(self, choice: Mapping[str, Candidate]) -> keras.Model:
        """Returns the model with the chosen layers, before quantization."""
        prototypes = {
            id(self.layers[path]): candidate.make()
            for path, candidate in choice.items()
            if candidate.format != "dense"
        }
        call = None if self.sample is None else lambda m: m(self.sample)
        return rebuilt(self.model, prototypes, call)

    def build(self, choice: Mapping[str, Candidate]) -> keras.Model:
        floating = self.floating(choice)
        layers = counterparts(self.model, floating, self.layers)
        return _quantized_model(floating, layers, choice, self.sample)

    def result(self, choice: Mapping[str, Candidate], metric: Callable | None) -> CompressionResult:
        floating = self.floating(choice)
        orders = {
            path: id_order(self.layers[path], first)
            for path, candidate in choice.items()
            if candidate.format == "tensor_train"
            and isinstance(self.layers[path], keras.layers.Embedding)
            and (first := self._renumber(path)) is not None
        }
        layers = counterparts(self.model, floating, self.layers)
        small = _quantized_model(floating, layers, choice, self.sample)
        report = self._report(choice, small, orders)
        return CompressionResult(
            self.model, floating, small, report, layers, choice, orders, metric, self.sample
        )

    def _report(
        self,
        choice: Mapping[str, Candidate],
        small: keras.Model,
        orders: Mapping[str, np.ndarray],
    ) -> Report:
        new_layers = counterparts(self.model, small, self.layers)
        rows = []
        for path, candidate in choice.items():
            old, new = self.layers[path], new_layers[path]
            changed = candidate.format != "dense" or candidate.bits is not None
            timed = changed and self.min_speed is not None
            rows.append(
                LayerReport(
                    path,
                    type(old).__name__,
                    candidate.format if changed else "kept",
                    candidate.ranks,
                    _stored_bits(new, candidate),
                    old.count_params(),
                    new.count_params(),
                    byte_count(old),
                    byte_count(new),
                    self._error(path, old, new, orders.get(path)) if changed else 0.0,
                    dense_flops(old),
                    candidate.flops,
                    self._time(path, self.choices[path][0]) if timed else None,
                    self._time(path, candidate) if timed else None,
                    "" if changed else "no candidate is better",
                    tuple((c.bytes, c.error, c.format) for c in self.choices[path]),
                )
            )
        rows += [
            LayerReport(
                path,
                type(layer).__name__,
                weights_before=layer.count_params(),
                weights_after=layer.count_params(),
                bytes_before=byte_count(layer),
                bytes_after=byte_count(layer),
                reason=reason,
            )
            for path, (layer, reason) in self.reasons.items()
        ]
        rows += self._others(small)
        notes = [
            "Errors are relative errors of the outputs on the data."
            if self.sample is not None
            else "Errors are relative errors of kernels and tables, because there are no data."
        ]
        if self.bits is not None:
            notes.append(
                f"{self.bits} bits: Keras quantizes Dense and EinsumDense layers, and also rounds "
                "their inputs to 8 bits; LowRankEmbedding and TTEmbedding are quantized by row."
            )
        return Report(
            tuple(rows),
            self.model.count_params(),
            small.count_params(),
            self.total,
            byte_count(small),
            notes=tuple(notes),
        )

    def _error(
        self,
        path: str,
        old: keras.layers.Layer,
        new: keras.layers.Layer,
        order: np.ndarray | None,
    ) -> float:
        if not isinstance(old, keras.layers.Embedding):
            return output_error(old, new, self.seen[path])
        ids = np.arange(old.input_dim)
        table = keras.ops.convert_to_numpy(old(ids)).astype("float64")
        near = keras.ops.convert_to_numpy(new(ids if order is None else np.argsort(order)))
        return table_error(table, near, row_weights(old, self.seen[path]))

    def _others(self, small: keras.Model) -> list[LayerReport]:
        """Returns one row for all other weights."""
        known = [*self.layers.values(), *(layer for layer, _ in self.reasons.values())]
        ids = {id(weight) for layer in known for weight in layer.weights}
        rest = [weight for weight in self.model.weights if id(weight) not in ids]
        if not rest:
            return []
        count = sum(int(np.prod(weight.shape)) for weight in rest)
        size = self.total - sum(byte_count(layer) for layer in known)
        reason = "no dense, einsum or embedding layer"
        return [
            LayerReport(
                "(all other weights)", "-", "kept", (), 32, count, count, size, size, reason=reason
            )
        ]


def _stored_bits(layer: keras.layers.Layer, candidate: Candidate) -> int:
    return 32 if candidate.bits is None or isinstance(layer, TTDense) else candidate.bits


def _quantized_model(
    floating: keras.Model,
    layers: Mapping[str, keras.layers.Layer],
    choice: Mapping[str, Candidate],
    sample: Any,
) -> keras.Model:
    """Returns the model in which the layers whose candidates have `bits` are quantized."""
    if all(candidate.bits is None for candidate in choice.values()):
        return floating
    prototypes = {
        id(layers[path]): quantized(layers[path], candidate.bits)
        for path, candidate in choice.items()
        if candidate.bits is not None and not isinstance(layers[path], TTDense)
    }
    return rebuilt(floating, prototypes, None if sample is None else lambda m: m(sample))


def _passes(layer: keras.layers.Layer, filters: Any) -> bool:
    """Whether `filters` selects a layer, as in `keras.Model.quantize`."""
    if filters is None:
        return True
    if callable(filters):
        return bool(filters(layer))
    patterns = [filters] if isinstance(filters, str) else filters
    return any(re.search(pattern, layer.name) for pattern in patterns)
