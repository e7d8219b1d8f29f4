"""Statistics of the entries of learned matrices."""

import math

import numpy as np
from scipy import stats

ZERO = 1e-3  # entries up to this share of the largest magnitude count as zero
FEWEST = 20  # minimum number of entries for the test


def describe(values: np.ndarray) -> dict[str, float]:
    """Describes the distribution of the entries of an array.

    The paper calls `P`, `a`, `b_a` and `G_LM` nearly Gaussian, and `A_LM` sparse: compare
    `normality_p` and `share_at_zero`. `keras_tnattn_train.translate.power_laws` tests how long the
    tails are.

    Returns:
        A dict of
        `count`, `mean`, `std`, `skewness` and `excess_kurtosis` (0 for a Gaussian);
        `share_at_zero`: the share of entries of less than 0.001 of the largest magnitude;
        `normality_k2`, `normality_p`: D'Agostino's test; a small `p` rejects a Gaussian.
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
    return described


def smallest_eigenvalue(matrix: np.ndarray) -> float:
    """Returns the smallest eigenvalue of the symmetric part of a square matrix.

    `A` is positive definite, `x^T A x > 0` for all `x != 0`, if and only if it is above 0. Positive
    entries do not make a matrix positive definite. NaN if an entry is not finite.
    """
    matrix = np.asarray(matrix, "float64")
    if not np.isfinite(matrix).all():
        return math.nan
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
