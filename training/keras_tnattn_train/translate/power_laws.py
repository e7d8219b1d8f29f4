"""Tests whether the magnitudes of an array follow a power law.

The method is that of Clauset, Shalizi and Newman (2009), "Power-law distributions in empirical
data". The exponent has the maximum likelihood; `x_min` gives the smallest Kolmogorov-Smirnov
distance between the magnitudes from `x_min` on and their fit. `p` is the share of bootstrap samples
that lie farther from their own fit: a sample has as many values, those of the tail drawn from the
fitted power law, the others from the magnitudes below `x_min`. Vuong's likelihood ratio tests
compare the power law with the distributions that the package `powerlaw` fits to the same tail.

At most 100 of the magnitudes are tried as `x_min`, and the tail has at least a tenth of the
magnitudes, and at least 50: a power law of fewer would say little about the array. Magnitudes of
less than 1e-7 of the largest count as zero and are left out. The cost is about `100 n` powers for
each bootstrap sample of `n` values.
"""

import dataclasses
import math
import warnings
from typing import Any, ClassVar

import numpy as np
import powerlaw

ALTERNATIVES = ("lognormal", "exponential", "truncated_power_law")
FEWEST = 100  # minimum number of values other than zero
# A tail has at least this share of the values, and this many.
TAIL = 0.1
SHORTEST = 50
CANDIDATES = 100  # maximum number of values tried as x_min
NEGLIGIBLE = 1e-7  # float32's resolution: smaller shares of the largest magnitude count as zero
REJECTION_LEVEL = 0.1  # p-value below which Clauset et al. reject a distribution


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """A power law fitted to the tail of an array's magnitudes.

    Args:
        magnitudes: The magnitudes other than zero, in ascending order.
        results: What `fit_power_law` found: the columns of `power_laws.csv`.
        curves: By the names `power_law`, `lognormal` and `exponential`, the probability of
            magnitudes greater than each of the `results["tail"]` largest; empty if the array could
            not be tested.
    """

    magnitudes: np.ndarray
    results: dict[str, Any]
    curves: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Tail:
    start: int  # of the tail in the sorted values
    exponent: float
    distance: float


class _TruncatedPowerLaw(powerlaw.Truncated_Power_Law):
    DEFAULT_PARAMETER_RANGES: ClassVar = {"alpha": [0, None], "Lambda": [0, None]}  # not up to 3

    def compute_distance_metrics(self, data: object = None) -> None:
        """Does nothing: the distances are not used, and take a second."""


def fit_power_law(values: np.ndarray, bootstraps: int = 250, seed: int = 0) -> PowerLaw:
    """Fits `p(x) ~ x ** -exponent`, `x >= x_min`, to the magnitudes of an array, and tests the fit.

    Args:
        values: Numbers of any shape, independent of one another as far as the p-values go.
        bootstraps: Number of bootstrap samples `b`; `p` has a standard error of up to
            `0.5 / sqrt(b)`. Default: 250.
        seed: Seed of these samples. Default: 0.

    Returns:
        A `PowerLaw`, whose `results` are
        `values`: the number of magnitudes other than zero;
        `exponent`, `exponent_error` (its standard error), `x_min`;
        `tail`, `tail_share`: number and share of the magnitudes from `x_min` on;
        `distance`, `p`: the Kolmogorov-Smirnov distance, and how plausible a power law is;
        `lognormal_ratio`, `lognormal_p` and the same of `exponential`: Vuong's statistic and its
        p-value; a positive ratio with a small p-value prefers the power law;
        `truncated_power_law_ratio`, `truncated_power_law_p`: the logarithm of the likelihood ratio,
        which is not positive, and the p-value that a cut-off `exp(-rate * x)` is not needed;
        `verdict`: in the words of Clauset et al., the support for a power law: `none` (rejected by
        `p < 0.1`, or another distribution fits better with a p-value below 0.1), `with cut-off`
        (a cut-off is needed), `good` (it fits better than the others, with p-values below 0.1) or
        `moderate` (others are as plausible); or why the array could not be tested: the other
        results are then NaN.
    """
    x = np.sort(np.abs(np.asarray(values, "float64")).ravel())
    if not np.isfinite(x).all():
        return _without_test(x, "not tested: expected finite values")
    x = x[x > NEGLIGIBLE * x.max(initial=0.0)]
    if len(x) < FEWEST:
        return _without_test(x, f"not tested: expected at least {FEWEST} values other than zero")
    fitted = _fit_tail(x)
    if fitted is None:
        return _without_test(x, "not tested: expected a tail of different values")
    start = fitted.start
    exponent = fitted.exponent
    x_min = x[start]
    size = len(x) - start
    ratios, curves = _compare(x[start:] / x_min, exponent)
    results: dict[str, Any] = {
        "values": len(x),
        "exponent": exponent,
        "exponent_error": (exponent - 1) / math.sqrt(size),
        "x_min": float(x_min),
        "tail": size,
        "tail_share": size / len(x),
        "distance": fitted.distance,
        "p": _p_value(x, fitted, bootstraps, np.random.default_rng(seed)),
        **ratios,
    }
    results["verdict"] = _verdict(results)
    curves = {name: size / len(x) * curve for name, curve in curves.items()}
    return PowerLaw(x, results, curves)


