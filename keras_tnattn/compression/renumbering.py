"""Whether the ids of a model are only names, so that its embedding may be sorted."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_tnattn.compression.batches import are_equal, outputs_of, renumber_ids
from keras_tnattn.compression.calibration import Statistics
from keras_tnattn.compression.copying import copy_of
from keras_tnattn.compression.inventory import Inventory
from keras_tnattn.compression.kinds import is_plain_table


def note_renumbering(
    inventory: Inventory, statistics: Mapping[str, Statistics], sample: Any, first: int
) -> None:
    """Notes in the statistics of an embedding if nothing else uses the model's ids.

    Raises:
        ValueError: If the `first` ids cannot stay.
    """
    readers = [path for path, note in statistics.items() if note.takes_model_input]
    integers = sum(np.asarray(x).dtype.kind in "iu" for x in keras.tree.flatten(sample))
    if len(readers) != 1 or integers != 1 or readers[0] not in inventory.replaceable:
        return
    (path,) = readers
    layer = inventory.places[path].layer
    if not is_plain_table(layer):
        return
    if not int(layer.mask_zero) <= first < layer.input_dim:
        raise ValueError(
            f"Expected renumber to keep {'id 0, the padding, and ' if layer.mask_zero else ''}"
            f"fewer ids than the {layer.input_dim} of {path}. Received: renumber={first}"
        )
    # The outputs must stay when the ids from `first` on and the table change alike.
    order = np.arange(layer.input_dim)
    order[first:] = order[first:][::-1]  # its own inverse
    copy = copy_of(inventory, sample)
    table = copy.places[path].layer
    table.set_weights([weights[order] for weights in table.get_weights()])
    old = outputs_of(inventory.model, sample)
    new = outputs_of(copy.model, renumber_ids(sample, order))
    if all(map(are_equal, old, new)):
        statistics[path].renumber = first
