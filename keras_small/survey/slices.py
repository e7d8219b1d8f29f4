"""How many rows a model takes at once, so that the outputs of its layers stay within a bound.

A functional model that is called step by step keeps the outputs of every layer until the call ends:
528 MB for MobileNetV2 and 32 pictures of 96 pixels. So no run has more rows than the bound allows.
"""

import math
from typing import Any

import keras

from keras_small.asked.batches import data_errors, outputs_of
from keras_small.asked.data import CalibrationData
from keras_small.survey.ids import naming_wrong_ids
from keras_small.survey.inventory import Inventory
from keras_small.survey.repeated_calls import COMPILED_RUNS
from keras_small.survey.watching import Call, watch_calls

# Maximum bytes of the outputs of all layers in one run.
_MAXIMUM_BYTES = 2**25
# A compiled run frees outputs once they are read: MobileNetV2 takes a sixth of the memory.
_COMPILED_FACTOR = 4
# More rows do not make a run faster.
_MAXIMUM_ROWS = 256


def cut_to_memory(data: CalibrationData, inventory: Inventory) -> None:
    """Cuts data into batches that a model takes at once."""
    fixed = fixed_rows(inventory.model)
    if fixed is not None:
        data.cut_whole(fixed)
        return
    size = _bytes_of_row(inventory, data.first_rows(1))
    rows = _rows_within(_MAXIMUM_BYTES, size)
    compiled = rows
    if keras.backend.backend() != "torch":
        compiled = _rows_within(_COMPILED_FACTOR * _MAXIMUM_BYTES, size)
        # Fewer runs are not compiled.
        compiled = min(compiled, data.rows // COMPILED_RUNS)
    data.cut(rows, max(rows, compiled))


def rows_at_once(inventory: Inventory, row: Any) -> int:
    """Returns the maximum rows of a run that keeps the outputs of all layers.

    Args:
        inventory: The model.
        row: Inputs of one row.

    Raises:
        ValueError: If they do not fit the model.
    """
    fixed = fixed_rows(inventory.model)
    if fixed is not None:
        return fixed
    return _rows_within(_MAXIMUM_BYTES, _bytes_of_row(inventory, row))


def _rows_within(maximum_bytes: int, bytes_of_row: int) -> int:
    return max(1, min(_MAXIMUM_ROWS, maximum_bytes // max(bytes_of_row, 1)))


def _bytes_of_row(inventory: Inventory, row: Any) -> int:
    with data_errors():
        return naming_wrong_ids(inventory.model, lambda: _bytes_of_outputs(inventory, row))


def fixed_rows(model: keras.Model) -> int | None:
    """Returns the number of rows that each batch of a model must have, or `None` if any will do."""
    inputs = getattr(model, "inputs", None) or []
    return next((x.shape[0] for x in inputs if x.shape and x.shape[0] is not None), None)


def _bytes_of_outputs(inventory: Inventory, inputs: Any) -> int:
    """Returns the bytes of the outputs of all layers in a run."""
    total = 0

    def watch(_path: str, _call: Call, outputs: Any) -> Any:
        nonlocal total
        for x in keras.tree.flatten(outputs):
            if hasattr(x, "shape") and None not in x.shape:
                itemsize = 8 if "64" in str(x.dtype) else 4
                total += itemsize * math.prod(x.shape)
        return outputs

    layers = {path: place.layer for path, place in inventory.places.items()}
    with watch_calls(layers, watch):
        outputs_of(inventory.model, inputs)
    return total