def _without_test(magnitudes: np.ndarray, reason: str) -> PowerLaw:
    names = ["exponent", "exponent_error", "x_min", "tail", "tail_share", "distance", "p"]
    names += [f"{name}_{kind}" for name in ALTERNATIVES for kind in ("ratio", "p")]
    unknown = dict.fromkeys(names, math.nan)
    return PowerLaw(magnitudes, {"values": len(magnitudes), **unknown, "verdict": reason}, {})


def _fit_tail(x: np.ndarray) -> _Tail | None:
    """Fits sorted positive values; returns `None` if all possible tails are of equal values."""
    count = len(x)
    logs = np.log(x)
    starts = np.flatnonzero(np.diff(x, prepend=0.0))  # a tail has all values equal to x_min
    starts = starts[starts <= count - max(TAIL * count, SHORTEST)]
    best = None
    for i in np.linspace(0, len(starts) - 1, min(CANDIDATES, len(starts))).astype(int):
        excess = logs[starts[i] :] - logs[starts[i]]
        size = len(excess)
        total = excess.sum()
        if total == 0:
            continue
        # The share of larger values drops by 1 / size at each value, here taken in the middle.
        empirical = 1 - (np.arange(size) + 0.5) / size
        distance = np.abs(np.exp(-size / total * excess) - empirical).max() + 0.5 / size
        if best is None or distance < best.distance:
            best = _Tail(int(starts[i]), float(1 + size / total), float(distance))
    return best


def _p_value(x: np.ndarray, fitted: _Tail, bootstraps: int, rng: np.random.Generator) -> float:
    """Returns the share of bootstrap samples that lie farther from their fits than `x`."""
    count = len(x)
    body = x[: fitted.start]
    x_min = x[fitted.start]
    farther = 0
    for _ in range(bootstraps):
        size = rng.binomial(count, 1 - fitted.start / count)
        tail = x_min * (1 + rng.pareto(fitted.exponent - 1, size))
        sample = np.concatenate([rng.choice(body, count - size), tail])
        refitted = _fit_tail(np.sort(sample))
        farther += refitted is not None and refitted.distance >= fitted.distance
    return farther / bootstraps


def _compare(tail: np.ndarray, exponent: float) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Compares a power law with others on a tail in units of `x_min`; returns curves, too."""
    with warnings.catch_warnings():
        # Of fits at the edge of their range, where the distribution becomes a power law.
        warnings.simplefilter("ignore")
        settings = {"data": tail, "xmin": 1.0, "verbose": 0}
        fits = {
            "lognormal": powerlaw.Lognormal(**settings),
            "exponential": powerlaw.Exponential(**settings),
            "truncated_power_law": _TruncatedPowerLaw(**settings),
        }
        ratios: dict[str, float] = {}
        for name, fit in fits.items():
            nested = name == "truncated_power_law"
            ratio, p = powerlaw.loglikelihood_ratio(
                math.log(exponent - 1) - exponent * np.log(tail),
                fit.loglikelihoods(tail),
                nested=nested,
                normalized_ratio=not nested,
            )
            ratios |= {f"{name}_ratio": float(ratio), f"{name}_p": float(p)}
        curves = {name: fits[name].ccdf(tail) for name in ("lognormal", "exponential")}
    return ratios, {"power_law": tail ** (1 - exponent), **curves}


def _verdict(results: dict[str, float]) -> str:
    decided = {name: results[f"{name}_p"] < REJECTION_LEVEL for name in ALTERNATIVES}
    better = {name: decided[name] and results[f"{name}_ratio"] < 0 for name in ALTERNATIVES}
    if results["p"] < REJECTION_LEVEL or better["lognormal"] or better["exponential"]:
        return "none"
    if better["truncated_power_law"]:
        return "with cut-off"
    return "good" if decided["lognormal"] and decided["exponential"] else "moderate"
