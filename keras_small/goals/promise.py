"""The smallest model that keeps a promise about answers: half of the rows plan, others are counted.

The candidates are put in order with the first half alone, the largest first, each smaller and with
no smaller change than the one before. They are counted on the second half in this order until the
first one fails; the last one that passed is returned, or the original. So a model that breaks the
promise is only returned if the first such model of a fixed order passed, which has a probability of
at most `1 - confidence`, however many candidates there are: fixed-sequence testing (Angelopoulos et
al., 2021, https://arxiv.org/abs/2110.01052, sec. 2.3), which needs no correction of the confidence.
The order lets the safest model go first, so that an early failure is improbable.
"""

import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from keras_small.asked.data import CalibrationData, Data, are_arrays, number_of_rows
from keras_small.asked.progress import tell
from keras_small.building.assembly import Assembly
from keras_small.goals.counting import (
    Change,
    Changes,
    Counted,
    CountedRows,
    FlipCount,
    Flips,
    KeptPromise,
    MeanChange,
    halves,
)
from keras_small.goals.goal import Chosen, Goal, check_metric, check_number
from keras_small.goals.search import Search
from keras_small.planning.options import Options
from keras_small.planning.plan import Choice
from keras_small.survey.comparing import Metric
from keras_small.survey.running import outputs_of, outputs_on_data
from keras_small.survey.survey import Survey


@dataclasses.dataclass(frozen=True)
class Promise(Goal):
    """The smallest model that keeps a promise about its answers to inputs like the data.

    If the rows of `data`, which are arrays, are independent draws, then with probability at least
    `confidence` over these draws the model keeps the limit for all such inputs. It is the original
    if no smaller one passes. One half of the rows plans; the other, drawn at random, is counted: of
    models in an order that was fixed before, from the safest to ever smaller ones, up to the first
    whose bound exceeds the limit. This takes `2 ln(1 - confidence) / ln(1 - limit)` rows or more;
    the more rows, the smaller the model.

    Args:
        max_flips: The maximum share, in (0, 1), of inputs that get another top class than by the
            original, bounded by Clopper and Pearson (one-sided). The top class is the place of the
            largest number on the last axis; of a single probability, whether it is above 0.5. A row
            counts if it differs at any position of any output.
        max_change: The maximum mean, in (0, 1), of `change`, for models of numbers, too. Its bound
            is that of Hoeffding and Bentkus, which holds for any distribution. Pass exactly one of
            `max_flips` and `max_change`.
        change: A function such that `change(before, after)`, of a batch of the original's outputs
            and the small model's, lists of arrays, has a number in [0, 1] for each row. Default:
            the relative change of the row's outputs, `min(1, |after - before| / |before|)`.
        confidence: The confidence, in (0, 1). Defaults to 0.95.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after. Default: none.

    Raises:
        ValueError: If not exactly one limit is given, a number is not in (0, 1), or `change` is
            given with `max_flips` or is no function.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import Promise, compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, "softmax")])
        >>> inputs = np.random.default_rng(0).normal(size=(400, 64)).astype("float32")
        >>> report = compress(model, Promise(max_flips=0.1), data=inputs, verbose=0).report
        >>> report.promise.count.bound <= 0.1
        True
    """

    max_flips: float | None = None
    max_change: float | None = None
    change: Change | None = None
    confidence: float = 0.95
    metric: Metric | None = None

    def __post_init__(self) -> None:
        limits = {"max_flips": self.max_flips, "max_change": self.max_change}
        given = {name: value for name, value in limits.items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                "Expected either max_flips or max_change. Received: "
                f"max_flips={self.max_flips}, max_change={self.max_change}"
            )
        for name, value in (given | {"confidence": self.confidence}).items():
            check_number(name, value)
            if not 0 < value < 1:
                raise ValueError(
                    f"Expected a share in (0, 1). Received: {name}={value}{_way_out(value)}"
                )
        if self.change is not None and self.max_change is None:
            raise ValueError(f"Expected change with max_change. Received: change={self.change}")
        if self.change is not None and not callable(self.change):
            raise ValueError(f"Expected a function. Received: change={reprlib.repr(self.change)}")
        check_metric(self.metric)

    @property
    def limit(self) -> float:
        """The maximum mean change."""
        return cast(float, self.max_change if self.max_flips is None else self.max_flips)

    @property
    def counted(self) -> Counted:
        """The measure of the change of a row."""
        return Changes(self.change) if self.max_flips is None else Flips()

    @property
    def argument(self) -> str:
        return f"{self.counted.name}={self.limit}"

    @property
    def minimum_rows(self) -> int:
        """Minimum rows to count, if none of them changes."""
        return math.ceil(math.log1p(-self.confidence) / math.log1p(-self.limit))

    def check(self, options: Options, data: Data | None) -> None:
        if data is None:
            raise ValueError(
                "Expected data together with a promise, which counts answers to their rows. "
                f"Received: {self.argument}, data=None. Pass rows that the model was not trained on"
            )
        inputs = data.inputs
        if not are_arrays(inputs):
            raise ValueError(
                "Expected data as arrays together with a promise, because some of their rows are "
                f"held back. Received: {self.argument}, data={type(inputs).__name__}"
            )
        if data.kept_ids is not None:
            raise ValueError(
                "Expected kept_ids without a promise, which compares models of the original ids. "
                f"Received: kept_ids={data.kept_ids}, {self.argument}"
            )
        # The survey says what is wrong with a list or a tuple that does not fit the model.
        if not isinstance(inputs, list | tuple):
            _check_rows(self, number_of_rows(inputs))

    def prepare(self, survey: Survey) -> tuple[Survey, "PromisedRows"]:
        data = cast(CalibrationData, survey.data)
        _check_rows(self, number_of_rows(data.arrays))
        planning, held_back = halves(data.arrays)
        survey = survey.with_data(data.with_arrays(planning))
        return survey, PromisedRows(self, survey, held_back)

    def choose(self, search: Search) -> Chosen:
        rows: PromisedRows = search.prepared
        plan = search.plan
        # A metric is only reported.
        builder = search.builder.without_metric()

        def planned_change(choice: Choice) -> float:
            return rows.planning.total(_predictor(builder.finished(choice)))

        choices = self.choices_by_change(search, planned_change, rows.planning.rows)
        best = search.unchanged()
        assembly = unchanged = builder.unchanged()
        count = rows.bounded(0)
        notes = []
        for choice in choices:
            smaller = builder.finished(choice)
            new_count = rows.count(_predictor(smaller))
            factor = search.factor(choice)
            tell("tried a model %.3g times smaller: %s", factor, new_count)
            if new_count.bound > self.limit:
                refused = f"The next model, {factor:.3g} times smaller, was refused: {new_count}."
                notes.append(refused)
                break
            best = choice
            assembly = smaller
            count = new_count
        if assembly is unchanged:
            which = "held back" if choices else "to plan with"
            notes.append(
                "The result is the model itself: no smaller one changes so little on the rows "
                f"{which}."
            )
        promise = KeptPromise(self.counted.name, self.limit, count, rows.planning.rows)
        return Chosen(best, self.why_kept(plan.options), assembly, tuple(notes), promise)

    def choices_by_change(
        self, search: Search, total_of: Callable[[Choice], float], rows: int
    ) -> list[Choice]:
        """Returns choices to count on other rows: each is smaller, and changes no less.

        Those that change more than the limit on the rows are left out.

        Args:
            search: Looks for the smallest model whose bound would be small enough.
            total_of: Function from a choice to the sum of changes of the rows to plan with.
            rows: The number of these rows.
        """
        tried: list[tuple[int, float, Choice]] = []

        def accepts(choice: Choice) -> bool:
            total = total_of(choice)
            described = self.counted.describe(total, rows)
            tell("tried a model %.3g times smaller: %s", search.factor(choice), described)
            tried.append((search.plan.size(choice), total, choice))
            return self.counted.count(total, rows, self.confidence).bound <= self.limit

        search.smallest_accepted(accepts)
        choices: list[Choice] = []
        limit = self.limit * rows
        for _, total, choice in sorted(tried, key=lambda entry: entry[:2]):
            if total <= limit:
                choices.insert(0, choice)
                limit = total
        return choices

    def why_kept(self, options: Options) -> str:
        return f"the smallest model within {self.counted.name} keeps it"


