"""The weights of a model that are not replaced: where they are, and why."""

import collections
import dataclasses
import math
from collections.abc import Mapping

import keras
import numpy as np

from keras_small.planning.estimate import readable_size
from keras_small.storage.sizes import byte_count, item_size
from keras_small.survey.inventory import Inventory

# Maximum entries of a description.
_DESCRIBED_ENTRIES = 5


@dataclasses.dataclass(frozen=True)
class Unreplaced:
    """A layer that stays, or all other weights of the layers of one class.

    Attributes:
        path: The path of the layer, or the number of layers and their class in parentheses.
        name: The name in errors: the path, or the class.
        kind: The class.
        weights: The number of weights.
        bytes: Bytes of the weights.
        reason: Why they stay.
    """

    path: str
    name: str
    kind: str
    weights: int
    bytes: int
    reason: str

    @classmethod
    def of_layer(cls, path: str, layer: keras.layers.Layer, reason: str) -> "Unreplaced":
        kind = type(layer).__name__
        return cls(path, path, kind, _count(layer.weights), byte_count(layer), reason)


def unreplaced_weights(inventory: Inventory) -> list[Unreplaced]:
    """Returns each layer of a known kind that stays, and the others together by their class."""
    kept = {path: (inventory.places[path].layer, why) for path, why in inventory.reasons.items()}
    found = [
        Unreplaced.of_layer(path, layer, reason)
        for path, (layer, reason) in kept.items()
        if layer.weights  # none yet if it was never called
    ]
    known = [*inventory.replaceable_layers.values(), *(layer for layer, _ in kept.values())]
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
    for kind, own in weights.items():
        path = f"({layers[kind]} x {kind})"
        size = sum(_count([weight]) * item_size(weight.dtype) for weight in own)
        found.append(Unreplaced(path, kind, kind, _count(own), size, "not supported"))
    return found


def _count(weights: list) -> int:
    return sum(int(np.prod(weight.shape)) for weight in weights)


def describe_unreplaced(inventory: Inventory, reasons: Mapping[str, str] | None = None) -> str:
    """Returns a text about the weights that are not replaced, the largest first.

    `reasons` tells by path why layers without a smaller candidate stay.
    """
    alone = [
        Unreplaced.of_layer(path, inventory.replaceable_layers[path], reason)
        for path, reason in (reasons or {}).items()
    ]
    found = sorted([*unreplaced_weights(inventory), *alone], key=lambda entry: -entry.bytes)
    texts = [
        f"{entry.name}: {readable_size(entry.bytes)}, {entry.reason}"
        for entry in found[:_DESCRIBED_ENTRIES]
    ]
    if len(found) > _DESCRIBED_ENTRIES:
        texts.append(f"{len(found) - _DESCRIBED_ENTRIES} more")
    return "; ".join(texts) or "no weights"


def check_reachable(inventory: Inventory, total: int, factor: float) -> None:
    """Checks that the layers that stay are smaller than a model may become.

    Args:
        inventory: The model, with the layers that can be replaced.
        total: The bytes of the original.
        factor: How many times smaller the model has to be.

    Raises:
        ValueError: If they are not.
    """
    replaced = sum(map(byte_count, inventory.replaceable_layers.values()))
    kept = inventory.bytes - replaced
    if not replaced or kept * factor <= total:
        return
    limit = math.floor(100 * total / kept) / 100
    expected = "a model that can become smaller"
    if limit > 1:
        expected = f"a factor of at most {limit}, if nothing remained of the other layers"
    why = bytes_that_stay(inventory, kept, total)
    raise ValueError(f"Expected {expected}: {why}. Received: factor={factor}")


def bytes_that_stay(
    inventory: Inventory, kept: int, total: int, reasons: Mapping[str, str] | None = None
) -> str:
    """Returns in words how much of a model is not replaced, and why.

    Args:
        inventory: The model, with the layers that can be replaced.
        kept: The bytes that are not replaced.
        total: The bytes of the original.
        reasons: As in `describe_unreplaced`.
    """
    size = inventory.bytes
    text = f"{kept:,} of {size:,} bytes are in layers that are not replaced"
    text += f" ({describe_unreplaced(inventory, reasons)})"
    if size > total:
        text += (
            f"; these are more than the {total:,} of the model, because Keras loads a layer that "
            "several hold, such as a TimeDistributed and the model, as a copy for each. Call it "
            "through one of them"
        )
    return text
