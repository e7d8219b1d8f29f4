"""The smallest layers within a tolerance."""

import dataclasses
import math

from keras_small.goals.goal import Chosen, Goal, check_metric, check_number
from keras_small.goals.search import Search
from keras_small.planning.options import Options
from keras_small.survey.comparing import Metric


@dataclasses.dataclass(frozen=True)
class Within(Goal):
    """The smallest layers whose estimated errors are within a tolerance.

    Args:
        tolerance: The maximum relative error of the outputs of each layer, before its activation,
            as estimated before the layers are built. The report has the measured errors: those of
            tensor trains are smaller, because these are fitted, and those of integers can be a
            little larger. Below 1: outputs of 0 have the error 1.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after. Default: none.

    Raises:
        ValueError: If the tolerance is no number in [0, 1), or the metric is no function.

    Example:
        >>> import keras
        >>> from keras_small import Within, compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> report = compress(model, Within(0.02), verbose=0).report
        >>> report.layers[0].error < 0.03
        True
    """

    tolerance: float
    metric: Metric | None = None

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance)
        if not 0 <= self.tolerance < 1:
            way_out = ""
            if 1 < self.tolerance < math.inf:
                way_out = (
                    f". For a model that is {self.tolerance:g} times smaller, pass "
                    f"Smaller({self.tolerance:g})"
                )
            raise ValueError(
                "Expected a relative error in [0, 1), such as 0.01. "
                f"Received: tolerance={self.tolerance}{way_out}"
            )
        check_metric(self.metric)

    @property
    def argument(self) -> str:
        return f"tolerance={self.tolerance}"

    def choose(self, search: Search) -> Chosen:
        choice = search.within_tolerance(self.tolerance)
        return Chosen(choice, self.why_kept(search.plan.options))

    def why_kept(self, options: Options) -> str:
        return "no smaller candidate is within the tolerance"
