"""Second moments of recurrent layers."""

import keras
import numpy as np
import pytest

from keras_small.formats import recurrent
from keras_small.survey.calibration import observe


def test_the_states_are_computed_once(monkeypatch):
    layer = keras.layers.LSTM(3)
    model = keras.Sequential([keras.Input((5, 2)), layer])
    inputs = np.random.default_rng(0).normal(size=(8, 5, 2)).astype("float32")
    statistics = observe(model, {"lstm": layer}, [inputs])[0]["lstm"]
    first = recurrent.moments_of(layer, statistics)
    states = recurrent.states_of(layer, inputs)
    expected = states.T @ states / len(states)
    assert first["recurrent_kernel"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    monkeypatch.delattr(recurrent, "states_of")
    again = recurrent.moments_of(layer, statistics)
    assert again["recurrent_kernel"] is first["recurrent_kernel"]
