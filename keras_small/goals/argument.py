"""The argument `goal` of `compress`: a goal, or a number, which means `Smaller`."""

import numbers
import reprlib
from collections.abc import Iterable
from typing import Any

from keras_small.asked.data import Data
from keras_small.goals.goal import Goal
from keras_small.goals.smaller import Smaller


def as_goal(goal: Any) -> Goal:
    """Returns the goal that `compress` received; a number means `Smaller(number)`.

    Raises:
        ValueError: If it is neither, with what was probably meant.

    Example:
        >>> from keras_small.goals.argument import as_goal
        >>> as_goal(8)
        Smaller(factor=8, metric=None)
    """
    if isinstance(goal, Goal):
        return goal
    if goal is None:
        return Smaller(1.0)
    is_number = isinstance(goal, numbers.Real) and not isinstance(goal, bool)
    if not is_number:
        raise ValueError(
            "Expected a factor, such as 8, or one of Smaller(factor), Within(tolerance), "
            "Keeping(metric, max_drop) and Promise(max_flips). Received: "
            f"goal={reprlib.repr(goal)}{_way_out(goal)}"
        )
    return Smaller(goal)


def _way_out(goal: Any) -> str:
    """Says what was probably meant by something that is no goal, as the end of an error."""
    if isinstance(goal, type):
        is_goal = issubclass(goal, Goal)
        return f", a class: pass {goal.__name__}(...), an instance" if is_goal else ", a class"
    if isinstance(goal, str):
        try:
            return f", a text: pass the number {float(goal):g}"
        except ValueError:
            return ", a text"
    holds_inputs = isinstance(goal, Iterable | Data) or hasattr(goal, "shape")
    return ". Inputs are the argument data: compress(model, 8, data=inputs)" * holds_inputs
