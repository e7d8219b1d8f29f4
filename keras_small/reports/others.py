"""Describes the weights of a model that are not replaced: where they are, and why."""

import collections
from collections.abc import Mapping

import numpy as np

from keras_small.formats.candidates import byte_count, item_size
from keras_small.planning.estimate import readable_size
from keras_small.planning.plan import Plan
from keras_small.reports.report import LayerReport


def rows_of_others(plan: Plan) -> list[LayerReport]:
    """Returns a row for each layer of a known kind that stays, and for each class of the others."""
    inventory = plan.inventory
    kept = {path: (inventory.places[path].layer, why) for path, why in inventory.reasons.items()}
    rows = [
        _row(path, type(layer).__name__, _count(layer.weights), byte_count(layer), reason)
        for path, (layer, reason) in kept.items()
        if layer.weights  # none yet if it was never called
    ]
    known = [*plan.layers.values(), *(layer for layer, _ in kept.values())]
    counted = {id(weight) for layer in known for weight in layer.weights}
    layers: dict[str, int] = collections.Counter()
    weights: dict[str, list] = collections.defaultdict(list)
    # The innermost layers first, because a layer has the weights of those inside, too.
    for layer in reversed(inventory.layers):
        own = [weight for weight in layer.weights if id(weight) not in counted]
        if own:
            counted |= {id(weight) for weight in own}
            layers[type(layer).__name__] += 1
            weights[type(layer).__name__] += own
    for name, own in weights.items():
        size = sum(_count([weight]) * item_size(weight.dtype) for weight in own)
        path = f"({layers[name]} x {name})"
        rows.append(_row(path, name, _count(own), size, "not supported"))
    return rows


def _count(weights: list) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights)


def _row(path: str, kind: str, count: int, size: int, reason: str) -> LayerReport:
    return LayerReport(
        path,
        kind,
        weights_before=count,
        weights_after=count,
        bytes_before=size,
        bytes_after=size,
        reason=reason,
    )


def describe_others(plan: Plan, reasons: Mapping[str, str] | None = None) -> str:
    """Returns a text about the weights that are not replaced, the most first.

    `reasons` tells by path why layers without a smaller candidate stay.
    """
    alone = [
        _row(path, "", _count(layer.weights), byte_count(layer), why)
        for path, why in (reasons or {}).items()
        for layer in [plan.layers[path]]
    ]
    rows = sorted([*rows_of_others(plan), *alone], key=lambda row: -row.bytes_before)
    texts = [
        f"{row.kind if row.path.startswith('(') else row.path}: "
        f"{readable_size(row.bytes_before)}, {row.reason}"
        for row in rows[:5]
    ]
    more = [f"{len(rows) - 5} more"] if len(rows) > 5 else []
    return "; ".join(texts + more) or "no weights"
