"""Which cases of a parametrized test run by default."""

import pytest


def slow_but(fast, cases):
    """Returns the cases, of which those that are not `fast` run in the slow tests only.

    A case of several arguments is a tuple.
    """

    def slow(case):
        return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.slow)

    return [case if case in fast else slow(case) for case in cases]
