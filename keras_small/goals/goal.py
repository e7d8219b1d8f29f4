"""The base class of the goals of `compress`, and its result, a choice."""

import abc
import dataclasses
import math
import numbers
import reprlib
from typing import Any

import keras

from keras_small.asked.data import Data
from keras_small.building.assembly import Assembly
from keras_small.goals.counting import KeptPromise
from keras_small.goals.search import Search
from keras_small.planning.options import Options
from keras_small.planning.plan import Choice, Plan
from keras_small.planning.unreplaced import describe_unreplaced
from keras_small.survey.comparing import Metric
from keras_small.survey.survey import Survey


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The choice of a goal.

    Attributes:
        choice: The candidate of each layer.
        why_kept: Why layers stay that have smaller candidates.
        assembly: The finished model of the choice, if choosing has built it.
        notes: Remarks for the report, one sentence each.
        promise: The promise that the model keeps, if the goal is one.
    """

    choice: Choice
    why_kept: str
    assembly: Assembly | None = None
    notes: tuple[str, ...] = ()
    promise: KeptPromise | None = None


class Goal(abc.ABC):
    """The aim of a compression, which chooses among the candidates of a plan.

    A goal is a frozen dataclass that checks its arguments in `__post_init__`.

    Attributes:
        metric: A function such that `metric(model)` is a float, higher is better; `None` for none.

    Example:
        ```python
        import dataclasses

        import keras

        from keras_small import compress
        from keras_small.goals.goal import Chosen, Goal


        @dataclasses.dataclass(frozen=True)
        class Smallest(Goal):
            metric: None = None

            @property
            def argument(self):
                return "the smallest model"

            def choose(self, search):
                return Chosen(search.smallest(), "")

            def why_kept(self, options):
                return ""


        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        assert compress(model, Smallest(), verbose=0).report.ratio > 8
        ```
    """

    metric: Metric | None

    @property
    @abc.abstractmethod
    def argument(self) -> str:
        """The argument as errors show it, such as `factor=8`."""

    @property
    def is_asked(self) -> bool:
        """Whether a smaller model is asked for at all."""
        return True

    @property
    def planned_factor(self) -> float:
        """How many times smaller the model has to be; infinite if that is not known.

        If it is, formats beside integers are looked for only if they are needed.
        """
        return math.inf

    def check(self, options: Options, data: Data | None) -> None:
        """Checks the other arguments of `compress`.

        Raises:
            ValueError: If they contradict the goal.
        """
        if self.metric is not None and data is not None and data.kept_ids is not None:
            raise ValueError(
                "Expected kept_ids without a metric, which measures models of the original ids. "
                f"Received: kept_ids={data.kept_ids}, metric={self.metric}"
            )

    def prepare(self, survey: Survey) -> tuple[Survey, Any]:
        """Returns the survey to plan with, and what `choose` needs beside the plan.

        A goal that runs the original does so here, because a plan takes much longer than an error.
        """
        return survey, None

    @abc.abstractmethod
    def choose(self, search: Search) -> Chosen:
        """Chooses a candidate for each layer.

        Raises:
            ValueError: If the goal cannot be reached.
        """

    @abc.abstractmethod
    def why_kept(self, options: Options) -> str:
        """Returns why the choice keeps a layer that has smaller candidates."""


def choose(goal: Goal, search: Search) -> Chosen:
    """Lets a goal choose; keeps the model itself if the choice would make it larger.

    Raises:
        ValueError: If the goal cannot be reached.
    """
    plan = search.plan
    _check_replaceable(goal, plan)
    chosen = goal.choose(search)
    size = plan.size(chosen.choice)
    if chosen.assembly is not None or size <= plan.total:
        return chosen
    note = (
        f"The result is the model itself: a copy with other layers would have {size:,} bytes, more "
        f"than {plan.total:,}, because Keras loads a layer that several layers hold once for each "
        "of them."
    )
    return Chosen(
        choice=plan.unchanged(),
        why_kept="the model would become larger",
        assembly=search.builder.unchanged(),
        notes=(note,),
    )


def _check_replaceable(goal: Goal, plan: Plan) -> None:
    """Checks that there are layers to replace, if this is asked for."""
    asks_for_integers = plan.options.integers_of is not None
    if plan.layers or not (goal.is_asked or asks_for_integers):
        return
    argument = goal.argument if goal.is_asked else f"bits={plan.options.bits}"
    raise ValueError(
        "Expected a model with layers that can be replaced. Received: "
        f"{argument}, and {plan.inventory.model.name} with {describe_unreplaced(plan.inventory)}"
    )


def check_metric(metric: Any) -> None:
    """Checks that a metric is a function of a model, or `None`."""
    is_function = callable(metric) and not isinstance(metric, keras.metrics.Metric | type)
    if metric is not None and not is_function:
        raise ValueError(
            "Expected a function of a model, such as lambda model: model.evaluate(inputs, labels, "
            f"return_dict=True, verbose=0)['accuracy']. Received: metric={reprlib.repr(metric)}"
        )


def check_number(name: str, value: Any) -> None:
    """Checks that an argument of a goal is a real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"Expected a number. Received: {name}={reprlib.repr(value)}")
