"""The search that goals share: one of a plan's candidates for each layer."""

import math
from collections.abc import Callable
from typing import Any

from keras_small.asked.progress import tell
from keras_small.building.builder import Builder
from keras_small.planning.budget import share_out, within_tolerance
from keras_small.planning.options import FLOATS
from keras_small.planning.plan import Choice

# Steps of the bisection for the smallest model within a limit.
_BISECTIONS = 7


class Search:
    """Ways to choose among the candidates of a plan.

    Args:
        builder: Builds the models of choices.
        prepared: What the goal has prepared beside the plan, or `None`.
    """

    def __init__(self, builder: Builder, prepared: Any = None) -> None:
        self.builder = builder
        self.prepared = prepared
        self.plan = builder.plan

    def factor(self, choice: Choice) -> float:
        """Returns how many times smaller the model with a choice is than the original."""
        return self.plan.total / max(1, self.plan.size(choice))

    def unchanged(self) -> Choice:
        """Returns the choice of all layers as they are."""
        return self.plan.unchanged()

    def smallest(self) -> Choice:
        """Returns the choice of the smallest candidates."""
        return self.within_tolerance(math.inf)

    def within_tolerance(self, tolerance: float) -> Choice:
        """Returns the choice of the smallest candidates whose errors are at most `tolerance`."""
        groups = self.plan.choices
        return {path: within_tolerance(group, tolerance) for path, group in groups.items()}

    def share_out(self, factor: float, unforeseen_bytes: int = 0) -> Choice | None:
        """Returns the choice of least error that is `factor` times smaller than the original.

        `share_out` of a budget goes step by step: among fewer candidates it may find a better
        choice. So each minimum width is tried.

        Args:
            factor: How many times smaller the model has to be.
            unforeseen_bytes: Bytes of the model beside those of the plan.

        Returns:
            The choice, or `None` if no choice is as small.
        """
        plan = self.plan
        budget = int(plan.total / factor) - plan.fixed_bytes - unforeseen_bytes
        sensitivity = {path: note.sensitivity for path, note in plan.statistics.items()}

        def error(choice: Choice) -> float:
            return sum((sensitivity[path] * c.cost) ** 2 for path, c in choice.items())

        choices = []
        for width in plan.options.widths:
            groups = {
                path: [c for c in group if width is None or (c.bits or FLOATS) >= width]
                for path, group in plan.choices.items()
            }
            choices.append(share_out(groups, sensitivity, budget))
        return min((choice for choice in choices if choice is not None), key=error, default=None)

    def smallest_accepted(
        self, accepts: Callable[[Choice], bool], largest_factor: float | None = None
    ) -> Choice:
        """Returns the smallest choice that is accepted, by bisection of the factor.

        Args:
            accepts: Function of a choice.
            largest_factor: The largest factor to try. Default: that of the smallest choice.
        """
        largest = self.factor(self.smallest())
        accepted = 1.0
        refused = min(largest, largest_factor or largest)
        best = self.unchanged()
        for step in range(_BISECTIONS):
            factor = refused if step == 0 else math.sqrt(accepted * refused)
            choice = self.share_out(factor)
            if choice is None:
                tell("no model %.3g times smaller is possible", factor)
            if choice is not None and accepts(choice):
                accepted = factor
                best = choice
                if step == 0:
                    break
            else:
                refused = factor
        return best
