"""Plans a compression: collects candidates for each layer that can be replaced."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import keras

from keras_small.asked.progress import is_told, note, tell, with_bar
from keras_small.formats import candidates_for
from keras_small.formats.candidates import Candidate
from keras_small.formats.runtime_tables import bits_for, fit_for
from keras_small.planning.estimate import describe_cost, multiplications
from keras_small.planning.options import FLOATS, Options
from keras_small.planning.table_costs import measure_tables
from keras_small.planning.unreplaced import Unreplaced, check_reachable, unreplaced_weights
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import Statistics
from keras_small.survey.inventory import Inventory
from keras_small.survey.kinds import is_table
from keras_small.survey.survey import Survey, layer_statistics
from keras_small.survey.watching import reason_to_keep

# If integers alone make a model at most this many times as large as it may be, other candidates are
# looked for in as few layers as possible.
_NEARLY_ENOUGH = 1.1
# b-bit integers with their scales are about 28 / b times smaller than floats.
_FLOAT_BITS = 28
# A layer hardly gets less than this part of its share of the bytes.
_LEAST_PART = 1 / 8

Choice = dict[str, Candidate]


@dataclasses.dataclass
class Plan:
    """The layers that can be replaced, by path, and their candidates.

    Attributes:
        survey: The model, its copy and the data.
        options: How each layer may be replaced.
        factor: How many times smaller the model is to become; infinite if that is not known.
        statistics: The observations of each layer on the data.
        choices: The candidates for each layer, the layer itself first.
        why_not_smaller: Why layers have no smaller candidate, by path.
    """

    survey: Survey
    options: Options
    factor: float
    statistics: Mapping[str, Statistics]
    choices: dict[str, list[Candidate]] = dataclasses.field(default_factory=dict)
    why_not_smaller: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def inventory(self) -> Inventory:
        """The copy of the model to compress, with the layers that can be replaced."""
        return self.survey.copy

    @functools.cached_property
    def total(self) -> int:
        """Bytes of all weights of the original."""
        return self.survey.original.bytes

    @property
    def layers(self) -> dict[str, keras.layers.Layer]:
        return self.inventory.replaceable_layers

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the weights that stay whatever is chosen."""
        return self.inventory.bytes - sum(map(byte_count, self.layers.values()))

    @property
    def unreplaced(self) -> list[Unreplaced]:
        """The weights that stay whatever is chosen, and why."""
        return unreplaced_weights(self.inventory)

    def size(self, choice: Mapping[str, Candidate]) -> int:
        """Returns the bytes of the model with a choice."""
        return self.fixed_bytes + sum(candidate.bytes for candidate in choice.values())

    def unchanged(self) -> Choice:
        """Returns the choice of all layers as they are."""
        return {path: group[0] for path, group in self.choices.items()}


def make_plan(survey: Survey, options: Options, factor: float = math.inf) -> Plan:
    """Watches layers on the data, and looks for candidates to replace them.

    Args:
        survey: The model and the data.
        options: How each layer may be replaced.
        factor: The minimum factor, if it is known: if integers alone reach it, there are no other
            candidates. Default: not known, so that all candidates are collected.

    Raises:
        ValueError: If the layers that stay are too large for the factor.
    """
    is_asked = factor > 1 or options.integers_of is not None
    integers_first = factor < math.inf and is_asked and options.minimum_bits is not None
    integers_suffice = integers_first and factor * options.sufficient_bits < _FLOAT_BITS
    if 1 < factor < math.inf and not options.coded:
        check_reachable(survey.copy, survey.original.bytes, factor)
    formats = options.format_names
    factored = bool(formats) and not (integers_suffice or options.coded)
    if is_told():
        tell(describe_cost(survey, factored, options.minimum_bits))
    plan = Plan(survey, options, factor, layer_statistics(survey))
    if integers_first:
        _collect_integers_first(plan)
    else:
        _collect(plan, list(plan.layers), formats)
    for path, group in plan.choices.items():
        if len(group) == 1:
            plan.why_not_smaller[path] = _why_not_smaller(plan, path)
    return plan


def _collect(plan: Plan, paths: Sequence[str], formats: Sequence[str]) -> None:
    """Collects the candidates for some layers."""
    runtime = plan.options.for_runtime
    bits = plan.options.widths
    layers = [plan.inventory.places[path].layer for path in paths]
    costs = [float(multiplications(layer, bool(formats), bits[-1])) for layer in layers]
    for path in with_bar(paths, costs):
        note("looking for candidates of %s", path)
        try:
            former = plan.choices.get(path, ())
            integers = [c for c in former if c.format == "dense" and not c.keeps_layer]
            found = candidates_of(plan, path, formats, bits, runtime, integers)
            layer = plan.inventory.places[path].layer
            if plan.options.coded and plan.survey.sample is not None and is_table(layer):
                found = measure_tables(
                    plan.inventory.model,
                    layer,
                    plan.survey.sample,
                    plan.statistics[path].sensitivity,
                    found,
                )
            plan.choices[path] = found
        except Exception as error:
            plan.inventory.keep({path: reason_to_keep(error)})
            plan.choices.pop(path, None)


def candidates_of(
    plan: Plan,
    path: str,
    formats: Sequence[str],
    widths: Sequence[int | None],
    runtime: str | None,
    integers: Sequence[Candidate] = (),
) -> list[Candidate]:
    """Returns the candidates for a layer, the layer itself first; see `Options.widths`.

    `integers` are those of the whole layer if they are known.
    """
    layer = plan.inventory.places[path].layer
    *of_factors, bits = dict.fromkeys(bits_for(runtime, layer, width) for width in widths)
    least = _LEAST_PART * byte_count(layer) / plan.factor
    statistics = plan.statistics[path]
    found = candidates_for(layer, statistics, formats, bits, of_factors, least, integers)
    return fit_for(runtime, layer, found)


def _why_not_smaller(plan: Plan, path: str) -> str:
    """Returns why a layer has no smaller candidate."""
    without_bits = plan.options.minimum_bits is None
    if without_bits and candidates_of(plan, path, (), (8,), None)[1:]:
        return "no format makes it smaller without bits"
    return "no format makes it smaller"


def _collect_integers_first(plan: Plan) -> None:
    """Collects candidates until the factor of the plan can be met, integers first."""
    budget = int(plan.total / plan.factor)
    sufficient = plan.options.sufficient_bits
    formats = plan.options.format_names
    tell("first each layer as integers")
    _collect(plan, list(plan.layers), ())

    def minimum_size() -> int:
        return plan.fixed_bytes + sum(
            min(c.bytes for c in group if (c.bits or FLOATS) >= sufficient)
            for group in plan.choices.values()
        )

    if minimum_size() <= budget:
        return
    tell("integers of %d bits miss the target: now other formats, too", sufficient)
    if minimum_size() > _NEARLY_ENOUGH * budget:
        _collect(plan, list(plan.layers), formats)
        return
    for path in sorted(plan.choices, key=lambda path: -plan.choices[path][0].bytes):
        if minimum_size() <= budget:
            return
        _collect(plan, [path], formats)
