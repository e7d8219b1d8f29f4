"""Goals: what a small model is for, one class a file, each of which knows how to choose."""

from typing import Any

from keras_small.goals.goal import Goal
from keras_small.goals.keeping import Keeping
from keras_small.goals.promise import Promise
from keras_small.goals.smaller import Smaller
from keras_small.goals.within import Within

__all__ = ["Goal", "Keeping", "Promise", "Smaller", "Within", "as_goal"]


def as_goal(goal: Any) -> Goal:
    """Returns what `compress` received as a goal: a number is the factor of `Smaller`.

    Example:
        >>> from keras_small.goals import as_goal
        >>> as_goal(8)
        Smaller(factor=8, metric=None)
    """
    if isinstance(goal, Goal):
        return goal
    return Smaller(1.0 if goal is None else goal)
