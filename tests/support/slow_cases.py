"""Which cases of a parametrized test run by default."""

import pytest


def slow_but(fast, cases):
    """Returns the cases, of which those that are not `fast` run in the slow tests only."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]
