"""Chooses a candidate for each layer of a plan, so that a goal is reached."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from keras_small.asked.counting import Promising
from keras_small.asked.goals import FLOATS, Goal, Keeping, Smaller, Within
from keras_small.asked.progress import tell
from keras_small.building.assembly import Assembly, Made, assemble, replacement_of
from keras_small.building.saving import file_bytes
from keras_small.formats.candidates import Candidate, byte_count, copy_layer
from keras_small.formats.runtime_tables import RUNTIMES, bits_for
from keras_small.planning.budget import share_out, within_tolerance
from keras_small.planning.measuring import best_milliseconds, costs_in
from keras_small.planning.plan import Plan, candidates_of
from keras_small.reports.others import describe_others
from keras_small.survey.calibration import Call

# Steps of the search for the smallest model within a limit.
_BISECTIONS = 7
# Steps of the search for the largest model within `max_resident`.
_FILES = 4
# Coded files that are written in search of one that is within a target, but close to it.
_CODED_FILES, _CLOSE = 4, 0.97

Choice = dict[str, Candidate]


class Chooser:
    """Chooses among the candidates of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # The candidates without those that turned out to be too slow.
        self.allowed = {path: list(group) for path, group in plan.choices.items()}
        self.times: dict[tuple, float] = {}
        self.goal: Goal = Smaller()
        self.keeps_all = False
        self.exceeds_target = False
        self.costs: Any = None  # of the file that `max_resident` bounds

    def choice_for(self, goal: Goal, metric_before: float | None) -> Choice:
        """Returns the candidate of each layer, by path.

        Raises:
            ValueError: If the goal cannot be reached.
        """
        self._set_goal(goal)
        choice = self._choice_for(goal, metric_before)
        return choice if self.plan.options.max_resident is None else self._within_memory(choice)

    def _choice_for(self, goal: Goal, metric_before: float | None) -> Choice:
        if isinstance(goal, Keeping):
            return self._smallest_within_drop(goal, cast(float, metric_before))
        if isinstance(goal, Within):
            return self._within_tolerance(goal.tolerance)
        factor = cast(Smaller, goal).factor
        if factor > 1:
            return self._for_target(factor)
        return {path: self._integers_alone(path) for path in self.plan.choices}

    def _set_goal(self, goal: Goal) -> None:
        options, self.goal = self.plan.options, goal
        asked = options.wants_integers or goal != Smaller(1.0)
        if asked and not self.plan.layers:
            argument = f"bits={options.bits}" if goal == Smaller(1.0) else goal.argument
            name = self.plan.inventory.model.name
            raise ValueError(
                "Expected a model with layers that can be replaced. Received: "
                f"{argument}, and {name} with {describe_others(self.plan)}"
            )

    def choices_by_change(
        self, goal: Promising, total_of: Callable[[Choice], float], rows: int
    ) -> list[Choice]:
        """Returns choices to count on other rows: each is smaller, and changes no less.

        Those that change more than the limit on the rows are left out.

        Args:
            goal: What is asked for. The search looks for the smallest model whose bound would be
                small enough.
            total_of: Function from a choice to the sum of changes of the rows to plan with.
            rows: The number of these rows.
        """
        self._set_goal(goal)
        tried: list[tuple[int, float, Choice]] = []

        def accepts(factor: float, choice: Choice) -> bool:
            total = total_of(choice)
            tell("%.3g times smaller: %s", factor, goal.describe(total, rows))
            tried.append((self.size(choice), total, choice))
            return goal.count(total, rows).bound <= goal.limit

        self._smallest_accepted(accepts)
        choices: list[Choice] = []
        least = goal.limit * rows
        for _, total, choice in sorted(tried, key=lambda one: one[:2]):
            if total <= least:
                choices.insert(0, choice)
                least = total
        return choices

    def _within_tolerance(self, tolerance: float) -> Choice:
        return {
            path: within_tolerance(group, tolerance, functools.partial(self._is_fast, path))
            for path, group in self.plan.choices.items()
        }

    def _for_target(self, target: float) -> Choice:
        choice = self._share_out(target)
        if choice is None:
            self._refuse(target)
        return choice

    def for_coded_file(
        self, goal: Smaller, build: Callable[[Choice], Assembly]
    ) -> tuple[Choice, Assembly]:
        """Returns the choice, and its model, of the largest coded file within a target.

        What a file takes beside its kernels, and how well these are coded, is known once it is
        written; the budget then changes by the difference. If no file is within it, it is the
        smallest that was tried, which `exceeds_target`.
        """
        self._set_goal(goal)
        plan, most = self.plan, int(self.plan.total / goal.factor)
        rank = (False, -math.inf)  # whether a file is within the target, and which is better
        choice = self._for_target(goal.factor)
        best: tuple[Choice, Assembly]
        for _ in range(_CODED_FILES):
            assembly = build(choice)
            size = file_bytes(assembly.small.model, ".tnz")
            tell("a coded file of %s bytes, %.3g times smaller", f"{size:,}", plan.total / size)
            fits = size <= most
            if (fits, size if fits else -size) > rank:
                best, rank = (choice, assembly), (fits, size if fits else -size)
            plan.unforeseen_bytes += size - self.size(choice)
            new = self._share_out(goal.factor)
            if new is None and not rank[0]:
                new = self._within_tolerance(math.inf)
            if _CLOSE * most <= size <= most or new is None or new == choice:
                break
            choice = new
        self.exceeds_target = not rank[0]
        return best

    def keep_all(self) -> Choice:
        """Returns the choice of all layers as they are, because any other one is larger."""
        self.keeps_all = True
        return {path: group[0] for path, group in self.plan.choices.items()}

    def _integers_alone(self, path: str) -> Candidate:
        """Returns the layer as it is; quantized with `bits`, if this makes it smaller.

        Of the sizes of groups it is the one with the smallest error.
        """
        options, layer = self.plan.options, self.plan.layers[path]
        bits = options.bits if options.wants_integers else None
        widths = (None, bits_for(options.for_runtime, layer, bits))
        dense = [
            c
            for c in self.plan.choices[path]
            if c.format == "dense" and c.bits in widths and self._is_fast(path, c)
        ]
        return min(dense, key=lambda c: (c.bits or 32, c.error))

    def _share_out(self, target: float) -> Choice | None:
        """Returns the choice for a target, or `None` if the target cannot be reached."""
        plan, most = self.plan, int(self.plan.total / target)
        budget = most - plan.fixed_bytes
        while True:
            choice = self._least_error(budget)
            if choice is None:
                return self._smallest(target)
            slow = {path for path, c in choice.items() if not self._is_fast(path, c)}
            for path in slow:
                self.allowed[path].remove(choice[path])
            if slow:
                continue
            excess = self.size(choice) - most
            if excess <= 0:
                return choice
            budget -= excess

    def _least_error(self, budget: int) -> Choice | None:
        """Returns the best of the choices with so many bits and more, for each number of bits.

        `share_out` goes step by step: among fewer candidates it may find a better choice.
        """
        sensitivity = {path: note.sensitivity for path, note in self.plan.statistics.items()}

        def error(choice: Choice) -> float:
            return sum((sensitivity[path] * c.cost) ** 2 for path, c in choice.items())

        choices = []
        for width in self.plan.options.widths:
            groups = {
                path: [c for c in group if width is None or (c.bits or FLOATS) >= width]
                for path, group in self.allowed.items()
            }
            choices.append(share_out(groups, sensitivity, budget))
        return min((choice for choice in choices if choice is not None), key=error, default=None)

    def _smallest(self, target: float) -> Choice | None:
        """Returns the smallest choice if it reaches a target; `share_out` only has estimates."""
        choice = self._within_tolerance(math.inf)
        return choice if self.size(choice) <= int(self.plan.total / target) else None

    def size(self, choice: Mapping[str, Candidate]) -> int:
        """Returns the bytes of the model with a choice."""
        return self.plan.fixed_bytes + sum(c.bytes for c in choice.values())

    def _refuse(self, target: float) -> NoReturn:
        plan = self.plan
        smallest = self._within_tolerance(math.inf)
        reached = plan.total / self.size(smallest)
        worst = max(smallest, key=lambda path: smallest[path].likely_error)
        alone = {path: self.reason_kept(path) for path, c in smallest.items() if c.keeps_layer}
        fixed = plan.fixed_bytes + sum(smallest[path].bytes for path in alone)
        size = byte_count(plan.inventory.model)
        why = f"{fixed:,} of {size:,} bytes are in layers that are not replaced"
        if fixed:
            why += f" ({describe_others(plan, alone)})"
        if size > plan.total:
            why += f"; loaded once for each that holds them, they are more than {plan.total:,}"
        limit = math.floor(100 * reached) / 100
        expected = "a model that can become smaller"
        if limit > 1:
            expected = f"a target of at most {limit}"
            error = 100 * smallest[worst].likely_error
            why += f". At {reached:.2f} the error of the outputs of {worst} is {error:.0f} %"
        runtime = plan.options.for_runtime
        received = f"target={target}" + (f", for_runtime={runtime!r}" if runtime else "")
        hint = self._hint(smallest, int(plan.total / target))
        raise ValueError(f"Expected {expected}: {why}.{hint} Received: {received}")

    def _hint(self, smallest: Choice, most: int) -> str:
        """Returns the advice to use fewer bits, or any runtime, if that makes the model smaller."""
        plan, options = self.plan, self.plan.options
        runtime, bits = options.for_runtime, options.widths
        if options.is_coded:
            return ""

        def is_enough(bits: Sequence[int | None], runtime: str | None, formats: set[str]) -> bool:
            size = plan.fixed_bytes
            for path, kept in smallest.items():
                # Without tensor trains, which take minutes, what is said holds all the more.
                names = (formats | {kept.format}) & set(options.formats) - {"tensor_train"}
                others = candidates_of(plan, path, sorted(names), bits, runtime)
                size += min(c.bytes for c in (kept, *others))
            return size <= most

        widths = RUNTIMES[runtime].bits if runtime else (8, 4, 3, 2)
        fewer = [width for width in widths if width != 6 and width < (options.bits or FLOATS)]
        enough = [str(width) for width in fewer if is_enough((width,), runtime, {"low_rank"})]
        ways = [f"{' or '.join(enough[:2])} bits"] if enough else []
        if runtime is not None and is_enough(bits, None, set(options.formats)):
            ways.append("for_runtime=None, which also has formats of slow lookups")
        return f" Try {', or '.join(ways)}." if ways else ""

    def reason_kept(self, path: str) -> str:
        """Returns why the choice keeps a layer."""
        if self.keeps_all:
            return "the model would become larger"
        smaller, options = self.plan.choices[path][1:], self.plan.options
        if not smaller:
            if options.bits == FLOATS and candidates_of(self.plan, path, (), (8,), None)[1:]:
                return "no format makes it smaller without bits"
            return "no format makes it smaller"
        if not any(c in self.allowed[path] and self._is_fast(path, c) for c in smaller):
            return "no smaller candidate is fast enough"
        if self.goal == Smaller(1.0):
            if options.max_resident is not None:
                return "the model is within max_resident without it"
            return (
                "integers are not smaller"
                if options.wants_integers
                else "no smaller model was asked for, for instance by a target"
            )
        if isinstance(self.goal, Within):
            return "no smaller candidate is within the tolerance"
        if isinstance(self.goal, Smaller):
            return "the target is reached without it"
        return f"the smallest model within {self.goal.name} keeps it"

    def _smallest_within_drop(self, goal: Keeping, before: float) -> Choice:
        """Returns the choice of the highest target whose metric drops by at most `drop`."""

        def accepts(factor: float, choice: Choice) -> bool:
            small = assemble(self.plan, choice, self.replacements(choice)).small.model
            after = goal.metric(small)
            tell("%.3g times smaller: metric %.6g instead of %.6g", factor, after, before)
            return after >= before - goal.drop

        return self._smallest_accepted(accepts, goal.limit)

    def _smallest_accepted(
        self, accepts: Callable[[float, Choice], bool], limit: float | None = None
    ) -> Choice:
        """Returns the choice of the highest target that is accepted, by bisection."""
        plan = self.plan
        smallest = sum(min(c.bytes for c in group) for group in plan.choices.values())
        highest = plan.total / max(1, plan.fixed_bytes + smallest)
        low, high = 1.0, min(highest, limit or highest)
        best = {path: group[0] for path, group in plan.choices.items()}
        for step in range(_BISECTIONS):
            middle = high if step == 0 else math.sqrt(low * high)
            choice = self._share_out(middle)
            if choice is None:
                tell("%.3g times smaller: not possible", middle)
            if choice is not None and accepts(middle, choice):
                low, best = middle, choice
                if step == 0:
                    break
            else:
                high = middle
        return best

    def _within_memory(self, choice: Choice) -> Choice:
        """Returns the choice, or that of a smaller model, whose file takes the memory allowed."""
        plan, most = self.plan, cast(int, self.plan.options.max_resident)
        best, self.costs = choice, self._costs(choice)
        if (first := self.costs.resident_bytes) <= most:
            return choice
        if isinstance(self.goal, Smaller):
            best = self._within_tolerance(math.inf)
            self.costs = self._costs(best)
        if self.costs.resident_bytes > most:
            raise ValueError(
                f"Expected max_resident of at least {min(first, self.costs.resident_bytes):,}, the "
                f"least measured in {plan.options.for_runtime} with {self.goal.argument}. Received:"
                f" max_resident={most}"
            )
        low, high = (plan.total / self.size(x) for x in (choice, best))
        for _ in range(_FILES):
            middle = math.sqrt(low * high)
            new = self._share_out(middle)
            if new is None or (costs := self._costs(new)).resident_bytes > most:
                low = middle
            else:
                best, high, self.costs = new, middle, costs
        return best

    def _costs(self, choice: Choice) -> Any:
        """Returns what the file of a choice costs in the runtime."""
        small = assemble(self.plan, choice, self.replacements(choice)).small.model
        runtime = cast(str, self.plan.options.for_runtime)
        costs = costs_in(small, self.plan.sample, runtime)
        factor = self.plan.total / self.size(choice)
        tell("%.3g times smaller: %s bytes of memory", factor, f"{costs.resident_bytes:,}")
        return costs

    def replacements(self, choice: Choice) -> dict[str, Made]:
        """Returns the replacements of the layers that a choice does not keep, by path."""
        return {
            path: replacement_of(self.plan.layers[path], candidate)
            for path, candidate in choice.items()
            if not candidate.keeps_layer
        }

    def _is_fast(self, path: str, candidate: Candidate) -> bool:
        speed = self.plan.options.min_speed
        if speed is None or candidate.keeps_layer:
            return True
        old = self.milliseconds(path, self.plan.choices[path][0])
        return old >= speed * self.milliseconds(path, candidate)

    def milliseconds(self, path: str, candidate: Candidate) -> float:
        """Returns the time of a call on the batch that the layer was called with."""
        key = (path, candidate.format, candidate.ranks, candidate.bits)
        if key not in self.times:
            # Not `None`: `min_speed` needs data, and layers that were not called are left out.
            call = cast(Call, self.plan.statistics[path].call)
            layer = candidate.make()
            layer = copy_layer(layer) if candidate.bits is None else candidate.finish(layer)
            runtime = self.plan.options.for_runtime
            self.times[key] = best_milliseconds(*call.model_of(layer), runtime)
        return self.times[key]
