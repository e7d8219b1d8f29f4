"""Learning rates over the steps."""

import keras
import numpy as np
import pytest

from keras_tnattn.schedules import WarmupInverseSquareRoot


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


def test_follows_the_formula():
    got = rates(WarmupInverseSquareRoot(64, 100), 0, 1, 50, 100, 400)
    want = [0, 1e-3 / 8, 50e-3 / 8, 0.1 / 8, 0.05 / 8]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_peaks_where_asked():
    got = rates(WarmupInverseSquareRoot(64, 100, peak=3e-4), 50, 100, 400)
    np.testing.assert_allclose(got, [1.5e-4, 3e-4, 1.5e-4], rtol=1e-6)


def test_cools_down_to_nothing():
    steps = np.arange(0, 1100, 50)
    plain = rates(WarmupInverseSquareRoot(64, 100), *steps)
    cooled = rates(WarmupInverseSquareRoot(64, 100, total_steps=1000, cooldown_steps=400), *steps)
    factors = np.clip((1000 - steps) / 400, 0, 1)
    np.testing.assert_allclose(cooled, plain * factors, rtol=1e-6)
    assert cooled[-2:] == [0, 0]


def test_comes_back_from_its_config():
    schedule = WarmupInverseSquareRoot(64, 100, 3e-4, 1000, 400)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert rates(again, 7, 100, 900) == rates(schedule, 7, 100, 900)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_dim": 0}, "model_dim=0"),
        ({"warmup_steps": 0}, "warmup_steps=0"),
        ({"peak": 0.0}, "peak=0.0"),
        ({"cooldown_steps": 5}, "cooldown_steps=5, total_steps=None"),
        ({"cooldown_steps": 5, "total_steps": 4}, "cooldown_steps=5, total_steps=4"),
        ({"cooldown_steps": -1, "total_steps": 4}, "cooldown_steps=-1"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        WarmupInverseSquareRoot(**{"model_dim": 8, **options})
