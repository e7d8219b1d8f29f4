"""Which layers of a model can be replaced, and by which candidates."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression import calibration
from keras_tnattn.compression.batches import are_equal, outputs_of, renumbered
from keras_tnattn.compression.calibration import Data, Statistics
from keras_tnattn.compression.candidates import Candidate, byte_count
from keras_tnattn.compression.copying import copy_of
from keras_tnattn.compression.estimate import expected_seconds, readable, readable_size
from keras_tnattn.compression.formats import candidates_for
from keras_tnattn.compression.goals import Goal, Options, Smaller
from keras_tnattn.compression.inventory import Inventory, Place
from keras_tnattn.compression.kinds import is_plain_table, kind_of, reason_against
from keras_tnattn.compression.progress import tell
from keras_tnattn.compression.readers import reasons_of_readers
from keras_tnattn.compression.runtimes import bits_for, fit_for
from keras_tnattn.compression.sensitivity import measure_responses, measure_sensitivity

# If integers alone make a model at most this many times as large as it may be, other candidates are
# looked for in as few layers as possible.
_NEARLY = 1.1
# Integers of `bits`, with their scales, are about so many times smaller by their number of bits.
_FLOAT_BITS = 28


@dataclasses.dataclass
class Plan:
    """The layers that can be replaced, by path, and what there is to choose from.

    Attributes:
        inventory: A copy of the model to compress, whose layers are watched and then replaced.
        total: Bytes of all weights of the original.
        options: How each layer may be replaced.
        sample: A batch of inputs, or `None`.
        places: Where the layers are in the copy.
        reasons: The other layers of the known kinds, and why they are not replaced.
        statistics: What was observed of each layer.
        choices: The candidates for each layer, the layer itself first.
    """

    inventory: Inventory
    total: int
    options: Options
    sample: Any
    places: dict[str, Place]
    reasons: dict[str, tuple[keras.layers.Layer, str]]
    statistics: dict[str, Statistics] = dataclasses.field(default_factory=dict)
    choices: dict[str, list[Candidate]] = dataclasses.field(default_factory=dict)

    @property
    def layers(self) -> dict[str, keras.layers.Layer]:
        return {path: place.layer for path, place in self.places.items()}

    @property
    def fixed(self) -> int:
        """Bytes of the weights that stay whatever is chosen."""
        return byte_count(self.inventory.model) - sum(
            byte_count(layer) for layer in self.layers.values()
        )

    def leave_out(self, path: str, reason: str) -> None:
        """Keeps a layer as it is, for a reason."""
        self.reasons[path] = (self.places.pop(path).layer, reason)
        self.statistics.pop(path, None)
        self.choices.pop(path, None)


def made_plan(
    original: Inventory,
    inventory: Inventory,
    example: Any,
    data: Data | None,
    options: Options,
    goal: Goal,
) -> Plan:
    """Looks for layers and candidates.

    Args:
        original: The model to compress; it is only looked at.
        inventory: A copy of it, which may be changed.
        example: Inputs of the model, or `None` if they are not known.
        data: Inputs on which the layers are watched, or `None`.
        options: How each layer may be replaced.
        goal: What is asked for: a target that integers alone reach needs no other candidates.
    """
    plan = _plan_of_layers(original, inventory, None if data is None else data.batches[0], options)
    for path, reason in reasons_of_readers(inventory, plan.layers, example).items():
        plan.leave_out(path, reason)
    _check_finite(plan)
    _tell_cost(plan, data, options, goal)
    if data is None:
        plan.statistics = {path: Statistics() for path in plan.places}
    else:
        _observe(plan, data)
    for path in plan.places:
        plan.statistics[path].renumber = _renumber(plan, path)
        plan.statistics[path].fast = options.effort == "fast"
    if isinstance(goal, Smaller) and options.bits is not None:
        _look_at_integers_first(plan, int(plan.total / goal.factor))
    else:
        _look_at(plan, list(plan.places), options.formats)
    return plan


def _tell_cost(plan: Plan, data: Data | None, options: Options, goal: Goal) -> None:
    """Says how much there is to do, and about how long it takes."""
    run, batches = None, 0
    if data is not None:
        first = data.batches[0]
        run, batches = functools.partial(outputs_of, plan.inventory.model, first), len(data.batches)
    # Integers that reach a target need no other candidates.
    enough = (
        isinstance(goal, Smaller)
        and options.bits is not None
        and goal.factor * options.bits < _FLOAT_BITS
    )
    factored = bool(options.formats) and not enough
    seconds = expected_seconds(plan.layers, factored, run, batches, options.bits)
    size = readable_size(sum(byte_count(layer) for layer in plan.layers.values()))
    tell(
        "layers that can be replaced: %d, %s in total; expected time: about %s",
        len(plan.layers),
        size,
        readable(seconds),
    )


def _look_at(plan: Plan, paths: Sequence[str], formats: Sequence[str]) -> None:
    """Collects the candidates for some layers."""
    for number, path in enumerate(paths, 1):
        tell("layer %d of %d: %s", number, len(paths), path)
        options = plan.options
        try:
            plan.choices[path] = candidates_of(
                plan, path, formats, options.bits, options.for_runtime
            )
        except Exception as error:
            plan.leave_out(path, calibration.reason_to_keep(error))


def candidates_of(
    plan: Plan, path: str, formats: Sequence[str], bits: int | None, runtime: str | None
) -> list[Candidate]:
    """Returns the candidates for a layer, the layer itself first."""
    layer = plan.places[path].layer
    bits = bits_for(runtime, layer, bits)
    return fit_for(runtime, layer, candidates_for(layer, plan.statistics[path], formats, bits))


def _look_at_integers_first(plan: Plan, most: int) -> None:
    """Collects candidates until a number of bytes can be reached, those of integers first."""
    tell("integers of %d bits", plan.options.bits)
    _look_at(plan, list(plan.places), ())

    def least() -> int:
        return plan.fixed + sum(min(c.bytes for c in group) for group in plan.choices.values())

    if least() <= most:
        return
    by_size = sorted(plan.choices, key=lambda path: -plan.choices[path][0].bytes)
    if plan.options.effort == "full" and least() > _NEARLY * most:
        _look_at(plan, list(plan.places), plan.options.formats)
        return
    for path in by_size:
        if least() <= most:
            return
        _look_at(plan, [path], plan.options.formats)


def _plan_of_layers(
    original: Inventory, inventory: Inventory, sample: Any, options: Options
) -> Plan:
    plan = Plan(inventory, byte_count(original.model), options, sample, {}, {})
    for path, place in inventory.places.items():
        if kind_of(place.layer) is None:
            continue
        plan.places[path] = place
        reason = reason_against(place.layer)
        # By the names in the original; those that Keras makes up are others in a copy.
        if not options.selects(original.places.get(path, place).layer):
            reason = "not selected by `filters`"
        elif path in inventory.shared:
            reason = "held by several layers, each of which loads its own copy"
        if reason is not None:
            plan.leave_out(path, reason)
    return plan


def _check_finite(plan: Plan) -> None:
    for path, layer in plan.layers.items():
        for weight in layer.weights:
            if not bool(ops.all(ops.isfinite(weight))):
                raise ValueError(
                    "Expected finite weights. "
                    f"Received: infinite or NaN numbers in the {weight.name} of {path}"
                )


def _observe(plan: Plan, data: Data) -> None:
    tell("running the model on the data")
    model = plan.inventory.model
    plan.statistics, outputs, failures = calibration.observe(
        model, plan.layers, data.batches, data.arrays
    )
    uncalled = {p: "never called on the data" for p, x in plan.statistics.items() if x.call is None}
    for path, reason in (uncalled | failures).items():
        plan.leave_out(path, reason)
    failures = measure_sensitivity(model, plan.layers, data.batches[0], plan.statistics, outputs)
    for path, reason in failures.items():
        plan.leave_out(path, reason)
    measure_responses(model, plan.layers, data.batches, plan.statistics, outputs)


def _renumber(plan: Plan, path: str) -> int | None:
    """Returns `renumber` if nothing but this embedding uses the model's ids, or `None`."""
    renumber = plan.options.renumber
    inputs = keras.tree.flatten(plan.sample)
    integers = sum(np.asarray(x).dtype.kind in "iu" for x in inputs)
    readers = [p for p, note in plan.statistics.items() if note.takes_model_input]
    if renumber is None or readers != [path] or integers != 1:
        return None
    layer = plan.layers[path]
    if not is_plain_table(layer):
        return None
    if not int(layer.mask_zero) <= renumber < layer.input_dim:
        raise ValueError(
            f"Expected renumber to keep {'id 0, the padding, and ' if layer.mask_zero else ''}"
            f"fewer ids than the {layer.input_dim} of {path}. Received: renumber={renumber}"
        )
    return renumber if _ids_are_only_names(plan, path, renumber) else None


def _ids_are_only_names(plan: Plan, path: str, first: int) -> bool:
    """Whether the outputs stay when the ids from `first` on and the table change alike."""
    rows = plan.layers[path].input_dim
    order = np.concatenate([np.arange(first), np.arange(first, rows)[::-1]])  # its own inverse
    copy = copy_of(plan.inventory, plan.sample)
    table = copy.places[path].layer
    table.set_weights([weights[order] for weights in table.get_weights()])
    old = outputs_of(plan.inventory.model, plan.sample)
    new = outputs_of(copy.model, renumbered(plan.sample, order))
    return all(map(are_equal, old, new))
