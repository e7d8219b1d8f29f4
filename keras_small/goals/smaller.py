"""A model that is a number of times smaller."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NoReturn

from keras_small.asked.progress import tell
from keras_small.building.saving import file_bytes
from keras_small.formats.candidates import Candidate
from keras_small.formats.runtime_tables import RUNTIMES, bits_for
from keras_small.goals.goal import Chosen, Goal, check_metric, check_number
from keras_small.goals.search import Search
from keras_small.planning.options import FLOATS, INTEGER_BITS, Options
from keras_small.planning.plan import Choice, Plan, candidates_of
from keras_small.planning.unreplaced import bytes_that_stay
from keras_small.survey.comparing import Metric

# Maximum coded files that are written in search of one that is within the factor, but close to it.
_CODED_FILES = 4
# The share of the bytes allowed from which on a file is close enough.
_CLOSE = 0.97


@dataclasses.dataclass(frozen=True)
class Smaller(Goal):
    """A model that is `factor` times smaller, of least error.

    The bytes of all weights in memory count, and not those of the `.keras` file, which also has the
    names and the architecture: of a small model it can be 7.5 times smaller when the weights are 8
    times (`report.file_bytes`). With `coded`, those of the coded file count. Up to four such files
    are written; if none is small enough, the model is that of the smallest, and the report says so.

    Args:
        factor: How many times smaller the model has to be, at least 1. With 1 nothing is asked for,
            as without a goal.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after. Default: none.

    Raises:
        ValueError: If the factor is below 1 or no number, or the metric is no function.

    Example:
        >>> import keras
        >>> from keras_small import Smaller, compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> compress(model, Smaller(3), verbose=0).report.ratio >= 3
        True
    """

    factor: float
    metric: Metric | None = None

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        if not 1 <= self.factor < math.inf:
            way_out = ""
            if 0 < self.factor < 1:
                way_out = (
                    f". For errors of layers of at most {self.factor:g}, pass "
                    f"Within({self.factor:g})"
                )
            raise ValueError(
                f"Expected a factor of at least 1. Received: factor={self.factor}{way_out}"
            )
        check_metric(self.metric)

    @property
    def argument(self) -> str:
        return f"factor={self.factor}"

    @property
    def planned_factor(self) -> float:
        return self.factor

    @property
    def is_asked(self) -> bool:
        return self.factor > 1

    def choose(self, search: Search) -> Chosen:
        if not self.is_asked:
            return self._choose_unasked(search)
        if search.plan.options.coded:
            return self._choose_coded_file(search)
        choice = self._shared_out(search)
        return Chosen(choice, self.why_kept(search.plan.options))

    def why_kept(self, options: Options) -> str:
        if self.is_asked:
            return "the factor is reached without it"
        if options.integers_of is not None:
            return "integers are not smaller"
        return "no smaller model was asked for"

    def _choose_unasked(self, search: Search) -> Chosen:
        """Returns the layers in integers if there are `bits`, or as they are, with a remark."""
        plan = search.plan
        notes: tuple[str, ...] = ()
        factor = search.factor(search.smallest())
        if plan.options.integers_of is None and factor > 1:
            notes = (
                'report.plot("curves.png") draws what smaller sizes of each layer would cost; with '
                f"the smallest ones, the model is {factor:.3g} times smaller.",
            )
        return Chosen(_integers_alone(plan), self.why_kept(plan.options), notes=notes)

    def _shared_out(self, search: Search) -> Choice:
        choice = search.share_out(self.factor)
        if choice is None:
            self._refuse(search)
        return choice

    def _choose_coded_file(self, search: Search) -> Chosen:
        """Returns the choice, and its model, of the largest coded file within the factor.

        The bytes beside kernels, and how well these are coded, are known once a file is written;
        the budget then changes by the difference. If no file is within the factor, the smallest
        one that was tried is returned.
        """
        plan = search.plan
        maximum = int(plan.total / self.factor)
        choice = self._shared_out(search)
        tried = []
        for _ in range(_CODED_FILES):
            assembly = search.builder.finished(choice)
            size = file_bytes(assembly.small.model, ".tnz")
            tell("a coded file of %s bytes, %.3g times smaller", f"{size:,}", plan.total / size)
            tried.append((size, choice, assembly))
            fits = [entry for entry in tried if entry[0] <= maximum]
            next_choice = search.share_out(self.factor, size - plan.size(choice))
            if next_choice is None and not fits:
                next_choice = search.smallest()
            is_close = _CLOSE * maximum <= size <= maximum
            if is_close or next_choice is None or next_choice == choice:
                break
            choice = next_choice
        if fits:
            _, choice, assembly = max(fits, key=lambda entry: entry[0])
            notes: tuple[str, ...] = ()
        else:
            _, choice, assembly = min(tried, key=lambda entry: entry[0])
            notes = ("The coded file is larger than asked: no files that were tried are as small.",)
        return Chosen(choice, self.why_kept(plan.options), assembly, notes)

    def _refuse(self, search: Search) -> NoReturn:
        plan = search.plan
        smallest = search.smallest()
        reached = search.factor(smallest)
        limit = math.floor(100 * reached) / 100
        worst = max(smallest, key=lambda path: smallest[path].likely_error)
        expected = "a model that can become smaller"
        why = _bytes_that_stay(plan, smallest)
        if limit > 1:
            expected = f"a factor of at most {limit}"
            error = 100 * smallest[worst].likely_error
            why += f". At {reached:.2f} the error of the outputs of {worst} is {error:.0f} %"
        received = self.argument
        if plan.options.for_runtime is not None:
            received += f", for_runtime={plan.options.for_runtime!r}"
        hint = _hint(plan, smallest, int(plan.total / self.factor))
        raise ValueError(f"Expected {expected}: {why}.{hint} Received: {received}")


def _integers_alone(plan: Plan) -> Choice:
    """Returns the layers as they are; quantized with `bits`, where this makes them smaller.

    The size of their groups is that of the smallest error.
    """

    def candidate_for(path: str) -> Candidate:
        options = plan.options
        bits = bits_for(options.for_runtime, plan.layers[path], options.integers_of)
        dense = [c for c in plan.choices[path] if c.format == "dense" and c.bits in (None, bits)]
        return min(dense, key=lambda c: (c.bits or FLOATS, c.error))

    return {path: candidate_for(path) for path in plan.choices}


def _bytes_that_stay(plan: Plan, smallest: Choice) -> str:
    """Returns how much of the model is not replaced, and why, or how small its layers become."""
    kept = {path: plan.why_not_smaller[path] for path, c in smallest.items() if c.keeps_layer}
    fixed = plan.fixed_bytes + sum(smallest[path].bytes for path in kept)
    if fixed:
        return bytes_that_stay(plan.inventory, fixed, plan.total, kept)
    return (
        f"the smallest candidates of its layers take {plan.size(smallest):,} of "
        f"{plan.total:,} bytes"
    )


def _hint(plan: Plan, smallest: Choice, budget: int) -> str:
    """Returns the advice to use fewer bits, or any runtime, if that makes the model small enough.

    Args:
        plan: The plan.
        smallest: The choice of its smallest candidates.
        budget: The bytes that the model may have.
    """
    options = plan.options
    runtime = options.for_runtime
    if options.coded:
        return ""

    def is_enough(bits: Sequence[int | None], runtime: str | None, formats: set[str]) -> bool:
        size = plan.fixed_bytes
        for path, kept in smallest.items():
            # Without tensor trains, which take minutes; with them the model could only be smaller.
            names = (formats | {kept.format}) & set(options.format_names) - {"tensor_train"}
            found = candidates_of(plan, path, sorted(names), bits, runtime)
            size += min(c.bytes for c in (kept, *found))
        return size <= budget

    known = INTEGER_BITS if runtime is None else RUNTIMES[runtime].bits
    fewer = [width for width in known if width < (options.bits or FLOATS)]
    enough = [str(width) for width in fewer if is_enough((width,), runtime, {"low_rank"})]
    ways = [f"{' or '.join(enough[:2])} bits"] if enough else []
    if runtime is not None and is_enough(options.widths, None, set(options.format_names)):
        ways.append("for_runtime=None, which also has formats of slow lookups")
    return f" Try {', or '.join(ways)}." if ways else ""