class PromisedRows:
    """The rows that plan, and those that are held back.

    Args:
        goal: The promise.
        survey: The original model, and the rows that plan.
        held_back: Arrays of the others.

    Raises:
        ValueError: If they do not fit the model, or it is no classifier.
    """

    def __init__(self, goal: Promise, survey: Survey, held_back: Any) -> None:
        self.goal = goal
        predict = functools.partial(outputs_on_data, survey.original.model)
        data = cast(CalibrationData, survey.data)
        self.planning = CountedRows(predict, data.arrays, data.rows_at_once, goal.counted)
        self.held_back = CountedRows(predict, held_back, data.rows_at_once, goal.counted)

    @property
    def limit(self) -> float:
        return self.goal.limit

    def count(self, predict: Callable[[Any], Sequence[Any]]) -> FlipCount | MeanChange:
        """Returns the changes by a function on the rows that are held back."""
        return self.bounded(self.held_back.total(predict))

    def bounded(self, total: float) -> FlipCount | MeanChange:
        """Returns a sum of changes of the rows that are held back, with its bound."""
        return self.goal.counted.count(total, self.held_back.rows, self.goal.confidence)


def _way_out(value: float) -> str:
    """Says what was probably meant by a share that is too large, as the end of an error."""
    return f". Of percent pass the hundredth part, {value / 100:g}" if 1 <= value < 100 else ""


def _check_rows(goal: Promise, rows: int) -> None:
    """Checks that a half of the rows can keep the promise."""
    minimum = goal.minimum_rows
    if rows < 2 * minimum:
        raise ValueError(
            f"Expected at least {2 * minimum:,} rows of data: {minimum:,} to count, of which none "
            f"changes, for {goal.argument} with confidence={goal.confidence}, and as many to plan "
            f"with. Received: {rows:,} rows"
        )


def _predictor(assembly: Assembly) -> Callable[[Any], list]:
    return functools.partial(outputs_of, assembly.small.model)
