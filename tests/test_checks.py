import numpy as np
import pytest

from keras_tnattn.checks import check_int, check_rate


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_numpy_become_python_ints(value):
    checked = check_int("units", value, at_least=3)
    assert checked == 3
    assert type(checked) is int


@pytest.mark.parametrize("value", [2, 3.0, np.float32(3), True, "3", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
    with pytest.raises(ValueError, match=r"at least 3\. Received: units="):
        check_int("units", value, at_least=3)


def test_rates_are_in_zero_to_one():
    assert type(check_rate("dropout", np.float32(0.5))) is float
    assert check_rate("dropout", 0) == 0.0
    for value in (-0.1, 1, float("nan")):
        with pytest.raises(ValueError, match="dropout="):
            check_rate("dropout", value)
