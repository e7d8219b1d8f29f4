"""Which layers of a model can be replaced, and why the others stay."""

from typing import Any

from keras import ops

from keras_tnattn.compression.goals import Options
from keras_tnattn.compression.inventory import Inventory
from keras_tnattn.compression.kinds import kind_of, reason_against
from keras_tnattn.compression.readers import reasons_of_readers


def select_layers(original: Inventory, copy: Inventory, options: Options, example: Any) -> None:
    """Notes in the inventory of a copy which layers can be replaced, and why others stay.

    The layers of the copy are changed while it runs, unless no example of inputs is known.

    Raises:
        ValueError: If a layer that can be replaced has weights that are not finite.
    """
    reasons = {}
    for path, place in copy.places.items():
        if kind_of(place.layer) is None:
            continue
        copy.replaceable[path] = place
        reason = reason_against(place.layer)
        # By the names in the original; those that Keras makes up are others in a copy.
        if not options.selects(original.places.get(path, place).layer):
            reason = "not selected by `filters`"
        elif path in copy.shared:
            reason = "held by several layers, each of which loads its own copy"
        if reason is not None:
            reasons[path] = reason
    free = {path: layer for path, layer in copy.replaceable_layers.items() if path not in reasons}
    copy.keep(reasons | reasons_of_readers(copy, free, example))
    for path, layer in copy.replaceable_layers.items():
        for weight in layer.weights:
            if not bool(ops.all(ops.isfinite(weight))):
                raise ValueError(
                    "Expected finite weights. "
                    f"Received: infinite or NaN numbers in the {weight.name} of {path}"
                )
