"""Which layers of a model are replaced, and by what."""

import functools
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import keras
import numpy as np

from keras_tnattn.compression import calibration
from keras_tnattn.compression.batches import are_equal, fitting_data, number_of_inputs, renumbered
from keras_tnattn.compression.budget import share_out, within_tolerance
from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import (
    Candidate,
    byte_count,
    dense_flops,
    output_error,
    quantized,
    quantized_model,
    reason_against,
)
from keras_tnattn.compression.choices import candidates_for
from keras_tnattn.compression.rebuilding import counterparts, leaves, owners, rebuilt
from keras_tnattn.compression.report import LayerReport, Report
from keras_tnattn.compression.sensitivity import measure_responses, measure_sensitivity
from keras_tnattn.compression.tables import row_weights, table_error
from keras_tnattn.layers import TokenEmbedding

_REPLACED = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding, TokenEmbedding)
# Steps of the search for the smallest model within `max_drop`.
_BISECTIONS = 7
_log = logging.getLogger(__name__)


class Plan:
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
        self.choices = {}
        for number, (path, layer) in enumerate(self.layers.items(), 1):
            _log.info("layer %d of %d: %s", number, len(self.layers), path)
            self.choices[path] = candidates_for(
                layer, self.seen[path], formats, bits, self._renumber(path)
            )
        self.total = byte_count(model)
        self.fixed = self.total - sum(byte_count(layer) for layer in self.layers.values())
        # The candidates without those that turned out to be too slow.
        self.allowed = {path: list(candidates) for path, candidates in self.choices.items()}
        self.times: dict[tuple, float] = {}
        self.reason_kept = "no candidate is better"

    def _renumber(self, path: str) -> int | None:
        """Returns `renumber` if nothing but this embedding uses the model's ids, or `None`."""
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
        return self.renumber if self._ids_are_only_names(path, self.renumber) else None

    def _ids_are_only_names(self, path: str, first: int) -> bool:
        """Whether the outputs stay when the ids from `first` on and the table change alike."""
        rows = self.layers[path].input_dim
        order = np.concatenate([np.arange(first), np.arange(first, rows)[::-1]])  # its own inverse
        copy = rebuilt(self.model, {}, lambda m: m(self.sample))
        table = counterparts(self.model, copy, {path: self.layers[path]})[path]
        table.set_weights([weights[order] for weights in table.get_weights()])
        old = keras.tree.flatten(self.model(self.sample))
        new = keras.tree.flatten(copy(renumbered(self.sample, order)))
        return all(map(are_equal, old, new))

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
        with fitting_data():
            self.model(batches[0])
        _log.info("running the model on the data")
        copy = rebuilt(self.model, {}, lambda m: m(batches[0]))
        watched = counterparts(self.model, copy, self.layers)
        with fitting_data():
            seen, outputs = calibration.observe(copy, watched, batches, arrays)
        for path in [path for path, note in seen.items() if note.batch is None]:
            reason = "never called on the data"
            self.reasons[path] = (self.layers.pop(path), reason)
            del watched[path], seen[path]
        measure_sensitivity(copy, watched, batches[0], seen, outputs)
        measure_responses(copy, watched, batches, seen, outputs)
        return seen

    def within_tolerance(self, tolerance: float) -> dict[str, Candidate]:
        return {
            path: within_tolerance(candidates, tolerance, functools.partial(self._is_fast, path))
            for path, candidates in self.choices.items()
        }

    def for_target(self, target: float) -> dict[str, Candidate]:
        if target == 1:
            if self.bits is None:
                self.reason_kept = "no smaller model was asked for"
            return {path: self._unreplaced(path) for path in self.choices}
        choice = self._shared_out(target)
        if choice is None:
            self._refuse(target)
        return choice

    def _unreplaced(self, path: str) -> Candidate:
        """Returns the layer as it is; quantized with `bits`, if this makes it smaller."""
        dense = [
            c
            for c in self.choices[path]
            if c.format == "dense" and c.bits in (None, self.bits) and self._is_fast(path, c)
        ]
        return min(dense, key=lambda c: c.bytes)

    def _shared_out(self, target: float) -> dict[str, Candidate] | None:
        """Returns the choice for a target, or `None` if the target cannot be reached."""
        budget = int(self.total / target) - self.fixed
        sensitivity = {path: note.sensitivity for path, note in self.seen.items()}
        while True:
            choice = share_out(self.allowed, sensitivity, budget)
            if choice is None:
                return self._smallest(target)
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

    def _smallest(self, target: float) -> dict[str, Candidate] | None:
        """Returns the smallest choice if it reaches a target; `share_out` only has estimates."""
        choice = self.within_tolerance(math.inf)
        reached = byte_count(self.build(choice)) <= int(self.total / target)
        return choice if reached else None

    def _refuse(self, target: float) -> NoReturn:
        if not self.layers:
            reasons = sorted({reason for _, reason in self.reasons.values()})
            raise ValueError(
                "Expected a model with layers that can be replaced. "
                f"Received: target={target}, and {len(self.reasons)} dense, einsum and embedding "
                f"layers that are not ({'; '.join(reasons)})"
            )
        smallest = self.within_tolerance(math.inf)
        reached = self.total / byte_count(self.build(smallest))
        worst = max(smallest, key=lambda path: smallest[path].likely_error, default=None)
        cost = (
            f" At {reached:.2f} the error of the outputs of {worst} is "
            f"{100 * smallest[worst].likely_error:.0f} %."
            if worst
            else ""
        )
        fewer = {None: " Try 8 or 4 bits.", 8: " Try 4 bits.", 4: ""}
        raise ValueError(
            f"Expected a target of at most {math.floor(100 * reached) / 100}: {self.fixed:,} of "
            f"{self.total:,} bytes are in layers that are not replaced.{cost}{fewer[self.bits]} "
            f"Received: target={target}"
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
            after = -math.inf
            if choice is None:
                _log.info("%.3g times smaller: not possible", middle)
            else:
                after = measured(metric, self.build(choice))
                _log.info("%.3g times smaller: metric %.6g instead of %.6g", middle, after, before)
            if choice is not None and after >= before - max_drop:
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
            if candidate.bits is not None:
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
        return quantized_model(floating, layers, choice, self.sample)

    def id_orders(self, choice: Mapping[str, Candidate]) -> dict[str, np.ndarray]:
        """Returns the old id of each new id, for each embedding whose ids are renumbered."""
        return {
            path: order
            for path, candidate in choice.items()
            if (order := candidate.id_order()) is not None
        }

    def report(
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
                    candidate.bits or 32,
                    old.count_params(),
                    new.count_params(),
                    byte_count(old),
                    byte_count(new),
                    self._error(path, old, new, orders.get(path)) if changed else 0.0,
                    dense_flops(old),
                    candidate.flops,
                    self._time(path, self.choices[path][0]) if timed else None,
                    self._time(path, candidate) if timed else None,
                    "" if changed else self.reason_kept,
                    tuple((c.bytes, c.likely_error, c.format) for c in self.choices[path]),
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
            "Errors are relative errors of the outputs on the data, before activations."
            if self.sample is not None
            else "Errors are relative errors of tables, and of kernels on random inputs, because "
            "there are no data."
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
        seen = self.seen[path]
        return table_error(table, near, row_weights(old, seen))

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


def measured(metric: Callable[[keras.Model], float], model: keras.Model) -> float:
    """Returns the value of the metric."""
    value = float(metric(model))
    if not math.isfinite(value):
        raise ValueError(f"Expected a finite metric. Received: metric(model)={value}")
    return value


def _passes(layer: keras.layers.Layer, filters: Any) -> bool:
    """Whether `filters` selects a layer, as in `keras.Model.quantize`."""
    if filters is None:
        return True
    if callable(filters):
        return bool(filters(layer))
    patterns = [filters] if isinstance(filters, str) else filters
    return any(re.search(pattern, layer.name) for pattern in patterns)
