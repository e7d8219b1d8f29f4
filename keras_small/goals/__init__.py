"""Goals: what a small model is for, one class a file, each of which knows how to choose."""

from typing import Any

from keras_small.goals.goal import Chosen, Goal, choose
from keras_small.goals.keeping import Keeping
from keras_small.goals.promise import Promise
from keras_small.goals.search import Search
from keras_small.goals.smaller import Smaller
from keras_small.goals.within import Within

__all__ = [
    "Chosen",
    "Goal",
    "Keeping",
    "Promise",
    "Search",
    "Smaller",
    "Within",
    "as_goal",
    "choose",
]


def as_goal(goal: Any) -> Goal:
    """Returns what `compress` received as a goal: a number asks for a model so much smaller."""
    if isinstance(goal, Goal):
        return goal
    return Smaller(1.0 if goal is None else goal)
