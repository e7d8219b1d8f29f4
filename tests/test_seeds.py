"""The numbers of a test do not depend on which tests ran before it."""

import keras
import numpy as np
import pytest

RNG = np.random.default_rng(0)


def numbers():
    return [RNG.normal(), np.random.normal(), float(keras.random.normal(()))]


@pytest.fixture(scope="module")
def shared():
    return numbers()


@pytest.fixture(scope="module")
def shared_later(shared):
    return numbers()


def test_what_tests_share_starts_from_the_same_seeds(shared, shared_later):
    assert shared == shared_later == numbers()
