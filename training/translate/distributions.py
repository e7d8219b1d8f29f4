"""Statistics of the entries of learned matrices."""

import math

import numpy as np
from scipy import stats

ZERO = 1e-3  # entries up to this share of the largest magnitude count as zero
TAIL = 0.1  # the tail is this share of the entries, those of largest magnitude
FEWEST = 20  # minimum number of entries for the tests


def describe(values: np.ndarray) -> dict[str, float]:
    """Describes the distribution of the entries of an array.

    The paper calls `P`, `a` and `b_a` nearly Gaussian, and `A_LM` sparse and long-tailed: compare
    `normality_p`, `share_at_zero` and `tail_z`.

    Args:
        values: Numbers of any shape.

    Returns:
        A dict of
        `count`, `mean`, `std`, `skewness` and `excess_kurtosis` (0 for a Gaussian);
        `share_at_zero`: the share of entries of less than 0.001 of the largest magnitude;
        `normality_k2`, `normality_p`: D'Agostino's test; a small `p` rejects a Gaussian;
        `tail_index`: Hill's estimate of the exponent of a power law, from the tenth of the entries
        with the largest magnitudes; a smaller index means a longer tail;
        `tail_z`, `tail_p`: Vuong's likelihood ratio test on that tenth; a positive `z` with a small
        `p` prefers a power law, a negative one an exponential tail.
        Values that cannot be computed, for constant entries or fewer than 20, are NaN.
    """
    x = np.asarray(values, "float64").ravel()
    magnitudes = np.abs(x)
    largest = magnitudes.max(initial=0.0)
    spread = float(x.std()) if x.size else math.nan
    described = {
        "count": x.size,
        "mean": float(x.mean()) if x.size else math.nan,
        "std": spread,
        "skewness": math.nan,
        "excess_kurtosis": math.nan,
        "share_at_zero": float(np.mean(magnitudes <= ZERO * largest)) if x.size else math.nan,
        "normality_k2": math.nan,
        "normality_p": math.nan,
    }
    if spread > 1e-12 * largest:
        described["skewness"] = float(stats.skew(x))
        described["excess_kurtosis"] = float(stats.kurtosis(x))
        if x.size >= FEWEST:
            test = stats.normaltest(x)
            described |= {"normality_k2": float(test[0]), "normality_p": float(test[1])}
    index, z, p = _tail(magnitudes)
    return {**described, "tail_index": index, "tail_z": z, "tail_p": p}


def _tail(magnitudes: np.ndarray) -> tuple[float, float, float]:
    """Returns the tail index, and Vuong's statistic and p-value of a power law's tail."""
    count = max(int(TAIL * magnitudes.size), FEWEST)
    if magnitudes.size <= count:
        return math.nan, math.nan, math.nan
    ordered = np.sort(magnitudes)
    threshold, tail = ordered[-count - 1], ordered[-count:]
    if not 0 < threshold < tail[-1]:
        return math.nan, math.nan, math.nan
    # Maximum likelihood of both densities beyond the threshold.
    logs, excess = np.log(tail / threshold), tail - threshold
    index, rate = 1 / logs.mean(), 1 / excess.mean()
    power_law = np.log(index / threshold) - (index + 1) * logs
    exponential = np.log(rate) - rate * excess
    ratios = power_law - exponential
    if ratios.std() == 0:
        return float(index), math.nan, math.nan
    z = float(math.sqrt(count) * ratios.mean() / ratios.std())
    return float(index), z, math.erfc(abs(z) / math.sqrt(2))
