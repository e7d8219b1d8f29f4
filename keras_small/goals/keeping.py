"""The smallest model that keeps a metric."""

import dataclasses
import math
from typing import cast

from keras_small.asked.progress import tell
from keras_small.goals.goal import Chosen, Goal, check_metric, check_number
from keras_small.goals.search import Search
from keras_small.planning.options import Options
from keras_small.planning.plan import Choice
from keras_small.survey.comparing import Metric


@dataclasses.dataclass(frozen=True)
class Keeping(Goal):
    """The smallest model whose metric is hardly lower than that of the original.

    Seven models at most are built and measured, by bisection of their sizes.

    Args:
        metric: A function such that `metric(model)` is a float, higher is better.
        max_drop: The maximum decrease of the metric, in the metric's units: 0.005 is half a point
            of an accuracy in [0, 1].
        factor: The maximum factor to try. Default: that of the smallest candidates.

    Raises:
        ValueError: If the metric is no function, a number is too small, or `max_drop` is at least 1
            for a metric in (0, 1].

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import Keeping, compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        >>> outputs = model.predict(inputs, verbose=0)
        >>> def metric(small):
        ...     return -np.abs(small.predict(inputs, verbose=0) - outputs).mean()
        >>> report = compress(model, Keeping(metric, max_drop=0.1), data=inputs, verbose=0).report
        >>> report.ratio > 3 and report.metric_after >= -0.1
        True
    """

    metric: Metric
    max_drop: float
    factor: float | None = None

    def __post_init__(self) -> None:
        check_number("max_drop", self.max_drop)
        if self.metric is None or not 0 <= self.max_drop < math.inf:
            raise ValueError(
                "Expected a max_drop of at least 0 together with a metric. "
                f"Received: max_drop={self.max_drop}, metric={self.metric}"
            )
        check_metric(self.metric)
        if self.factor is not None:
            check_number("factor", self.factor)
            if not 1 <= self.factor < math.inf:
                raise ValueError(f"Expected a factor of at least 1. Received: factor={self.factor}")

    @property
    def argument(self) -> str:
        return f"max_drop={self.max_drop}"

    def choose(self, search: Search) -> Chosen:
        comparison = search.builder.comparison
        before = cast(float, comparison.metric_before)
        if 0 < before <= 1 <= self.max_drop:
            raise ValueError(
                "Expected a max_drop below the metric, in the metric's units. Received: "
                f"max_drop={self.max_drop}, and a metric of {before:.6g}. Of points in percent "
                f"pass the hundredth part, {self.max_drop / 100:g}"
            )

        def accepts(choice: Choice) -> bool:
            small = search.builder.draft(choice).small.model
            after = cast(float, comparison.metric_of(small))
            is_kept = after >= before - self.max_drop
            tell(
                "tried a model %.3g times smaller: its metric of %.6g is %s max_drop of the "
                "original's %.6g",
                search.factor(choice),
                after,
                "within" if is_kept else "not within",
                before,
            )
            return is_kept

        choice = search.smallest_accepted(accepts, self.factor)
        return Chosen(choice, self.why_kept(search.plan.options))

    def why_kept(self, options: Options) -> str:
        return "the smallest model within max_drop keeps it"
