"""Builds the small models of a plan: drafts and finished ones to try, and the last one."""

import dataclasses
from collections.abc import Iterator

from keras_small.asked.progress import with_bar
from keras_small.asked.renumbering import Renumbering
from keras_small.building.assembly import (
    Assembly,
    Made,
    assemble,
    replacement_of,
    shorten_vectors,
)
from keras_small.building.biases import BiasCorrection
from keras_small.planning.estimate import multiplications
from keras_small.planning.plan import Choice, Plan
from keras_small.survey.comparing import Comparison
from keras_small.survey.kinds import is_table


@dataclasses.dataclass(frozen=True)
class Builder:
    """Builds small models from the choices of one plan.

    Attributes:
        plan: The plan.
        comparison: Decides whether corrected biases are better.
    """

    plan: Plan
    comparison: Comparison

    def without_metric(self) -> "Builder":
        """Returns a builder that heeds the outputs alone."""
        return dataclasses.replace(self, comparison=self.comparison.without_metric())

    def unchanged(self) -> Assembly:
        """Returns the original in place of a small model."""
        original = self.comparison.original
        return Assembly(original, original, {}, self.plan.survey.sample)

    def replacements(self, choice: Choice) -> dict[str, Made]:
        """Returns the replacements of the layers that the last choice does not keep, by path.

        The second moment of a kernel is freed once no replaced layer needs it, unless a layer that
        is kept has it, too. Tables are made last.
        """
        made_layers = {}
        for path, made in self._made(choice):
            made_layers[path] = made
            if not is_table(self.plan.layers[path]):
                self.plan.statistics[path].second_moment = None
        return made_layers

    def _made(self, choice: Choice) -> Iterator[tuple[str, Made]]:
        """Yields the path and the replacement of each layer that a choice does not keep."""
        layers = self.plan.layers
        changed = [path for path, candidate in choice.items() if not candidate.keeps_layer]
        changed.sort(key=lambda path: is_table(layers[path]))
        costs = [float(multiplications(layers[path], False)) for path in changed]
        for path in with_bar(changed, costs):
            yield path, replacement_of(layers[path], choice[path])

    def draft(self, choice: Choice) -> Assembly:
        """Returns the model of a choice without corrected biases."""
        return assemble(self.plan, choice, dict(self._made(choice)))

    def finished(self, choice: Choice) -> Assembly:
        """Returns the finished model of a choice, with which the plan can be used again."""
        made_layers = dict(self._made(choice))
        assembly = self._corrected(choice, made_layers, in_place=False)
        if self.plan.options.coded:
            shorten_vectors(assembly.small, made_layers, self.plan.options.selects)
        return assembly

    def finish(self, choice: Choice, made_layers: dict[str, Made]) -> Assembly:
        """Returns the finished model of the last choice, for which the plan is used up.

        In a model that a metric has accepted vectors stay as long as they were.
        """
        self._free_plan()
        assembly = self._corrected(choice, made_layers, in_place=True)
        if self.plan.options.coded and not self.comparison.has_metric:
            shorten_vectors(assembly.small, made_layers, self.plan.options.selects)
        return assembly

    def _free_plan(self) -> None:
        """Frees what only candidates and a report need, before models are copied."""
        self.plan.choices = {}
        for note in self.plan.statistics.values():
            note.call = note.factors = None

    def _corrected(self, choice: Choice, made_layers: dict[str, Made], in_place: bool) -> Assembly:
        correction = BiasCorrection(self.plan, made_layers, self.comparison.data)
        assembly = assemble(self.plan, choice, made_layers, in_place)
        error = correction.apply(self.comparison, assembly, renumbering_of(choice))
        # How it is compiled takes bytes of a file.
        self.comparison.compile(assembly.small.model)
        return dataclasses.replace(assembly, error=error)


def renumbering_of(choice: Choice) -> Renumbering:
    """Returns the new ids of the embedding that a choice renumbers, if there is one."""
    for path, candidate in choice.items():
        order = candidate.id_order()
        if order is not None:
            return Renumbering(path, order)
    return Renumbering()
