"""Formats tables of results."""

import math
import statistics
from collections.abc import Sequence


def table_of(lines: Sequence[Sequence[str]]) -> str:
    """Formats rows of cells, the header first, as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *rest = lines
    ruled = [header, ["-" * width for width in widths], *rest]
    return "\n".join("| " + " | ".join(map(str.rjust, line, widths)) + " |" for line in ruled)


def attention_title(name: str) -> str:
    """Returns how tables and pictures call an attention of an option: `TSA`, `no attention`."""
    return "no attention" if name == "none" else name.upper()


def spread(values: Sequence[float]) -> str:
    """Formats the mean of some values and, if there are several, their standard deviation."""
    return mean_and_deviation(values, ".1f")


def mean_and_deviation(values: Sequence[float], form: str) -> str:
    """Formats the mean of some values and, if there are several, their standard deviation."""
    mean = f"{statistics.mean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):{form}}" if len(values) > 1 else mean


def half_width(values: Sequence[float], shared: float = 0.0) -> float:
    """Returns half the width of the 95 % confidence interval of a mean, by Student's t.

    If splits of the same rows give values that are not independent, `shared` is how many test rows
    there are to a training row: the correction of Nadeau and Bengio ("Inference for the
    generalization error", 2003).
    """
    from scipy import stats

    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * statistics.stdev(values) * math.sqrt(1 / n + shared))


def interval(values: Sequence[float], form: str, shared: float = 0.0) -> str:
    """Formats the mean of some values and, if there are several, its 95 % confidence interval."""
    mean = f"{statistics.fmean(values):{form}}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {half_width(values, shared):{form.lstrip('+')}}"
