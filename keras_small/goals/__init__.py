"""The goals of `compress`, one class a file; each chooses among the candidates of a plan."""

from typing import Any

from keras_small.goals.goal import Goal
from keras_small.goals.keeping import Keeping
from keras_small.goals.promise import Promise
from keras_small.goals.smaller import Smaller
from keras_small.goals.within import Within

__all__ = ["Goal", "Keeping", "Promise", "Smaller", "Within", "as_goal"]


def as_goal(goal: Any) -> Goal:
    """Returns the goal that `compress` received; a number means `Smaller(number)`.

    Example:
        >>> from keras_small.goals import as_goal
        >>> as_goal(8)
        Smaller(factor=8, metric=None)
    """
    if isinstance(goal, Goal):
        return goal
    return Smaller(1.0 if goal is None else goal)
