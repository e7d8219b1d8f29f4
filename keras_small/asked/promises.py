"""Keeps a promise about answers: one half of the rows plans, the other is counted.

The candidates are put in order with the first half alone, the largest first, each smaller and with
no smaller change than the one before. They are counted on the second half in this order until the
first one fails; the last one that passed is returned, or the original. So a model that breaks the
promise is only returned if the first such model of a fixed order passed, which has a probability of
at most `1 - confidence`, however many candidates there are: fixed-sequence testing (Angelopoulos et
al., 2021, https://arxiv.org/abs/2110.01052, sec. 2.3), which needs no correction of the confidence.
The order lets the safest model go first, so that an early failure is improbable.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_small.asked.batches import number_of_inputs, number_of_rows, outputs_of
from keras_small.asked.counting import (
    CountedRows,
    FlipCount,
    MeanChange,
    Promise,
    Promising,
    halves,
)
from keras_small.asked.progress import tell
from keras_small.building.assembly import Assembly
from keras_small.planning.choosing import Choice, Chooser
from keras_small.survey.calibration import batches_of


class PromisedRows:
    """The rows that plan, and those that are held back.

    Args:
        goal: What is promised.
        data: Arrays, as for `compress`.
        model: The original model.
        batch_size: Rows per batch.

    Raises:
        ValueError: If there are too few rows, they do not fit the model, or it is no classifier.
    """

    def __init__(self, goal: Promising, data: Any, model: keras.Model, batch_size: int) -> None:
        _, inputs = batches_of(data, batch_size, number_of_inputs(model))
        goal.check_rows(number_of_rows(inputs))
        self.goal = goal
        self.planning_inputs, held_back = halves(inputs)
        self.planning, self.held_back = (
            CountedRows(model, half, batch_size, goal) for half in (self.planning_inputs, held_back)
        )

    def count(self, predict: Callable[[Any], Any]) -> FlipCount | MeanChange:
        """Returns the changes by a function on the rows that are held back."""
        return self.goal.count(self.held_back.total(predict), self.held_back.rows)

    def choose(
        self, chooser: Chooser, build: Callable[[Choice], Assembly], unchanged: Assembly
    ) -> tuple[Choice, Assembly, Promise, list[str]]:
        """Returns the smallest model that keeps the promise; see above."""

        def planned_change(choice: Choice) -> float:
            return self.planning.total(_predictor(build(choice)))

        choices = chooser.choices_by_change(self.goal, planned_change, self.planning.rows)
        best = {path: group[0] for path, group in chooser.plan.choices.items()}
        small, least, notes = unchanged, self.goal.count(0, self.held_back.rows), []
        for choice in choices:
            assembly = build(choice)
            count = self.count(_predictor(assembly))
            factor = chooser.plan.total / chooser.size(choice)
            tell("%.3g times smaller: %s", factor, count)
            if count.bound > self.goal.limit:
                notes.append(f"The next model, {factor:.3g} times smaller, was refused: {count}.")
                break
            best, small, least = choice, assembly, count
        if small is unchanged:
            rows = "held back" if choices else "to plan with"
            notes.append(
                "The result is the model itself: no smaller one changes so little on the rows "
                f"{rows}."
            )
        promise = Promise(self.goal.name, self.goal.limit, least, self.planning.rows)
        return best, small, promise, notes


def _predictor(assembly: Assembly) -> Callable[[Any], list]:
    return lambda inputs: outputs_of(assembly.small.model, inputs)
