"""What tables of results are made of."""

import pytest
from scipy import stats

from keras_tnattn_train.runs.tables import attention_title, half_width, interval


def test_titles():
    assert [attention_title(name) for name in ("tsa", "none")] == ["TSA", "no attention"]


def test_the_interval_is_that_of_students_t():
    values = [98.0, 97.5, 99.0, 98.25]
    result = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert half_width(values) == pytest.approx((result.high - result.low) / 2)
    # With a test part of half the training part, 1/4 becomes 1/4 + 1/2.
    assert half_width(values, 0.5) == pytest.approx(half_width(values) * 3**0.5)
    assert interval([1.0, 2.0, 3.0], "+.1f", 2 / 3) == f"+2.0 ± {4.302653:.1f}"
    assert interval([1.0], ".2f") == "1.00"
