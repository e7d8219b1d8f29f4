"""What there is to choose from for each layer that can be replaced."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.asked.batches import are_equal, outputs_of, renumber_ids
from keras_small.asked.goals import Goal, Options, Smaller
from keras_small.asked.progress import is_told, tell
from keras_small.formats import candidates_for
from keras_small.formats.candidates import Candidate, byte_count
from keras_small.formats.runtime_tables import bits_for, fit_for
from keras_small.planning.estimate import describe_cost
from keras_small.survey.calibration import Data, Statistics, observe, reason_to_keep
from keras_small.survey.copying import copy_of
from keras_small.survey.inventory import Inventory
from keras_small.survey.kinds import is_plain_table, is_table
from keras_small.survey.sensitivity import (
    measure_responses,
    measure_sensitivity,
    measure_tables,
)

# If integers alone make a model at most this many times as large as it may be, other candidates are
# looked for in as few layers as possible.
_NEARLY = 1.1
# Integers of `bits`, with their scales, are about so many times smaller by their number of bits.
_FLOAT_BITS = 28


@dataclasses.dataclass
class Plan:
    """The layers that can be replaced, by path, and what there is to choose from.

    Attributes:
        inventory: A copy of the model to compress, with the layers that can be replaced.
        total: Bytes of all weights of the original.
        options: How each layer may be replaced.
        sample: A batch of inputs, or `None`.
        statistics: What was observed of each layer.
        choices: The candidates for each layer, the layer itself first.
        unforeseen_bytes: How many more bytes than estimated a coded file took that was measured.
    """

    inventory: Inventory
    total: int
    options: Options
    sample: Any
    statistics: Mapping[str, Statistics] = dataclasses.field(default_factory=dict)
    choices: dict[str, list[Candidate]] = dataclasses.field(default_factory=dict)
    unforeseen_bytes: int = 0

    @property
    def layers(self) -> dict[str, keras.layers.Layer]:
        return self.inventory.replaceable_layers

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the weights that stay whatever is chosen."""
        rest = byte_count(self.inventory.model) - sum(map(byte_count, self.layers.values()))
        return rest + self.unforeseen_bytes


def make_plan(
    inventory: Inventory, total: int, data: Data | None, options: Options, goal: Goal
) -> Plan:
    """Watches layers on the data, and looks for candidates to replace them.

    A target that integers alone reach needs no other candidates.
    """
    target = goal.factor if isinstance(goal, Smaller) else math.inf
    is_asked = target > 1 or options.wants_integers
    # Integers that reach a target need no other candidates.
    integers_first = target < math.inf and is_asked and options.fewest_bits is not None
    integers_suffice = integers_first and target * options.enough_bits < _FLOAT_BITS
    factored = bool(options.formats) and not (integers_suffice or options.is_coded)
    if is_told():
        tell(describe_cost(inventory, factored, data, options.fewest_bits))
    plan = Plan(inventory, total, options, None if data is None else data.batches[0])
    plan.statistics = _statistics(inventory, data, options)
    if integers_first:
        _look_at_integers_first(plan, int(total / target))
    else:
        _look_at(plan, list(plan.layers), options.formats)
    return plan


def _statistics(inventory: Inventory, data: Data | None, options: Options) -> dict[str, Statistics]:
    """Returns what there is to know of the layers, and keeps those that cannot be watched."""
    layers = inventory.replaceable_layers
    if data is None:
        return {path: Statistics(fast=options.effort == "fast") for path in layers}
    tell("running the model on the data")
    statistics, outputs = observe(inventory.model, layers, data.batches, data.arrays)
    watched = {path: layer for path, layer in layers.items() if not statistics[path].failure}
    measure_sensitivity(inventory.model, watched, data.batches, statistics, outputs)
    measure_responses(inventory.model, watched, data.batches, statistics, outputs)
    inventory.keep({path: note.failure for path, note in statistics.items() if note.failure})
    for note in statistics.values():
        note.fast = options.effort == "fast"
    if options.renumber is not None:
        _note_renumbering(inventory, statistics, data.batches[0], options.renumber)
    return statistics


def _look_at(plan: Plan, paths: Sequence[str], formats: Sequence[str]) -> None:
    """Collects the candidates for some layers."""
    runtime, bits = plan.options.for_runtime, plan.options.widths
    for number, path in enumerate(paths, 1):
        tell("layer %d of %d: %s", number, len(paths), path)
        try:
            found = candidates_of(plan, path, formats, bits, runtime)
            layer = plan.inventory.places[path].layer
            if plan.options.is_coded and plan.sample is not None and is_table(layer):
                model, sensitivity = plan.inventory.model, plan.statistics[path].sensitivity
                found = measure_tables(model, layer, plan.sample, sensitivity, found)
            plan.choices[path] = found
        except Exception as error:
            plan.inventory.keep({path: reason_to_keep(error)})
            plan.choices.pop(path, None)


def candidates_of(
    plan: Plan, path: str, formats: Sequence[str], widths: Sequence[int | None], runtime: str | None
) -> list[Candidate]:
    """Returns the candidates for a layer, the layer itself first; see `Options.widths`."""
    layer = plan.inventory.places[path].layer
    *of_factors, bits = dict.fromkeys(bits_for(runtime, layer, width) for width in widths)
    found = candidates_for(layer, plan.statistics[path], formats, bits, of_factors)
    return fit_for(runtime, layer, found)


def _look_at_integers_first(plan: Plan, most: int) -> None:
    """Collects candidates until a number of bytes can be reached, those of integers first."""
    enough = plan.options.enough_bits
    tell("first each layer as integers")
    _look_at(plan, list(plan.layers), ())

    def least() -> int:
        return plan.fixed_bytes + sum(
            min(c.bytes for c in group if (c.bits or 32) >= enough)
            for group in plan.choices.values()
        )

    if least() <= most:
        return
    tell("integers of %d bits miss the target: now other formats, too", enough)
    by_size = sorted(plan.choices, key=lambda path: -plan.choices[path][0].bytes)
    if plan.options.effort == "full" and least() > _NEARLY * most:
        _look_at(plan, list(plan.layers), plan.options.formats)
        return
    for path in by_size:
        if least() <= most:
            return
        _look_at(plan, [path], plan.options.formats)


def _note_renumbering(
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
