import math

import numpy as np
import pytest
from scipy import stats

from keras_tnattn_train.translate.distributions import describe, smallest_eigenvalue


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_a_gaussian(rng):
    x = rng.normal(2.0, 0.5, (40, 50))
    result = describe(x)
    assert result["count"] == 2000
    assert result["mean"] == pytest.approx(x.mean())
    assert result["std"] == pytest.approx(x.std())
    centered = (x - x.mean()) / x.std()
    assert result["skewness"] == pytest.approx((centered**3).mean())
    assert result["excess_kurtosis"] == pytest.approx((centered**4).mean() - 3)
    assert result["normality_p"] > 0.01
    assert result["share_at_zero"] == 0


def test_a_sparse_power_law(rng):
    x = stats.pareto.rvs(1.5, size=5000, random_state=rng)
    x[:3000] = 0
    result = describe(x)
    assert result["share_at_zero"] >= 0.6
    assert result["normality_p"] < 1e-6


def test_zero_is_small_beside_the_largest_magnitude():
    assert describe(np.array([-2000, 1.9, 2.1, 0]))["share_at_zero"] == 0.5
    assert describe(np.array([2e-5, -1e-6]))["share_at_zero"] == 0


@pytest.mark.parametrize("x", [np.zeros(50), np.full(50, 3.0), np.arange(5.0), np.zeros(0)])
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_computed_is_nan(x):
    result = describe(x)
    assert math.isnan(result["normality_p"])
    assert result["count"] == len(x)


def test_positive_entries_do_not_make_a_matrix_positive_definite(rng):
    assert smallest_eigenvalue(np.array([[1.0, 2.0], [2.0, 1.0]])) == pytest.approx(-1)
    factor = rng.normal(size=(6, 4))
    skew = np.triu(rng.normal(size=(4, 4)), 1)  # changes no quadratic form
    definite = factor.T @ factor + 0.1 * np.eye(4)
    smallest = smallest_eigenvalue(definite + skew - skew.T)
    assert smallest == pytest.approx(np.linalg.eigvalsh(definite)[0])
    assert smallest > 0
    infinite = rng.normal(size=(32, 32))  # where NumPy raises an error
    infinite[5, 3] = np.inf
    assert math.isnan(smallest_eigenvalue(infinite))
