"""Checks of constructor arguments, with one wording for all layers."""

import numbers
from typing import Any


def check_int(name: str, value: Any, at_least: int = 1) -> int:
    """Returns `value` as a Python int, or raises an error that names the argument.

    NumPy integers are accepted; floats and booleans are not, not even `2.0` and `True`.

    Args:
        name: Name of the argument, for the error message.
        value: The argument.
        at_least: Smallest allowed value. Defaults to 1.

    Raises:
        ValueError: If `value` is not an integer, or is less than `at_least`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.checks import check_int
        >>> check_int("units", np.int64(8))
        8
        >>> check_int("units", 0)
        Traceback (most recent call last):
            ...
        ValueError: Expected an int of at least 1. Received: units=0
    """
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or value < at_least:
        raise ValueError(f"Expected an int of at least {at_least}. Received: {name}={value!r}")
    return int(value)


def check_rate(name: str, value: Any) -> float:
    """Returns a dropout rate as a Python float, or raises an error that names the argument.

    Args:
        name: Name of the argument, for the error message.
        value: The argument.

    Raises:
        ValueError: If `value` is not in [0, 1).

    Example:
        >>> from keras_tnattn.checks import check_rate
        >>> check_rate("dropout", 0.1)
        0.1
    """
    if not 0 <= value < 1:
        raise ValueError(f"Expected a rate in [0, 1). Received: {name}={value!r}")
    return float(value)
